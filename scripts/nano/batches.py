"""Batches of dialogues of about equal length, so that padding costs little and no dialogue sees another."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import torch
from dialogues import Dialogues, encode
from tokenizers import Tokenizer
from torch import Tensor

Row = tuple[list[int], list[bool]]
"""Token ids and which of them the assistant writes."""


@dataclass(frozen=True, slots=True)
class Batch:
    """ids [rows, length], padded with 0 on the right; own [rows, length]: this position's *next* token is the assistant's."""

    ids: Tensor
    own: Tensor

    def to(self, device: torch.device) -> Batch:
        return Batch(self.ids.to(device), self.own.to(device))

    @property
    def targets(self) -> Tensor:
        """The assistant's tokens, row by row."""
        return self.ids.roll(-1, dims=1)[self.own]


def draw(source: Dialogues, tokenizer: Tokenizer, tokens: int, longest: int) -> list[Row]:
    """Dialogues of `tokens` tokens or a little more; those longer than `longest` are left out."""
    rows: list[Row] = []
    total = 0
    while total < tokens:
        row = encode(tokenizer, source.next())
        if len(row[0]) <= longest:
            rows.append(row)
            total += len(row[0])
    return rows


def batches(rows: Iterable[Row], tokens: int) -> list[Batch]:
    """The rows by length, in batches of at most `tokens` padded tokens (or one row), a quarter of them padding at most."""
    made: list[Batch] = []
    group: list[Row] = []
    for row in sorted(rows, key=lambda row: len(row[0])):
        shortest = len(group[0][0]) if group else 0
        if group and ((len(group) + 1) * len(row[0]) > tokens or len(row[0]) > 1.25 * shortest + 8):
            made.append(_pad(group))
            group = []
        group.append(row)
    return [*made, _pad(group)] if group else made


def _pad(rows: list[Row]) -> Batch:
    longest = max(len(ids) for ids, _ in rows)
    ids = torch.zeros(len(rows), longest, dtype=torch.long)
    own = torch.zeros(len(rows), longest, dtype=torch.bool)
    for i, (row, mine) in enumerate(rows):
        ids[i, : len(row)] = torch.tensor(row)
        own[i, : len(row) - 1] = torch.tensor(mine[1:])
    return Batch(ids, own)
