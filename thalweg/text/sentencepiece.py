"""Reads the vocabulary of a sentencepiece file (`tokenizer.model`, `tokenizer.model.v3`) as plain data.

The file is one protocol buffers message. Only some fields are read: pieces with their scores and kinds, special ids, and text
normalisation. https://github.com/google/sentencepiece (sentencepiece_model.proto)
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from pathlib import Path

from thalweg.errors import CheckpointError, UnsupportedModelError
from thalweg.text.vocabulary import NORMAL, SENTENCEPIECE, Vocabulary

MAX_FILE = 64 << 20
"""Most bytes of a file. The largest vocabularies have 5 million."""
_BPE = 2
_SPECIALS = {40: ("unknown", 0), 41: ("bos", 1), 42: ("eos", 2), 43: ("padding", -1)}
"""Field of the trainer's settings -> (name of the special token, default id)."""
Field = tuple[int, int | bytes]


def read_sentencepiece(file: Path) -> Vocabulary:
    """The vocabulary of a file. CheckpointError and UnsupportedModelError name the file and the fault."""
    try:
        if file.stat().st_size > MAX_FILE:
            raise CheckpointError(f"{file}: larger than {MAX_FILE} bytes; not a vocabulary")
        data = file.read_bytes()
    except OSError as e:
        raise CheckpointError(f"{file}: cannot be read: {e.strerror or e}") from e
    tokens, scores, kinds = list[str](), list[float](), list[int]()
    trainer, normalizer = dict[int, int | bytes](), dict[int, int | bytes]()
    try:
        for number, value in _fields(data):
            if number == 1:
                piece = dict(_fields(_bytes(value)))
                tokens.append(_bytes(piece.get(1, b"")).decode())
                scores.append(struct.unpack("<f", _bytes(piece.get(2, b"\0\0\0\0")))[0])
                kinds.append(_number(piece.get(3, NORMAL)))
            elif number in (2, 3):
                (trainer if number == 2 else normalizer).update(_fields(_bytes(value)))
        _check(file, tokens, trainer, normalizer)
        prefix = bool(_number(normalizer.get(3, 1)))
        specials = {what: _to_int64(trainer.get(field, absent)) for field, (what, absent) in _SPECIALS.items()}
    except (ValueError, IndexError, struct.error) as e:
        raise CheckpointError(f"{file}: not a sentencepiece file: {e}; download it again") from e
    specials = {what: i for what, i in specials.items() if 0 <= i < len(tokens)}
    return Vocabulary(str(file), SENTENCEPIECE, None, tokens, kinds, scores, None, specials, {"prefix": prefix}, {})


def _check(file: Path, tokens: list[str], trainer: dict[int, int | bytes], normalizer: dict[int, int | bytes]) -> None:
    if not tokens:
        raise ValueError("it has no pieces")
    advice = "give a directory with tokenizer.json (--tokenizer)"
    if trainer.get(3, 1) != _BPE:
        raise UnsupportedModelError(f"{file}: its pieces are not merged by score (BPE), which this version needs; {advice}")
    if normalizer.get(2) or normalizer.get(4, 1) or not normalizer.get(5, 1):
        raise UnsupportedModelError(f"{file}: text is normalised before it is cut, which is not read from such files; {advice}")


def _fields(data: bytes) -> Iterator[Field]:
    """(number, value) of each field of a message. ValueError or IndexError for malformed messages."""
    at = 0
    while at < len(data):
        key, at = _varint(data, at)
        kind, size = key & 7, 0
        if kind == 0:
            value, at = _varint(data, at)
            yield key >> 3, value
            continue
        if kind == 2:
            size, at = _varint(data, at)
        elif kind in (1, 5):
            size = 8 if kind == 1 else 4
        else:
            raise ValueError(f"a field of kind {kind}")
        if at + size > len(data):
            raise ValueError("it ends within a field")
        yield key >> 3, data[at : at + size]
        at += size


def _varint(data: bytes, at: int) -> tuple[int, int]:
    value = 0
    for i in range(10):
        byte = data[at + i]
        value |= (byte & 127) << (7 * i)
        if byte < 128:
            return value, at + i + 1
    raise ValueError("a number of more than 64 bits")


def _number(value: int | bytes) -> int:
    if not isinstance(value, int):
        raise ValueError("text where a number belongs")
    return value


def _to_int64(value: int | bytes) -> int:
    number = _number(value)
    return number - (1 << 64) if number >> 63 else number


def _bytes(value: int | bytes) -> bytes:
    if not isinstance(value, bytes):
        raise ValueError("a number where text belongs")
    return value
