"""Validates sentencepiece's compiled table of character replacements: a double array of uint32, then the texts.

Layout: https://github.com/google/sentencepiece, `normalizer.cc`, over Darts-clone's units. The library that applies the table
trusts it, so each reachable state is visited here first."""

from __future__ import annotations

import numpy as np

from thalweg.errors import CheckpointError


def check_charsmap(table: bytes, where: str) -> bytes:
    """Returns the table if it is valid. CheckpointError names the fault."""
    size = int.from_bytes(table[:4], "little")
    if len(table) < 8 or size % 4 or not 4 <= size <= len(table) - 4:
        raise CheckpointError(f"{where}: precompiled_charsmap: says {size} bytes of states, and has {max(0, len(table) - 4)}")
    units, texts = np.frombuffer(table, "<u4", size // 4, offset=4).astype(np.int64), table[4 + size :]
    if not texts.endswith(b"\0") or not _reaches(units, np.frombuffer(texts, np.uint8)):
        raise CheckpointError(f"{where}: precompiled_charsmap: leads outside of itself")
    try:
        texts.decode()
    except ValueError as e:
        raise CheckpointError(f"{where}: precompiled_charsmap: {e}") from e
    return table


def _reaches(units: np.ndarray, texts: np.ndarray) -> bool:
    """Does every byte string lead to existing states, and to replacements that begin at a character?"""
    offset = (units >> 10) << ((units & (1 << 9)) >> 6)
    seen = np.zeros(len(units), bool)
    states, byte = offset[:1], np.arange(1, 256)
    while len(states):
        at = states[:, None] ^ byte
        if at.max() >= len(units):
            return False
        found = at[(units[at] & ((1 << 31) | 0xFF)) == byte]
        states = found ^ offset[found]
        if len(states) == 0:
            return True
        if states.max() >= len(units):
            return False
        value = units[states[(units[found] >> 8) & 1 == 1]] & ((1 << 31) - 1)
        if len(value) and (value.max() >= len(texts) or (texts[value] & 0xC0 == 0x80).any()):
            return False
        states = np.unique(states)
        states = states[~seen[states]]
        seen[states] = True
    return True
