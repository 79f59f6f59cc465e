"""What each token adds to the text, as bytes: the one table behind streaming text and per-token logprob names.

Reads the `decoder` entry of a tokenizer.json (https://huggingface.co/docs/tokenizers/api/decoders). It covers the two
families that turn tokens into bytes one by one: byte-level BPE and sentencepiece-style decoders ("▁" for space,
`<0xNN>` for a byte). For any other decoder `make_pieces` gives None and the caller decodes whole windows of tokens.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

_BYTE_TOKEN = re.compile(r"<0x([0-9A-Fa-f]{2})>")


def _byte_alphabet() -> dict[str, int]:
    """The printable character that byte-level BPE uses for each byte: itself if printable Latin-1, else from U+0100 up."""
    plain = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    rest = [b for b in range(256) if b not in set(plain)]
    return {chr(b): b for b in plain} | {chr(256 + i): b for i, b in enumerate(rest)}


@dataclass(frozen=True, slots=True)
class Pieces:
    """`of(token)` is what a token adds in running text. `first(token)` is what it adds where it begins the text."""

    of: Callable[[str], bytes]
    first: Callable[[str], bytes]
    bounded: bool
    """No token stands for more characters than its own length (so long texts have many tokens)."""


def make_pieces(decoder: Mapping[str, Any] | None) -> Pieces | None:
    """The rule for one `decoder` entry, or None when tokens cannot be turned to bytes one by one."""
    if decoder is None:
        return None
    steps = list(decoder.get("decoders", ())) if decoder.get("type") == "Sequence" else [decoder]
    if [s.get("type") for s in steps] == ["ByteLevel"]:
        return _byte_level()
    return _sentencepiece(steps)


def _byte_level() -> Pieces:
    alphabet = _byte_alphabet()

    def of(token: str) -> bytes:
        try:
            return bytes([alphabet[c] for c in token])
        except KeyError:  # an added token, written as itself
            return token.encode()

    return Pieces(of, of, bounded=True)


def _sentencepiece(steps: list[Mapping[str, Any]]) -> Pieces | None:
    """Sequences of Replace("▁" -> " "), ByteFallback, Fuse, Strip, and Metaspace. Anything else is None."""
    space, strip, byte_tokens, first_word, fused = "", False, False, False, False
    for step in steps:
        match step:
            case {"type": "Replace", "pattern": {"String": str(mark)}, "content": " "} if not space:
                space = mark
            case {"type": "Metaspace", "replacement": str(mark)} if not space and not fused:
                space = mark
                first_word = step.get("prepend_scheme", "always") != "never"
            case {"type": "ByteFallback"} if not fused:
                byte_tokens = True
            case {"type": "Fuse"}:
                fused = True
            case {"type": "Strip", "content": " ", "start": 1, "stop": 0} if fused and not strip:
                strip = True
            case _:
                return None
    if not space:
        return None

    def of(token: str) -> bytes:
        byte = _BYTE_TOKEN.fullmatch(token) if byte_tokens else None
        return bytes([int(byte[1], 16)]) if byte else token.replace(space, " ").encode()

    def first(token: str) -> bytes:
        piece = of(token.replace(space, "")) if first_word else of(token)
        return piece.removeprefix(b" ") if strip else piece

    return Pieces(of, first, bounded=False)
