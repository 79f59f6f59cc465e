"""Counts of how the project writes: words per sentence, semicolons, words the glossary replaces. Standard library only.

Two kinds of text: `docs` (README.md and docs/) and `code` (docstrings and comments of thalweg/). Code blocks, headings,
addresses and generated pages do not count. Inline code counts as one word. A fragment below four words is a label.

Run: python ci/prose.py [--files N] [--sentences N] [--under PATH] [REPOSITORY]. It prints, and fails for a replaced word.
"""

from __future__ import annotations

import argparse
import ast
import io
import re
import sys
import tokenize
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

from source import Finding, sources, statements

GENERATED = frozenset({"docs/flags.md", "docs/evidence/support.md"})
LABEL = 4
"""Words below which a fragment (a cell of a table, a heading of a list) is no sentence."""
LONG = 25
REPLACED = {
    r"likeliest|most likely token": "argmax",
    r"(?:is|are|be|as) no numbers?|not a number": "NaN",
    r"endless(?:ly)?": "inf, or unbounded",
    r"dear(?:er|est|ly)?": "expensive",
    r"as[- ]it[- ]comes": "variant, or not batch-invariant",
    r"(?:turns?|turned|turning) (?:q|queries|keys)|(?:q|queries|keys)(?: and \w+)?(?: are)? turned": "RoPE, rotated",
    r"grouped heads": "GQA",
    r"memory is in pieces|heap is in pieces": "fragmented",
    r"the build's to \w+": "`build` does it",
}
"""Pattern -> what docs/glossary.md, or the field, says instead."""

_BANNED = {re.compile(rf"\b(?:{pattern})\b", re.IGNORECASE): better for pattern, better in REPLACED.items()}
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
        said = f"{self.sentences:6} sentences {self.mean:6.1f} words each {self.long:6.1f} % above {LONG}"
        return f"{said} {self.semicolons:6.1f} semicolons per 100"


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


def replaced(found: Iterable[Sentence]) -> Iterator[Finding]:
    """Words with a better one. The glossary itself may name them."""
    for s in found:
        for pattern, better in _BANNED.items():
            if s.path != "docs/glossary.md" and (hit := pattern.search(s.text)):
                yield Finding(s.path, s.line, f"{hit[0]!r}: say {better}")


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0] if __doc__ else None)
    parser.add_argument("--files", type=int, default=8, help="how many files to list, the worst first")
    parser.add_argument("--sentences", type=int, default=8, help="how many sentences to list, the longest first")
    parser.add_argument("--under", default="", help="only paths that begin so")
    parser.add_argument("root", nargs="?", type=Path, default=Path(__file__).parents[1])
    args = parser.parse_args(argv)
    findings: list[Finding] = []
    for kind, of in (("docs", docs), ("code", code)):
        found = [s for s in of(args.root) if s.path.startswith(args.under)]
        findings += replaced(found)
        print(f"{kind:40} {Figures.of(found)}")
        by = {path: Figures.of(s for s in found if s.path == path) for path in {s.path for s in found}}
        worst = sorted(by, key=lambda path: -by[path].mean - by[path].semicolons / 5)
        for path in worst[: args.files]:
            print(f"  {path:38} {by[path]}")
        for s in sorted(found, key=lambda s: -s.words)[: args.sentences]:
            print(f"  {s.path}:{s.line}: {s.words} words: {s.text}")
    for finding in findings:
        print(finding, file=sys.stderr)
    print(f"prose: {len(findings)} replaced word(s)")
    return 1 if findings else 0


if __name__ == "__main__":
    sys.exit(main())
