"""Batches of dialogues of about equal length, so that padding costs little and no dialogue sees another."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from itertools import groupby

import torch
from dialogues import Dialogues, encode
from tokenizers import Tokenizer
from torch import Tensor

Row = tuple[list[int], list[bool]]
"""Token ids and which of them the assistant writes."""


@dataclass(frozen=True, slots=True)
class Batch:
    """Dialogues in groups of one length each, padded with 0 on the right; all tokens in one row. own: this token's *next* is
    one the assistant writes. weight: how much each of those counts: an answer of n tokens sqrt(n) in all, so that a yes or
    no is not drowned by long answers."""

    ids: Tensor
    own: Tensor
    weight: Tensor
    groups: list[tuple[int, int]]

    def to(self, device: torch.device) -> Batch:
        return Batch(self.ids.to(device), self.own.to(device), self.weight.to(device), self.groups)

    @property
    def targets(self) -> Tensor:
        """The assistant's tokens, dialogue by dialogue."""
        return self.ids.roll(-1)[self.own]

    @property
    def rows(self) -> Tensor:
        """Which dialogue each of the assistant's tokens is of."""
        lengths = torch.tensor([length for n, length in self.groups for _ in range(n)], device=self.ids.device)
        return torch.arange(len(lengths), device=self.ids.device).repeat_interleave(lengths)[self.own]


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
    """The rows by length, in batches of about `tokens` tokens, little of them padding."""
    made: list[Batch] = []
    groups: list[list[Row]] = []
    size = 0
    for row in sorted(rows, key=lambda row: len(row[0])):
        if size + len(row[0]) > tokens and groups:
            made.append(_batch(groups))
            groups, size = [], 0
        if not groups or len(row[0]) > 1.12 * len(groups[-1][0][0]) + 3:
            groups.append([])
        groups[-1].append(row)
        size += len(row[0])
    return [*made, _batch(groups)] if groups else made


def _batch(groups: list[list[Row]]) -> Batch:
    padded = [(row, len(group[-1][0])) for group in groups for row in group]
    ids = [ids + [0] * (length - len(ids)) for (ids, _), length in padded]
    own = [own[1:] + [False] * (length - len(own) + 1) for (_, own), length in padded]
    return Batch(
        torch.tensor([i for row in ids for i in row]),
        torch.tensor([o for row in own for o in row]),
        torch.tensor([n**-0.5 for row in own for n in _runs(row) for _ in range(n)]),
        [(len(group), len(group[-1][0])) for group in groups],
    )


def _runs(own: list[bool]) -> list[int]:
    """The lengths of the answers."""
    return [len(list(run)) for mine, run in groupby(own) if mine]
