"""A turn format bound to a vocabulary: terminals in the vocabulary become marks, which no text can spell."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, fields, is_dataclass, replace
from typing import Any, Protocol, TypeVar

from thalweg.text.marks import MOST, mark
from thalweg.text.stops import StopStrings
from thalweg.turns.format import TurnFormat

T = TypeVar("T")
WORDS = frozenset({"name", "ids", "source", "lead", "around", "section_around", "markers", "role", "names", "args", "after"})
"""Fields of rows without terminals."""


class TurnVocabulary(Protocol):
    @property
    def added_tokens(self) -> Mapping[int, str]: ...

    @property
    def special_ids(self) -> frozenset[int]: ...


@dataclass(frozen=True, slots=True)
class BoundTurnFormat:
    """turn: the format, with marks in its terminals. Shared by the readers of a server."""

    turn: TurnFormat
    named: Mapping[str, str]
    """Mark -> the token's text."""
    marked: tuple[int, ...]
    """Ids of tokens that the detokenizer must give as marks."""
    special: frozenset[str] = frozenset()
    """Marks of special tokens."""
    _automata: dict[tuple[str, ...], StopStrings] = field(default_factory=dict, compare=False)

    def token_text(self, text: str) -> str:
        """Text with marks written as their tokens' text."""
        return self.unmark(text, False)

    def unmark(self, text: str, skip_special: bool) -> str:
        """Text with marks written as their tokens' text. skip_special: drop special tokens."""
        for pair, token in self.named.items():
            text = text.replace(pair, "" if skip_special and pair in self.special else token)
        return text

    def automaton(self, terminals: tuple[str, ...]) -> StopStrings:
        """The automaton of these terminals, cached: a turn's reader has a few dozen sets of terminals."""
        result = self._automata.get(terminals)
        if result is None:
            result = self._automata[terminals] = StopStrings(terminals)
        return result


def bind(turn: TurnFormat, vocabulary: TurnVocabulary | None) -> BoundTurnFormat:
    """The format with its terminals as marks where `vocabulary` has them as tokens. vocabulary None: every terminal is text."""
    tokens = _control(vocabulary) if vocabulary is not None else {}
    used: dict[str, int] = {}
    found = [(text, id) for text, id in sorted(tokens.items(), key=lambda t: -len(t[0])) if _occurs(text, turn)]

    def mark_tokens(text: str) -> str:
        for token, id in found:
            if token in text:
                used[token] = id
                text = text.replace(token, mark(id))
        return text

    bound = _map(turn, mark_tokens)
    special = frozenset() if vocabulary is None else vocabulary.special_ids & set(used.values())
    names = {mark(id): token for token, id in used.items()}
    return BoundTurnFormat(bound, names, tuple(sorted(used.values())), frozenset(map(mark, special)))


def _control(vocabulary: TurnVocabulary) -> dict[str, int]:
    """Text -> id of control tokens: special ones, and those in brackets."""
    special = vocabulary.special_ids
    return {t: i for i, t in vocabulary.added_tokens.items() if t.strip() and i < MOST and (i in special or _looks_control(t))}


def _looks_control(token: str) -> bool:
    return len(token) > 2 and token[0] in "<[]" and token[-1] in ">]["


def _occurs(token: str, value: Any) -> bool:
    return any(token in text for text in terminals(value))


def terminals(value: Any) -> Iterable[str]:
    """Every string of a row that is a terminal or part of one."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, tuple):
        for item in value:
            yield from terminals(item)
    elif is_dataclass(value):
        for f in fields(value):
            if f.name not in WORDS:
                yield from terminals(getattr(value, f.name))


def _map(value: Any, change: Any) -> Any:
    if isinstance(value, str):
        return change(value)
    if isinstance(value, tuple):
        return tuple(_map(v, change) for v in value)
    if is_dataclass(value) and not isinstance(value, type):
        return replace(value, **{f.name: _map(getattr(value, f.name), change) for f in fields(value) if f.name not in WORDS})
    return value
