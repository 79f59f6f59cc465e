"""Tokenizes texts and pairs of texts for pooling models, with optional truncation. Tokens that the tokenizer puts around a text
([CLS], [SEP], an end token) are kept, as in the tokenizer's truncation.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, NamedTuple

from thalweg.errors import RequestError
from thalweg.text.encoder import last_chars

if TYPE_CHECKING:
    from tokenizers import Encoding

    from thalweg.text.tokenizer import Tokenizer

Side = Literal["left", "right"]
SIDES = ("left", "right")


@dataclass(frozen=True, slots=True)
class Truncation:
    """keep: remaining tokens, including those around the text. side: the truncated end."""

    keep: int
    side: Side = "right"


def read_cut(keep: int | None, side: str | None, longest: int, usual: Side) -> Truncation | None:
    """The truncation of truncate_prompt_tokens and truncation_side. None: texts must be whole. keep -1: the model's limit,
    `longest`. usual: the default side. RequestError."""
    if side is not None and side not in SIDES:
        raise RequestError(f"truncation_side must be {' or '.join(SIDES)}, not {side!r:.80}", "truncation_side")
    if keep is None:
        return None
    name = "truncate_prompt_tokens"
    if type(keep) is not int or keep < -1 or keep == 0:
        raise RequestError(f"{name} must be at least 1, or -1 for the model's limit, not {keep!r:.80}", name)
    if keep > longest:
        raise RequestError(f"{name}: {keep} is more than the model's limit of {longest} tokens", name)
    return Truncation(longest if keep < 0 else keep, "left" if (side or usual) == "left" else "right")


class TokenizedText(NamedTuple):
    """A text as ids, and the type of each token: 1 in the second text of a pair, 0 elsewhere."""

    ids: list[int]
    types: list[int]


def read_text(
    tokenizer: Tokenizer, text: str, cut: Truncation | None = None, add_special_tokens: bool = True, most: int = 0
) -> TokenizedText:
    """The tokens of one text. most: limit of tokens from the text's beginning, without those around it. 0 = all. RequestError:
    not Unicode, or `cut` leaves no text."""
    if cut is None and not most:
        ids = tokenizer.encode(text, add_special_tokens)
        return TokenizedText(ids, [0] * len(ids))
    around = tokenizer.backend.num_special_tokens_to_add(False) if add_special_tokens else 0
    result = _pieces(tokenizer, text, cut, most)
    if cut is not None:
        result.truncate(_room(cut, around), direction=cut.side)
    result = tokenizer.backend.post_process(result, None, add_special_tokens)
    return TokenizedText(list(result.ids), list(result.type_ids))


def read_pair(
    tokenizer: Tokenizer, first: str, second: str, cut: Truncation | None = None, most: tuple[int, int] = (0, 0)
) -> TokenizedText:
    """Two texts in one sequence, with the tokenizer's tokens around and between. most: for each text, as in `read_text`. `cut`
    shortens the longer text first, until both are equally long."""
    return _join_pair(tokenizer, _pieces(tokenizer, first, cut, most[0]), _pieces(tokenizer, second, cut, most[1]), cut)


def read_pairs(
    tokenizer: Tokenizer, pairs: Sequence[tuple[str, str]], cut: Truncation | None = None, most: tuple[int, int] = (0, 0)
) -> list[TokenizedText]:
    """`read_pair` for each pair. A first text shared by many pairs is tokenized once."""
    firsts = {text: _pieces(tokenizer, text, cut, most[0]) for text, _ in pairs}
    fresh = (_copy(firsts[first]) for first, _ in pairs)
    return [
        _join_pair(tokenizer, a, _pieces(tokenizer, second, cut, most[1]), cut)
        for a, (_, second) in zip(fresh, pairs, strict=True)
    ]


def first_tokens(tokenizer: Tokenizer, text: str, most: int) -> str:
    """The beginning of a text, up to its first `most` tokens."""
    result = _pieces(tokenizer, text, None, most)
    return text[: result.offsets[-1][1]] if len(result.ids) == most else text


def _join_pair(tokenizer: Tokenizer, a: Encoding, b: Encoding, cut: Truncation | None) -> TokenizedText:
    if cut is not None:
        room = _room(cut, tokenizer.backend.num_special_tokens_to_add(True), 2)
        for one, n in zip((a, b), shares(len(a.ids), len(b.ids), room), strict=True):
            one.truncate(n, direction=cut.side)
    result = tokenizer.backend.post_process(a, b, True)
    return TokenizedText(list(result.ids), list(result.type_ids))


def _copy(result: Encoding) -> Encoding:
    """A copy, as `truncate` changes its object."""
    return type(result).merge([result], growing_offsets=False)


def shares(a: int, b: int, room: int) -> tuple[int, int]:
    """Tokens kept of two texts with a and b tokens, together at most `room`. The longer text is cut first, and gets the odd
    token."""
    if a + b <= room:
        return a, b
    short = min(a, b, room // 2)
    return (short, room - short) if a <= b else (room - short, short)


def cut_ids(ids: list[int], cut: Truncation | None) -> list[int]:
    """Truncates ids of unknown origin: tokens around the text cannot be recognised."""
    if cut is None or len(ids) <= cut.keep:
        return ids
    return ids[: cut.keep] if cut.side == "right" else ids[-cut.keep :]


def _pieces(tokenizer: Tokenizer, text: str, cut: Truncation | None, most: int = 0) -> Encoding:
    """The tokens of a text without those around it, at most the first `most`. For a text to be cut, at least the tokens that
    remain."""
    keep, side = (most, "right") if most else (cut.keep, cut.side) if cut is not None else (0, "right")
    if keep and (chars := last_chars(keep, tokenizer.max_token_chars)) is not None:
        text = text[:chars] if side == "right" else text[-chars:]
    try:
        result = tokenizer.backend.encode(text, add_special_tokens=False)
    except TypeError:
        tokenizer.encode(text, False)  # raises the RequestError
        raise
    if most:
        result.truncate(most, direction="right")
    return result


def _room(cut: Truncation, around: int, texts: int = 1) -> int:
    if cut.keep < around + texts:
        raise RequestError(
            f"truncate_prompt_tokens: {cut.keep} leaves no room for text: {around} tokens are needed around it",
            "truncate_prompt_tokens",
        )
    return cut.keep - around
