"""Sizes of a model are counted by walking its spec (thalweg/models/sizes.py). This finds a second formula: a product of two
of a model's dimensions in a room that should ask `sizes`. Backends count their own temporaries (`Platform.workspace`).

Prints the number of such places. Run: python ci/byte_formulas.py [REPOSITORY]
"""

from __future__ import annotations

import ast
import sys
from collections.abc import Iterator

from source import Finding, Source, main

DIMENSIONS = frozenset({"layers", "hidden", "heads", "kv_heads", "head_dim", "intermediate", "inner", "vocab", "experts"})
WHY = "models/sizes.py counts by walking the spec"


def check(source: Source) -> Iterator[Finding]:
    inner: set[int] = set()
    for node in ast.walk(source.tree):
        if not (isinstance(node, ast.BinOp) and isinstance(node.op, ast.Mult)) or id(node) in inner:
            continue
        factors = list(_factors(node))
        inner.update(id(n) for n in ast.walk(node) if n is not node)
        found = [f for f in factors if f in DIMENSIONS]
        if len(found) > 1:
            yield Finding(source.path, node.lineno, f"multiplies {' by '.join(found)}: {WHY}")


def _factors(node: ast.expr) -> Iterator[str]:
    """Names of what a product multiplies, `len(...)` of a name as the name."""
    match node:
        case ast.BinOp(op=ast.Mult() | ast.FloorDiv() | ast.Div(), left=left, right=right):
            yield from _factors(left)
            yield from _factors(right)
        case ast.BinOp(op=ast.Add() | ast.Sub(), left=left):
            yield from _factors(left)
        case ast.Call(func=ast.Name(id="len"), args=[what]):
            yield from _factors(what)
        case ast.Attribute(attr=name) | ast.Name(id=name):
            yield name


if __name__ == "__main__":
    sys.exit(main(check, "thalweg/engine", "thalweg/cli", "thalweg/bench", "thalweg/checkpoint", "thalweg/server"))
