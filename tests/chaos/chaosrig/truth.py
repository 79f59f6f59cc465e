"""What the hash model must say after a prompt: tokens by the oracle, text by the tokenizer library itself."""

from __future__ import annotations

import random
from collections.abc import Sequence
from functools import cache
from importlib import resources

from oracle import A, B, C, splitmix
from tokenizers import Tokenizer

U64 = (1 << 64) - 1
MODEL, VOCAB = "thalweg-nano", 2560
"""The bundled model, whose name and tokenizer the hash model is served under."""


def continuation(prompt: Sequence[int], n: int, salt: int = 0, vocab: int = VOCAB) -> list[int]:
    """The n tokens after `prompt`. One pass, as h and its sum only grow."""
    h = total = 0
    tokens = list(prompt)
    for p in range(len(prompt) + n):
        if p == len(tokens):
            tokens.append((splitmix(total * C) >> 1) % vocab)
        h = (h + splitmix(tokens[p] * A + p * B + salt)) & U64
        total = (total + h) & U64
    return tokens[len(prompt) :]


@cache
def _tokenizer() -> Tokenizer:
    return Tokenizer.from_file(str(resources.files("thalweg") / "nano" / "weights" / "tokenizer.json"))


def text_of(tokens: Sequence[int]) -> str:
    return str(_tokenizer().decode(list(tokens), skip_special_tokens=True))


@cache
def plain_tokens() -> tuple[int, ...]:
    """Tokens a prompt may hold: whole characters, none of them special, so that the text after it is a text of its own."""
    return tuple(t for t in range(VOCAB) if (text := text_of([t])) and "\ufffd" not in text)


def random_prompt(rng: random.Random, length: int) -> list[int]:
    return rng.choices(plain_tokens(), k=length)
