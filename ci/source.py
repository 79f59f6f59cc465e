"""What the checks share: parsed source files, and where a finding is. Standard library only."""

from __future__ import annotations

import ast
import gc
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path


@dataclass(frozen=True, slots=True)
class Source:
    """One parsed file. `path` is relative to the repository, with forward slashes."""

    path: str
    text: str
    tree: ast.Module
    docs: frozenset[int] = field(default_factory=frozenset)
    """ids of string constants that stand alone as a statement: documentation, not code."""


@dataclass(frozen=True, slots=True)
class Finding:
    path: str
    line: int
    message: str

    def __str__(self) -> str:
        return f"{self.path}:{self.line}: {self.message}"


Rule = Callable[[Source], Iterator[Finding]]


def sources(root: Path, *folders: str) -> Iterator[Source]:
    """Every Python file under these folders of the repository, in order of path."""
    for folder in folders:
        for file in sorted((root / folder).rglob("*.py")):
            text = file.read_text(encoding="utf-8")
            tree = ast.parse(text, filename=str(file))
            docs = frozenset(
                id(n.value) for n in statements(tree) if isinstance(n, ast.Expr) and isinstance(n.value, ast.Constant)
            )
            yield Source(file.relative_to(root).as_posix(), text, tree, docs)


def statements(tree: ast.AST) -> Iterator[ast.stmt]:
    """Statements in order, those within others too. Faster than `ast.walk`, which visits expressions."""
    for part in ("body", "handlers", "cases", "orelse", "finalbody"):
        for node in getattr(tree, part, ()):
            if isinstance(node, ast.stmt):
                yield node
            yield from statements(node)


def imports(tree: ast.Module) -> Iterator[tuple[ast.stmt, str]]:
    """Every absolute import as (statement, dotted name); `from a import b` gives a and a.b."""
    for node in statements(tree):
        if isinstance(node, ast.Import):
            yield from ((node, alias.name) for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            yield node, node.module
            yield from ((node, f"{node.module}.{alias.name}") for alias in node.names)


def dotted(node: ast.expr) -> str:
    """`a.b.c` of nested attributes, or ""."""
    if isinstance(node, ast.Name):
        return node.id
    if isinstance(node, ast.Attribute):
        base = dotted(node.value)
        return f"{base}.{node.attr}" if base else ""
    return ""


def main(rule: Rule, *folders: str, argv: list[str] | None = None) -> int:
    """Run a rule over a repository (first argument; default: the one this file is in). 1 if anything was found."""
    gc.disable()  # trees are millions of objects, and the process ends soon
    args = sys.argv[1:] if argv is None else argv
    root = Path(args[0]) if args else Path(__file__).parents[1]
    findings = [finding for source in sources(root, *folders) for finding in rule(source)]
    for finding in findings:
        print(finding, file=sys.stderr)
    print(f"{Path(sys.argv[0]).stem}: {len(findings)} finding(s) in {', '.join(folders)}")
    return 1 if findings else 0
