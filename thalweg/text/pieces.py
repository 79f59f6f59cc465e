"""The bytes that each token adds to the text, used for streaming text and for token names in logprobs.

Reads the `decoder` entry of a tokenizer.json (https://huggingface.co/docs/tokenizers/api/decoders). Supported are the two
families that decode each token separately: byte-level BPE and sentencepiece-style decoders ("▁" for space, `<0xNN>` for a
byte). For other decoders `make_pieces` returns None, and the caller decodes whole windows of tokens.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

_BYTE_TOKEN = re.compile(r"<0x([0-9A-Fa-f]{2})>")


def byte_alphabet() -> dict[str, int]:
    """Byte-level BPE's printable character -> byte: the same code point if printable Latin-1, else from U+0100 up."""
    plain = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    rest = [b for b in range(256) if b not in set(plain)]
    return {chr(b): b for b in plain} | {chr(256 + i): b for i, b in enumerate(rest)}


@dataclass(frozen=True, slots=True)
class Pieces:
    """`of(token)`: the bytes of a token in running text. `first(token)`: its bytes at the beginning of the text."""

    of: Callable[[str], bytes]
    first: Callable[[str], bytes]
    bounded: bool
    """No token adds more characters than its length. Long texts thus have many tokens."""


def make_pieces(decoder: Mapping[str, Any] | None) -> Pieces | None:
    """The rules of a `decoder` entry. None: tokens cannot be decoded separately."""
    if decoder is None:
        return None
    steps = list(decoder.get("decoders", ())) if decoder.get("type") == "Sequence" else [decoder]
    if [s.get("type") for s in steps] == ["ByteLevel"]:
        return _byte_level()
    return _sentencepiece(steps)


def _byte_level() -> Pieces:
    alphabet = byte_alphabet()

    def of(token: str) -> bytes:
        try:
            return bytes([alphabet[c] for c in token])
        except KeyError:  # an added token, spelled literally
            return token.encode()

    return Pieces(of, of, bounded=True)


def _sentencepiece(steps: list[Mapping[str, Any]]) -> Pieces | None:
    """The rules for sequences of Replace("▁" -> " "), ByteFallback, Fuse, Strip, and Metaspace. None: any other step."""
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
