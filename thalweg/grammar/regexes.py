"""Parses regular expressions, as far as necessary to simplify them and to list their matches.

The supported syntax is the common part of ECMA-262 and Rust's `regex`. Other expressions parse to None, and callers then leave
them unchanged.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass

MOST_DEPTH = 40
"""Depth of nested groups."""
MOST_TEXTS = 256
"""Most texts that `texts` lists."""
MOST_TIMES = 1_000_000
"""Upper bound of a product of nested counts."""
_COUNT = re.compile(r"\{(\d{1,7})(?:(,)(\d{0,7}))?\}")
_GROUP = re.compile(r"\((?:\?(?:P?<[A-Za-z_]\w*>|s?:))?")
_RANGE = re.compile(r"(.)-(.)|(.)", re.DOTALL)
_HEX = {letter: re.compile(rf"\{{([0-9A-Fa-f]{{1,6}})\}}|([0-9A-Fa-f]{{{digits}}})") for letter, digits in (("x", 2), ("u", 4))}
_CONTROL = {"n": "\n", "r": "\r", "t": "\t", "f": "\f", "v": "\v"}
_BEGIN, _END = "\x02", "\x03"
"""Anchors in listed texts."""


@dataclass(frozen=True, slots=True)
class RegexAtom:
    """One atom. source: its text in the pattern. texts: its matches. None: too many to list."""

    source: str
    texts: tuple[str, ...] | None


@dataclass(frozen=True, slots=True)
class Alternation:
    """Alternatives, each a sequence of parts. opening: the beginning of its group, "" for the whole expression."""

    ways: tuple[tuple[Node, ...], ...]
    opening: str


@dataclass(frozen=True, slots=True)
class Repeat:
    """A node `least` to `most` times. most: None without a bound. lazy: "?" where one was written, or ""."""

    node: Node
    least: int
    most: int | None
    lazy: str


Node = RegexAtom | Alternation | Repeat


def parse(pattern: str) -> Alternation | None:
    """The expression as a tree. None: unsupported syntax."""
    reader = _RegexParser(pattern)
    try:
        result = reader.choice("", 0)
    except (ValueError, IndexError):
        return None
    return result if reader.at == len(pattern) else None


class _RegexParser:
    """Recursive descent parser. ValueError and IndexError for unsupported syntax."""

    def __init__(self, pattern: str) -> None:
        self._text, self.at = pattern, 0

    def choice(self, opening: str, depth: int) -> Alternation:
        if depth > MOST_DEPTH:
            raise ValueError
        ways: list[tuple[Node, ...]] = []
        parts: list[Node] = []
        while self.at < len(self._text) and self._text[self.at] != ")":
            if self._text[self.at] == "|":
                ways.append(tuple(parts))
                parts = []
                self.at += 1
            else:
                parts.append(self._read_repeats(self._atom(depth)))
        return Alternation((*ways, tuple(parts)), opening)

    def _atom(self, depth: int) -> Node:
        begin, letter = self.at, self._text[self.at]
        if letter == "(":
            return self._group(depth)
        if letter == "[":
            return self._class()
        if letter in "*+?{":
            raise ValueError
        self.at += 1
        if letter == "\\":
            return self._escape(begin)
        if letter in "^$":
            return RegexAtom(letter, (_BEGIN if letter == "^" else _END,))
        return RegexAtom(letter, None if letter == "." else (letter,))

    def _group(self, depth: int) -> Alternation:
        found = _GROUP.match(self._text, self.at)
        if found is None or self._text[found.end()] == "?":
            raise ValueError
        self.at = found.end()
        inner = self.choice(found[0], depth + 1)
        if self._text[self.at] != ")":
            raise ValueError
        self.at += 1
        return inner

    def _escape(self, begin: int) -> RegexAtom:
        letter = self._text[self.at]
        self.at += 1
        if letter.isascii() and not letter.isalnum():
            return RegexAtom(self._text[begin : self.at], (letter,))
        if letter in "dDwWsS":
            return RegexAtom(self._text[begin : self.at], None)
        if letter in _HEX and (found := _HEX[letter].match(self._text, self.at)) is not None:
            self.at = found.end()
            code = int(found[1] or found[2], 16)
            if 0xD800 <= code <= 0xDFFF:
                raise ValueError
            return RegexAtom(self._text[begin : self.at], (chr(code),))
        if letter in _CONTROL:
            return RegexAtom(self._text[begin : self.at], (_CONTROL[letter],))
        raise ValueError

    def _class(self) -> RegexAtom:
        """A class of single letters and ranges. Nested classes and set operations are not supported."""
        begin = self.at
        end = self._text.index("]", begin + 1)
        inside = self._text[begin + 1 : end]
        if inside in ("", "^"):
            raise ValueError
        if "[" in inside or "\\" in inside.replace("\\d", "").replace("\\w", "").replace("\\s", "").replace("\\-", ""):
            raise ValueError
        if "&&" in inside or "~~" in inside or "--" in inside:
            raise ValueError
        self.at = end + 1
        source = self._text[begin : self.at]
        return RegexAtom(source, None if inside[0] == "^" or "\\" in inside else _list_characters(inside))

    def _read_repeats(self, node: Node) -> Node:
        while self.at < len(self._text) and self._text[self.at] in "*+?{":
            least, most = self._bounds()
            lazy = self._text[self.at : self.at + 1]
            lazy = lazy if lazy == "?" else ""
            self.at += len(lazy)
            node = Repeat(node, least, most, lazy)
        return node

    def _bounds(self) -> tuple[int, int | None]:
        sign = self._text[self.at]
        if sign != "{":
            self.at += 1
            return {"*": (0, None), "+": (1, None), "?": (0, 1)}[sign]
        found = _COUNT.match(self._text, self.at)
        if found is None:
            raise ValueError
        self.at = found.end()
        least = int(found[1])
        most = least if found[2] is None else int(found[3]) if found[3] else None
        if most is not None and most < least:
            raise ValueError
        return least, most


def _list_characters(inside: str) -> tuple[str, ...] | None:
    """The letters of a class. None: more than `MOST_TEXTS`."""
    out: dict[str, None] = {}
    for found in _RANGE.finditer(inside):
        first, last = ord(found[1] or found[3]), ord(found[2] or found[3])
        if last - first >= MOST_TEXTS:
            return None
        out |= {chr(c): None for c in range(first, last + 1)}
    return tuple(out)


def simplify(pattern: str) -> str:
    """An equivalent expression with directly nested counts multiplied, where the product is exact.

    (a{1,9}){1,9} is a{1,81}. A compiler of derivatives has a state for every way to cut a text into such parts."""
    tree = parse(pattern)
    return pattern if tree is None or not _has_nested_count(tree) else _source(_merge_counts(tree))


def _has_nested_count(node: Node) -> bool:
    """Is a count directly nested in a count?"""
    if isinstance(node, Alternation):
        return any(_has_nested_count(n) for way in node.ways for n in way)
    return isinstance(node, Repeat) and (isinstance(_only(node.node), Repeat) or _has_nested_count(node.node))


def _only(node: Node) -> Node:
    """The node within groups that contain nothing else."""
    while isinstance(node, Alternation) and len(node.ways) == 1 and len(node.ways[0]) == 1:
        node = node.ways[0][0]
    return node


def _merge_counts(node: Node) -> Node:
    if isinstance(node, Alternation):
        return Alternation(tuple(tuple(_merge_counts(n) for n in way) for way in node.ways), node.opening)
    if not isinstance(node, Repeat):
        return node
    inner = _merge_counts(node.node)
    inside = _only(inner)
    if isinstance(inside, Repeat) and inside.lazy == node.lazy:
        counts = _product(inside, node)
        if counts is not None:
            return Repeat(inside.node, *counts, node.lazy)
    return Repeat(inner, node.least, node.most, node.lazy)


def _product(inside: Repeat, around: Repeat) -> tuple[int, int | None] | None:
    """The counts of a repeat of a repeat, if they have no gap. k rounds give k * least to k * most, so the gap after the first
    round is the widest, but for that between no round and one."""
    low, high, first = inside.least, inside.most, around.least
    if first == 0 and around.most != 0 and low > 1:
        return None
    round_ = max(first, 1)
    more = around.most is None or around.most > round_
    if more and high is not None and round_ * high + 1 < (round_ + 1) * low:
        return None
    most = 0 if around.most == 0 or high == 0 else None if high is None or around.most is None else high * around.most
    return None if max(low * first, most or 0) > MOST_TIMES else (low * first, most)


def _source(node: Node) -> str:
    if isinstance(node, RegexAtom):
        return node.source
    if isinstance(node, Alternation):
        inside = "|".join("".join(map(_source, way)) for way in node.ways)
        return f"{node.opening}{inside})" if node.opening else inside
    bounds = {(0, None): "*", (1, None): "+", (0, 1): "?"}.get((node.least, node.most))
    if bounds is None:
        most = "" if node.least == node.most else "," if node.most is None else f",{node.most}"
        bounds = f"{{{node.least}{most}}}"
    inner = _source(node.node)
    return f"(?:{inner}){bounds}{node.lazy}" if isinstance(node.node, Repeat) else f"{inner}{bounds}{node.lazy}"


def texts(pattern: str) -> list[str] | None:
    """All texts that a pattern of JSON Schema matches, if anchored at both ends and at most `MOST_TEXTS`.

    None: more, or unknown."""
    tree = parse(pattern)
    found = None if tree is None else _texts(tree)
    if found is None or any(t[:1] != _BEGIN or t[-1:] != _END or _has_anchor(t[1:-1]) for t in found):
        return None
    return [t[1:-1] for t in found]


def _has_anchor(text: str) -> bool:
    return _BEGIN in text or _END in text


def _texts(node: Node) -> list[str] | None:
    if isinstance(node, RegexAtom):
        return None if node.texts is None else list(node.texts)
    if isinstance(node, Repeat):
        inner = [""] if node.most == 0 else None if node.most is None else _texts(node.node)
        if inner is None or node.most is None or node.most > MOST_TEXTS:
            return None
        return _rounds(inner, node.least, node.most)
    out: dict[str, None] = {}
    for way in node.ways:
        found: list[str] | None = [""]
        for part in way:
            found = _concat_texts(found, _texts(part)) if found is not None else None
        if found is None:
            return None
        out |= dict.fromkeys(found)
        if len(out) > MOST_TEXTS:
            return None
    return list(out)


def _rounds(inner: list[str], least: int, most: int) -> list[str] | None:
    out: dict[str, None] = {}
    here: list[str] | None = [""]
    for n in range(most + 1):
        if n >= least and here is not None:
            out |= dict.fromkeys(here)
        here = _concat_texts(here, inner) if here is not None and n < most else here
        if here is None or len(out) > MOST_TEXTS:
            return None
    return list(out)


def _concat_texts(heads: list[str], tails: list[str] | None) -> list[str] | None:
    if tails is None or len(heads) * len(tails) > MOST_TEXTS:
        return None
    return list(dict.fromkeys(h + t for h in heads for t in tails))


def endless(pattern: str) -> bool:
    """Does every prefix of a match continue in infinitely many ways? False if uncertain."""
    tree = parse(pattern)
    return tree is not None and all(_endless(way) for way in tree.ways)


def _endless(way: tuple[Node, ...]) -> bool:
    last = _last(way)
    if isinstance(last, RegexAtom) and last.texts == (_END,):
        last = _last(way[:-1])
        if isinstance(last, Alternation):
            return all(_endless((*w, way[-1])) for w in last.ways)
        return isinstance(last, Repeat) and last.most is None and not _may_be_empty(last.node)
    return not any(_has_end(n) for n in way)


def _last(way: tuple[Node, ...]) -> Node | None:
    return way[-1] if way else None


def _has_end(node: Node) -> bool:
    if isinstance(node, RegexAtom):
        return node.texts == (_END,)
    if isinstance(node, Repeat):
        return _has_end(node.node)
    return any(_has_end(n) for way in node.ways for n in way)


def _may_be_empty(node: Node) -> bool:
    if isinstance(node, RegexAtom):
        return node.texts in ((_BEGIN,), (_END,))
    if isinstance(node, Repeat):
        return node.least == 0 or _may_be_empty(node.node)
    return any(all(_may_be_empty(n) for n in way) for way in node.ways)


def literal(text: str) -> str:
    """An expression that matches only this text."""
    return "".join(_letters(text))


def _letters(text: str) -> Iterator[str]:
    for c in text:
        yield c if (c.isascii() and c.isalnum()) or ord(c) > 0x9F else f"\\x{{{ord(c):x}}}"
