"""The table of tasks, and the generator of their examples."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from random import Random

from thalweg.nano import numbers, reading, strings, structured, talk, tools
from thalweg.nano.example import SPLITS, Example, split_of

TASKS: dict[str, Callable[[Random], Example]] = {
    "chat": talk.chat,
    "copy": strings.copy,
    "reverse": strings.reverse,
    "case": strings.case,
    "sort_words": strings.sort_words,
    "sort_numbers": numbers.sort,
    "count": numbers.count,
    "arithmetic": numbers.arithmetic,
    "compare": numbers.compare,
    "extract_json": structured.extract,
    "fill_schema": structured.schema,
    "tool_call": tools.call,
    "tool_result": tools.result,
    "passage": reading.passage,
    "sentiment": reading.sentiment,
    "instruction": talk.instruction,
    "recall": reading.recall,
    "needle": reading.needle,
}


def generate(task: str, split: str, seed: int) -> Iterator[Example]:
    """Unlimited examples of one task and split, deterministic for a seed. ValueError for an unknown task or split."""
    if task not in TASKS:
        raise ValueError(f"task: unknown task {task!r}; supported: {', '.join(TASKS)}")
    if split not in SPLITS:
        raise ValueError(f"split: unknown split {split!r}; supported: {', '.join(SPLITS)}")
    r = Random(f"{task}/{split}/{seed}")
    make = TASKS[task]
    while True:
        example = make(r)
        if split_of(task, example.key) == split:
            yield example
