"""Accuracy of a model in training: the share of examples whose whole answer is the likeliest token by token, which is when
greedy generation writes it."""

from __future__ import annotations

from itertools import islice

import torch
from batches import Row, batches
from dialogues import encode, render
from model import Nano
from tokenizers import Tokenizer

from thalweg.nano import TASKS, Example, generate


def rows(tokenizer: Tokenizer, split: str, n: int, seed: int = 0) -> dict[str, list[Row]]:
    """`n` examples of every task; only the last answer counts."""
    return {task: [_row(tokenizer, e) for e in islice(generate(task, split, seed), n)] for task in TASKS}


def _row(tokenizer: Tokenizer, example: Example) -> Row:
    prompt = render(list(example.messages), example.tools, prompt=True)
    text = render([*example.messages, {"role": "assistant", "content": example.answer}], example.tools)
    before = len(tokenizer.encode(prompt).ids)
    ids, own = encode(tokenizer, text)
    return ids, [mine and i >= before for i, mine in enumerate(own)]


@torch.no_grad()
def accuracy(model: Nano, examples: dict[str, list[Row]], device: torch.device, tokens: int = 4096) -> dict[str, float]:
    """Per task, between 0 and 1."""
    result = {}
    for task, some in examples.items():
        right = 0
        for batch in batches(some, tokens):
            b = batch.to(device)
            with torch.autocast(device.type, torch.bfloat16):
                best = model.logits(model(b.ids, b.groups)[b.own]).argmax(-1)
            wrong = torch.zeros(sum(n for n, _ in b.groups), device=device)
            wrong.index_add_(0, b.rows, (best != b.targets).to(torch.float32))
            right += int((wrong == 0).sum())
        result[task] = right / len(some)
    return result
