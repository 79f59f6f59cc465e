"""Names of functions and classes: a function is a verb or a noun, never one past participle; a class name is unique.

A class of thalweg/models/spec and one of thalweg/models/layers may share a name: a declaration and its layer. Names that
vLLM's API fixes are exempt.

Prints the number of findings. Run: python ci/names.py [REPOSITORY]
"""

from __future__ import annotations

import ast
import re
import sys
from collections import defaultdict
from collections.abc import Iterable, Iterator
from pathlib import Path

from source import Finding, sources

IRREGULAR = frozenset({
    "begun", "bent", "bought", "broken", "brought", "built", "caught", "chosen", "dealt", "done", "drawn", "driven", "felt",
    "frozen",
    "given", "gone", "heard", "held", "hidden", "hung", "kept", "known", "laid", "lain", "led", "left", "lent", "lost",
    "lying", "made",
    "meant", "met", "paid", "risen", "said", "seen", "sent", "shown", "sold", "spent", "spoken", "stood", "struck", "stuck",
    "sung",
    "taken", "taught", "thought", "told", "torn", "understood", "won", "worn", "wound", "written",
})  # fmt: skip
VERBS = frozenset({"embed", "exceed", "feed", "need", "proceed", "seed", "speed"})
"""Words that end like a participle and are none."""
PUBLIC = frozenset({"finished", "errored"})
"""Names of vLLM's API."""
COMPAT = "thalweg/compat/"
PAIRS = ("thalweg/models/spec/", "thalweg/models/layers/")


def is_participle(name: str) -> bool:
    """Whether a function's name is one past participle, with or without leading underscores."""
    word = name.strip("_")
    if not re.fullmatch("[a-z]+", word) or word in VERBS | PUBLIC:
        return False
    return word.endswith("ed") or word in IRREGULAR


def check_functions(path: str, tree: ast.AST) -> Iterator[Finding]:
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and is_participle(node.name):
            yield Finding(path, node.lineno, f"{node.name}: a function is named by a verb or a noun")


def check_classes(classes: Iterable[tuple[str, str, int]]) -> Iterator[Finding]:
    """Of (name, path, line) of every class: those defined twice."""
    by_name: dict[str, list[tuple[str, int]]] = defaultdict(list)
    for name, path, line in classes:
        if not path.startswith(COMPAT):
            by_name[name].append((path, line))
    for name, homes in by_name.items():
        pair = len(homes) == 2 and {p for p in PAIRS for path, _ in homes if path.startswith(p)} == set(PAIRS)
        if len(homes) > 1 and not pair:
            for path, line in homes[1:]:
                yield Finding(path, line, f"class {name}: {homes[0][0]} has one of this name")


def find(root: Path) -> list[Finding]:
    findings, classes = [], []
    for source in sources(root, "thalweg"):
        findings += check_functions(source.path, source.tree)
        classes += [(n.name, source.path, n.lineno) for n in ast.walk(source.tree) if isinstance(n, ast.ClassDef)]
    return [*findings, *check_classes(classes)]


def main(argv: list[str]) -> int:
    findings = find(Path(argv[0]) if argv else Path(__file__).parents[1])
    for found in findings:
        print(found, file=sys.stderr)
    print(f"names: {len(findings)} finding(s)")
    return bool(findings)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
