"""What a KV group keeps is its policy's to say (thalweg/engine/control/cache/groups). This finds code of the engine that asks
for a group's kind instead: a `window` that decides something, a kind compared with one by name, a policy's class asked for.

Prints the number of such places. Run: python ci/group_kinds.py [REPOSITORY]
"""

from __future__ import annotations

import ast
import sys
from collections.abc import Iterator

from source import Finding, Source, main

HOME = "thalweg/engine/control/cache/groups/"
KINDS = frozenset({"full", "window", "chunked", "latent", "state", "cross", "encoder"})
POLICIES = frozenset({"Full", "Window", "Chunked", "State", "Cross"})
WHY = "a policy in control/cache/groups says what its group does"


def check(source: Source) -> Iterator[Finding]:
    if source.path.startswith(HOME):
        return
    for node in ast.walk(source.tree):
        for requested in _asked(node):
            yield Finding(source.path, _line(node), f"asks {requested}: {WHY}")


def _line(node: ast.AST) -> int:
    """A comprehension has none of its own."""
    return next((n.lineno for n in ast.walk(node) if hasattr(n, "lineno")), 0)


def _asked(node: ast.AST) -> Iterator[str]:
    """What a node decides by, if that is a group's kind."""
    match node:
        case ast.If(test=test) | ast.IfExp(test=test) | ast.While(test=test):
            yield from _windows(test)
        case ast.BoolOp(values=values):
            for value in values:
                yield from _windows(value) if isinstance(value, ast.Attribute) else ()
        case ast.comprehension(ifs=ifs):
            for test in ifs:
                yield from _windows(test)
        case ast.Compare(left=left, comparators=others):
            yield from _kinds([left, *others])
        case ast.Match(subject=ast.Attribute(attr="kind")):
            yield "a kind"
        case ast.Call(func=ast.Name(id="isinstance"), args=[_, of]):
            names = {n.id if isinstance(n, ast.Name) else getattr(n, "attr", "") for n in ast.walk(of)}
            yield from (f"for {name}" for name in sorted(names & POLICIES))
        case ast.Call(func=ast.Name(id="min" | "max"), args=args):
            for value in args:
                yield from _windows(value)


def _windows(test: ast.AST) -> Iterator[str]:
    for node in ast.walk(test):
        if isinstance(node, ast.Attribute) and node.attr == "window":
            yield "for a window"


def _kinds(sides: list[ast.expr]) -> Iterator[str]:
    if not any(isinstance(side, ast.Attribute) and side.attr == "kind" for side in sides):
        return
    named = {n.value for side in sides for n in ast.walk(side) if isinstance(n, ast.Constant)} & KINDS
    yield from (f"for the kind {name!r}" for name in sorted(named))


if __name__ == "__main__":
    sys.exit(main(check, "thalweg/engine"))
