"""Models that tensor parallelism and pipeline stages refuse, by layer, and layers that refuse by themselves: none should.

Prints the table of thalweg/models/refusals.py. A finding is code in thalweg/models that raises where a communicator has
several ranks, or that names the flag in a message. Run: python ci/refusals.py [REPOSITORY]
"""

from __future__ import annotations

import ast
import sys
from collections.abc import Iterator

from source import Finding, Source, dotted, main

HOMES = tuple(f"thalweg/models/{name}.py" for name in ("refusals", "context", "files", "stages"))
"""The table, sizes that do not divide, tensors that cannot be cut, and layers that are fewer than stages."""
FLAGS = ("tensor_parallel_size", "pipeline_parallel_size")
WHY = "add a row to thalweg/models/refusals.py"


def check(source: Source) -> Iterator[Finding]:
    if source.path in HOMES:
        return
    for node in ast.walk(source.tree):
        if (
            isinstance(node, ast.Constant)
            and isinstance(node.value, str)
            and any(flag in node.value for flag in FLAGS)
            and id(node) not in source.docs
        ):
            yield Finding(source.path, node.lineno, f"refuses ranks in words: {WHY}")
        elif isinstance(node, ast.If) and _asks_ranks(node.test) and any(isinstance(s, ast.Raise) for s in node.body):
            yield Finding(source.path, node.lineno, f"raises for several ranks: {WHY}")


def _asks_ranks(test: ast.expr) -> bool:
    names = (dotted(n) for n in ast.walk(test) if isinstance(n, ast.Attribute))
    return any(name.endswith(("tensor.size", "comm.size", "_size")) for name in names)


def table() -> str:
    from thalweg.models.refusals import STAGE, TENSOR

    rows = [("layer", "flag", "why it is refused")]
    for flag, found in (("tensor_parallel_size", TENSOR), ("pipeline_parallel_size", STAGE)):
        rows += [(r.layer, flag, r.why) for r in found]
    return "\n".join(f"{layer:<12}{flag:<24}{why}" for layer, flag, why in rows)


if __name__ == "__main__":
    print(table())
    sys.exit(main(check, "thalweg/models"))
