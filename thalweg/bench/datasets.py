"""Requests of a load test: prompts with their token count and output length, deterministic for a seed.

Knows tokenizers and files, and no server.
"""

from __future__ import annotations

import json
import random
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from thalweg.errors import ConfigError
from thalweg.text.tokenizer import Tokenizer

PLAIN_IDS = range(3, 256)
"""Token ids for random prompts when there is no tokenizer: every vocabulary has them."""
SHAREGPT_LEAST, SHAREGPT_PROMPT, SHAREGPT_TOTAL = 4, 1024, 2048
"""Conversations outside these token counts are left out, as is the custom with this dataset."""


@dataclass(frozen=True, slots=True)
class SampleRequest:
    """One request. prompt: text, or token ids. input_len: tokens, by the client's tokenizer (0 = it has none)."""

    prompt: str | list[int]
    input_len: int
    output_len: int


@dataclass(frozen=True, slots=True)
class Random:
    """Random prompts. ratios: lengths vary evenly by this fraction up and down, (input, output)."""

    input_len: int
    output_len: int
    ratios: tuple[float, float] = (0.0, 0.0)
    prefix_len: int = 0
    """Tokens every prompt begins with."""


def random_asks(spec: Random, count: int, seed: int, tokenizer: Tokenizer | None) -> list[SampleRequest]:
    """Random token ids made text that has (almost always exactly) as many tokens. Ids where there is no tokenizer."""
    rng = np.random.default_rng(seed)
    ids = _ids(tokenizer)
    prefix = rng.choice(ids, spec.prefix_len).tolist()
    lengths = [
        np.maximum(1, rng.integers(int(n * (1 - r)), int(n * (1 + r)) + 1, count)).tolist()
        for n, r in zip((spec.input_len, spec.output_len), spec.ratios, strict=True)
    ]
    drawn = [prefix + rng.choice(ids, n).tolist() for n in lengths[0]]
    if tokenizer is None:
        return [SampleRequest(d, len(d), o) for d, o in zip(drawn, lengths[1], strict=True)]
    head = tokenizer.decode(prefix) if prefix else ""
    return [_exact(tokenizer, head, d, o, rng, ids) for d, o in zip(drawn, lengths[1], strict=True)]


def _ids(tokenizer: Tokenizer | None) -> np.ndarray:
    if tokenizer is None:
        return np.asarray(PLAIN_IDS)
    every = np.arange(tokenizer.vocab_size)
    return np.setdiff1d(every, np.fromiter(tokenizer.special_ids, np.int64, len(tokenizer.special_ids)))


def _exact(tokenizer: Tokenizer, head: str, ids: list[int], output_len: int, rng: Any, vocabulary: np.ndarray) -> SampleRequest:
    """Text of random ids seldom splits into the same ids again: cut or lengthen it until the count is right."""
    want, text = len(ids), ""
    for _ in range(8):
        text = head + tokenizer.decode(ids).removeprefix(head)
        got = tokenizer.encode(text, add_special_tokens=False)
        if len(got) == want:
            return SampleRequest(text, want, output_len)
        ids = got[:want] if len(got) > want else got + rng.choice(vocabulary, want - len(got)).tolist()
    return SampleRequest(text, len(tokenizer.encode(text, add_special_tokens=False)), output_len)


def prefix_asks(
    prefixes: int, prefix_len: int, suffix_len: int, output_len: int, count: int, seed: int, tokenizer: Tokenizer | None
) -> list[SampleRequest]:
    """`prefixes` groups of prompts. Those of a group begin with the same tokens. In random order."""
    per = -(-count // prefixes)
    out: list[SampleRequest] = []
    for i in range(prefixes):
        spec = Random(suffix_len, output_len, prefix_len=prefix_len)
        out += random_asks(spec, min(per, count - len(out)), seed * 1_000_003 + i, tokenizer)
    random.Random(seed).shuffle(out)
    return out


def file_asks(
    kind: str,
    path: str,
    count: int,
    seed: int,
    tokenizer: Tokenizer | None,
    *,
    output_len: int | None,
    shuffle: bool,
    repeat: bool,
) -> list[SampleRequest]:
    """kind "sharegpt": a JSON list of {"conversations": [{"value": ...}, ...]}. The first turn is the prompt, and the
    second says how long an answer to ask for. kind "custom": a line of JSON each, {"prompt": ..., "output_tokens":
    N}. output_len: overrides the file's. ConfigError names the file and the record."""
    records = list(_sharegpt(path) if kind == "sharegpt" else _custom(path))
    rng = random.Random(seed)
    if shuffle:
        rng.shuffle(records)
    out: list[SampleRequest] = []
    for where, prompt, answer in records:
        if len(out) == count:
            break
        n = len(tokenizer.encode(prompt, add_special_tokens=False)) if tokenizer else 0
        if output_len is not None:
            m = output_len
        elif isinstance(answer, int):
            m = answer
        elif tokenizer is None or answer is None:
            raise ConfigError(f"{where}: how long an answer to ask for is not known; give --{kind}-output-len")
        else:
            m = len(tokenizer.encode(answer, add_special_tokens=False))
        if kind == "sharegpt" and tokenizer is not None and not _usual(n, m, output_len is not None):
            continue
        out.append(SampleRequest(prompt, n, m))
    if not out:
        raise ConfigError(f"--dataset-path: {path}: it has no usable record")
    if len(out) < count and repeat:
        out += [rng.choice(out) for _ in range(count - len(out))]
    return out


def _usual(prompt: int, answer: int, requested: bool) -> bool:
    if prompt < SHAREGPT_LEAST or (answer < SHAREGPT_LEAST and not requested):
        return False
    return prompt <= SHAREGPT_PROMPT and prompt + answer <= SHAREGPT_TOTAL


Record = tuple[str, str, str | int | None]
"""(where it is, the prompt, the answer or its length)."""


def _sharegpt(path: str) -> Iterator[Record]:
    content = _json(path, _read(path))
    if not isinstance(content, list):
        raise ConfigError(f"--dataset-path: {path}: must hold a JSON list of conversations")
    for i, entry in enumerate(content):
        turns = entry.get("conversations", entry.get("conversation")) if isinstance(entry, dict) else None
        if not isinstance(turns, list):
            raise ConfigError(f'--dataset-path: {path}: entry {i} has no list "conversations"')
        values = [t["value"] for t in turns[:2] if isinstance(t, dict) and isinstance(t.get("value"), str)]
        if len(values) == 2:
            yield f"--dataset-path: {path}: entry {i}", values[0], values[1]


def _custom(path: str) -> Iterator[Record]:
    for i, line in enumerate(_read(path).splitlines(), 1):
        if not line.strip():
            continue
        entry = _json(f"{path}: line {i}", line)
        prompt = entry.get("prompt") if isinstance(entry, dict) else None
        length = entry.get("output_tokens") if isinstance(entry, dict) else None
        if not isinstance(prompt, str) or not prompt:
            raise ConfigError(f'--dataset-path: {path}: line {i} has no text "prompt"')
        if length is not None and (isinstance(length, bool) or not isinstance(length, int) or length < 1):
            raise ConfigError(f"--dataset-path: {path}: line {i}: output_tokens: {length!r:.40} must be a whole number above 0")
        yield f"--dataset-path: {path}: line {i}", prompt, length


def _read(path: str) -> str:
    try:
        return Path(path).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as e:
        raise ConfigError(f"--dataset-path: {path} cannot be read: {e}") from None


def _json(where: str, text: str) -> Any:
    try:
        return json.loads(text)
    except (ValueError, RecursionError) as e:
        raise ConfigError(f"--dataset-path: {where}: not valid JSON: {e}") from None
