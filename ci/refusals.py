"""Models that tensor parallelism refuses, by layer, and layers that refuse by themselves: none should.

Prints the table of thalweg/models/refusals.py. A finding is code in thalweg/models that raises where a communicator has
several ranks, or that names the flag in a message. Run: python ci/refusals.py [REPOSITORY]
"""

from __future__ import annotations

import ast
import sys
from collections.abc import Iterator

from source import Finding, Source, dotted, main

HOMES = ("thalweg/models/refusals.py", "thalweg/models/context.py", "thalweg/models/files.py")
"""The table, sizes that do not divide, and tensors that cannot be cut."""
FLAG = "tensor_parallel_size"
WHY = "add a row to thalweg/models/refusals.py"


def check(source: Source) -> Iterator[Finding]:
    if source.path in HOMES:
        return
    for node in ast.walk(source.tree):
        if (
            isinstance(node, ast.Constant)
            and isinstance(node.value, str)
            and FLAG in node.value
            and id(node) not in source.docs
        ):
            yield Finding(source.path, node.lineno, f"refuses ranks in words: {WHY}")
        elif isinstance(node, ast.If) and _asks_ranks(node.test) and any(isinstance(s, ast.Raise) for s in node.body):
            yield Finding(source.path, node.lineno, f"raises for several ranks: {WHY}")


def _asks_ranks(test: ast.expr) -> bool:
    names = (dotted(n) for n in ast.walk(test) if isinstance(n, ast.Attribute))
    return any(name.endswith(("tensor.size", "comm.size", "_size")) for name in names)


def table() -> str:
    from thalweg.models.refusals import TENSOR

    return "\n".join([f"{'layer':<12}why tensor parallelism is refused", *(f"{r.layer:<12}{r.why}" for r in TENSOR)])


if __name__ == "__main__":
    print(table())
    sys.exit(main(check, "thalweg/models"))
