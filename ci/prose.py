"""Counts of how the project writes: words per sentence, semicolons, constructs and terms of ci/diction.py.

Three kinds of text: `docs` (README.md and docs/), `code` (docstrings and comments of thalweg/) and `errors` (strings in its
`raise` statements). Code blocks, headings, addresses and generated pages do not count. Inline code counts as one word. A
fragment below four words is a label.

Run: python ci/prose.py [--files N] [--sentences N] [--under PATH] [--list NAME] [REPOSITORY]. It prints the figures, and fails
for a term with a better one and for a rate above its limit. --list prints the sentences with one construct.
"""

from __future__ import annotations

import argparse
import ast
import io
import re
import sys
import tokenize
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from diction import CODE_FACTOR, CODE_TERMS, CONSTRUCTS, REPLACED, TERMS, compile_terms
from source import Finding, sources, statements

GENERATED = frozenset({"docs/flags.md", "docs/evidence/support.md", "docs/support.md"})
LABEL = 4
"""Words below which a fragment (a cell of a table, a heading of a list) is no sentence."""
LONG = 25
_BANNED = compile_terms(REPLACED)
_TERMS = compile_terms(TERMS)
_SENTENCE = re.compile(r"(?<=[.!?])[\"')\]*]*\s+(?=[\"'(\[*`]*[A-Z0-9`]|[a-z_]\w*(?:, [a-z_]\w*)*: )")
_ABBREVIATED = re.compile(r"\b(e\.g|i\.e|cf|vs|etc|No|Fig|approx)\.")
_DIRECTIVE = re.compile(r"#\s*(noqa|type:|fmt:|pragma|mypy:|ruff:|!|-{3,})")
_WORD = re.compile(r"[A-Za-z0-9][\w'./%+-]*")


@dataclass(frozen=True, slots=True)
class Sentence:
    path: str
    line: int
    text: str

    @property
    def words(self) -> int:
        return len(_WORD.findall(self.text))


@dataclass(frozen=True, slots=True)
class Figures:
    """Of some sentences. `semicolons` are per 100 sentences, `long` is the share above 25 words, in percent."""

    sentences: int
    mean: float
    long: float
    semicolons: float

    @classmethod
    def of(cls, found: Iterable[Sentence]) -> Figures:
        every = list(found)
        n = max(1, len(every))
        words = [s.words for s in every]
        return cls(
            len(every),
            sum(words) / n,
            100 * sum(w > LONG for w in words) / n,
            100 * sum(s.text.count(";") for s in every) / n,
        )

    def __str__(self) -> str:
        line = f"{self.sentences:6} sentences {self.mean:6.1f} words each {self.long:6.1f} % above {LONG}"
        return f"{line} {self.semicolons:6.1f} semicolons per 100"


def split(path: str, line: int, text: str) -> Iterator[Sentence]:
    """The sentences of one paragraph, without markup."""
    text = re.sub(r"`+[^`]+`+", "Code", text)
    text = re.sub(r"!?\[([^]]*)\]\([^)]*\)", r"\1", text)
    text = _ABBREVIATED.sub(lambda m: m[1].replace(".", ""), re.sub(r"https?://\S+", "address", text))
    for sentence in _SENTENCE.split(" ".join(text.split())):
        found = Sentence(path, line, sentence)
        if found.words >= LABEL:
            yield found


def markdown(path: str, text: str) -> Iterator[Sentence]:
    """Paragraphs, items of lists, and cells of tables."""
    start, block = 1, ""
    fenced = False
    for number, line in enumerate([*text.splitlines(), ""], 1):
        bare = line.strip()
        fence = bare.startswith("```")
        fenced ^= fence
        item = re.match(r"(?:[-*>] |\d+\. )", bare)
        if fence or fenced or not bare or item or bare[0] in "#|<":
            yield from split(path, start, block)
            block = ""
        if fence or fenced or not bare or bare[0] in "#<":
            continue
        if bare[0] == "|":
            for cell in re.split(r"(?<!\\)\|", bare.strip("|")):
                yield from split(path, number, cell)
        else:
            start = start if block else number
            block += " " + (bare[item.end() :] if item else bare)


def docstrings(path: str, tree: ast.Module) -> Iterator[Sentence]:
    """Every string that stands alone as a statement. An indented block of one, as an example, does not count."""
    for node in statements(tree):
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str):
            lines = node.value.value.expandtabs().splitlines()
            kept = [*lines[:1], *(x[node.col_offset :] for x in lines[1:])]
            plain = "\n".join("" if x.startswith("    ") else x for x in kept)
            yield from (Sentence(s.path, s.line + node.lineno - 1, s.text) for s in markdown(path, plain))


def comments(path: str, text: str) -> Iterator[Sentence]:
    """Comments; lines of one above another are one text."""
    if "#" not in text:
        return
    start, last, column, block = 0, -1, -1, ""
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        if token.type != tokenize.COMMENT or _DIRECTIVE.match(token.string):
            continue
        row, at = token.start
        if row != last + 1 or at != column:
            yield from split(path, start, block)
            start, block = row, ""
        last, column = row, at
        block += " " + token.string.lstrip("#: ")
    yield from split(path, start, block)


def docs(root: Path) -> Iterator[Sentence]:
    for file in [root / "README.md", *sorted((root / "docs").rglob("*.md"))]:
        path = file.relative_to(root).as_posix()
        if path not in GENERATED:
            yield from markdown(path, file.read_text(encoding="utf-8"))


def code(root: Path) -> Iterator[Sentence]:
    for source in sources(root, "thalweg"):
        yield from docstrings(source.path, source.tree)
        yield from comments(source.path, source.text)


def errors(root: Path) -> Iterator[Sentence]:
    """The strings of `raise` statements, with a word for each value in them."""
    for source in sources(root, "thalweg"):
        if "raise" in source.text:
            yield from messages(source.path, source.tree)


def messages(path: str, tree: ast.Module) -> Iterator[Sentence]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Raise) and node.exc is not None:
            parts = [*_strings(node.exc)]
            yield from split(path, node.lineno, " ".join(parts))


def _strings(node: ast.AST) -> Iterator[str]:
    if isinstance(node, ast.Constant):
        yield from [node.value] if isinstance(node.value, str) else []
    elif isinstance(node, ast.JoinedStr):
        yield "".join(str(v.value) if isinstance(v, ast.Constant) else "`x`" for v in node.values)
    else:
        for child in ast.iter_child_nodes(node):
            yield from _strings(child)


KINDS: Mapping[str, Callable[[Path], Iterator[Sentence]]] = {"docs": docs, "code": code, "errors": errors}


def replaced(found: Iterable[Sentence]) -> Iterator[Finding]:
    """Words with a better one. The glossary itself may name them. Terms count in documentation only."""
    for s in found:
        banned = {**_BANNED, **_TERMS} if s.path.endswith(".md") else _BANNED
        for pattern, better in banned.items():
            if s.path != "docs/glossary.md" and (hit := pattern.search(s.text)):
                yield Finding(s.path, s.line, f"{hit[0]!r}: say {better}")


def rates(found: Iterable[Sentence]) -> dict[str, float]:
    """Name of a construct -> its occurrences per 1,000 words. `terms`: those of the table of terms."""
    every = list(found)
    words = max(1, sum(s.words for s in every))
    counts = {c.name: sum(c.count(s.text) for s in every) for c in CONSTRUCTS}
    counts["terms"] = sum(bool(pattern.search(s.text)) for s in every for pattern in _TERMS)
    return {name: 1000 * n / words for name, n in counts.items()}


def limits(kind: str) -> dict[str, float]:
    """Name of a construct -> the most occurrences per 1,000 words. `terms`: none in documentation."""
    factor, terms = (1, 0.0) if kind == "docs" else (CODE_FACTOR, CODE_TERMS)
    return {c.name: factor * c.limit for c in CONSTRUCTS} | {"terms": terms}


def excesses(kind: str, found: Iterable[Sentence]) -> Iterator[str]:
    """A line for every rate above its bound. A page of documentation may have some occurrences, or twice the rate."""
    every = list(found)
    bounds, fix = limits(kind), f"python ci/prose.py --list NAME --under PATH ({kind})"
    for name, rate in rates(every).items():
        if rate > bounds[name]:
            yield f"{kind}: {name}: {rate:.2f} per 1,000 words, and {bounds[name]:.2f} at most: {fix}"
    if kind != "docs":
        return
    for path, page in by_path(every).items():
        words = sum(s.words for s in page)
        for c in CONSTRUCTS:
            n = sum(c.count(s.text) for s in page)
            if n > max(1 if c.limit < 0.5 else 3, 2 * c.limit * words / 1000):
                yield f"{path}: {c.name}: {n} in {words} words"


def by_path(found: Iterable[Sentence]) -> dict[str, list[Sentence]]:
    pages: dict[str, list[Sentence]] = {}
    for s in found:
        pages.setdefault(s.path, []).append(s)
    return pages


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0] if __doc__ else None)
    parser.add_argument("--files", type=int, default=8, help="how many files to list, the worst first")
    parser.add_argument("--sentences", type=int, default=8, help="how many sentences to list, the longest first")
    parser.add_argument("--under", default="", help="only paths that begin so")
    parser.add_argument("--list", metavar="NAME", help="print every sentence with this construct of ci/diction.py")
    parser.add_argument("root", nargs="?", type=Path, default=Path(__file__).parents[1])
    args = parser.parse_args(argv)
    texts = {kind: [s for s in of(args.root) if s.path.startswith(args.under)] for kind, of in KINDS.items()}
    if args.list:
        return _list(args.list, texts)
    findings = [str(f) for kind in ("docs", "code") for f in replaced(texts[kind])]
    for kind, found in texts.items():
        _print(kind, found, args.files, args.sentences)
        findings += [] if args.under else excesses(kind, found)
    print("\n".join(findings), file=sys.stderr)
    print(f"prose: {len(findings)} finding(s)")
    return 1 if findings else 0


def _print(kind: str, found: list[Sentence], files: int, sentences: int) -> None:
    print(f"{kind:40} {Figures.of(found)}")
    print("  per 1,000 words: " + ", ".join(f"{name} {rate:.2f}" for name, rate in rates(found).items()))
    by = {path: Figures.of(page) for path, page in by_path(found).items()}
    worst = sorted(by, key=lambda path: -by[path].mean - by[path].semicolons / 5)
    for path in worst[:files]:
        print(f"  {path:38} {by[path]}")
    for s in sorted(found, key=lambda s: -s.words)[:sentences]:
        print(f"  {s.path}:{s.line}: {s.words} words: {s.text}")


def _list(name: str, texts: Mapping[str, list[Sentence]]) -> int:
    construct = next((c for c in CONSTRUCTS if c.name == name), None)
    if construct is None:
        print(f"prose: --list {name}: one of {', '.join(c.name for c in CONSTRUCTS)}", file=sys.stderr)
        return 2
    for s in (s for found in texts.values() for s in found if construct.count(s.text)):
        print(f"{s.path}:{s.line}: {s.text}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
