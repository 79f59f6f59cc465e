"""The ruler: held-out examples, asked of whoever answers, and the table of how many answers were right."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from thalweg.errors import ConfigError
from thalweg.nano.example import Example, judge
from thalweg.nano.tasks import TASKS, generate

N = 100
MAX_TOKENS = 160
"""Tokens of an answer, more than any right one has."""

Answer = Callable[[Sequence[Example]], list[str]]
"""The texts a model greedily writes, in order."""


@dataclass(frozen=True, slots=True)
class Score:
    """How one task went. `wrong`: the examples missed, with what was written instead."""

    task: str
    n: int
    wrong: tuple[tuple[Example, str], ...]

    @property
    def accuracy(self) -> float:
        return 1 - len(self.wrong) / self.n


def held_out(task: str, n: int, seed: int) -> list[Example]:
    """`n` examples of the test split, no content twice. ConfigError if the task has not so many."""
    found: dict[str, Example] = {}
    repeated = 0
    for example in generate(task, "test", seed):
        repeated = repeated + 1 if example.key in found else 0
        if repeated > 1000:
            raise ConfigError(f"--n: task {task} has no {n} held-out examples, but about {len(found)}")
        found.setdefault(example.key, example)
        if len(found) == n:
            break
    return list(found.values())


def check_tasks(names: Sequence[str]) -> list[str]:
    """The tasks named, in the table's order, or all if none is. ConfigError names those that do not exist."""
    unknown = sorted(set(names) - set(TASKS))
    if unknown:
        raise ConfigError(f"--tasks: there is no {', '.join(unknown)}; there are {', '.join(TASKS)}")
    return [t for t in TASKS if not names or t in names]


def scores(answer: Answer, tasks: Sequence[str], n: int, seed: int) -> Iterator[Score]:
    """Ask everything, task by task."""
    for task in tasks:
        examples = held_out(task, n, seed)
        texts = answer(examples)
        missed = ((e, t) for e, t in zip(examples, texts, strict=True) if not judge(e, t))
        yield Score(task, n, tuple(missed))


def average(found: Sequence[Score]) -> float:
    """Over tasks, each the same."""
    return sum(s.accuracy for s in found) / len(found)


def table(found: Sequence[Score]) -> str:
    """As Markdown: right answers in per cent, exact match."""
    width = max(len("average"), *(len(s.task) for s in found))
    rows = [(s.task, str(s.n), f"{100 * s.accuracy:.1f}") for s in found]
    rows.append(("average", str(sum(s.n for s in found)), f"{100 * average(found):.1f}"))
    lines = [f"| {'task':{width}} | prompts | right % |", f"|-{'-' * width}-|--------:|--------:|"]
    return "\n".join(lines + [f"| {a:{width}} | {b:>7} | {c:>7} |" for a, b, c in rows])


def as_json(found: Sequence[Score], **facts: Any) -> dict[str, Any]:
    """Everything, the wrong answers too."""
    tasks = {
        s.task: {
            "n": s.n,
            "accuracy": s.accuracy,
            "wrong": [{"messages": e.messages, "expected": e.answer, "got": t} for e, t in s.wrong],
        }
        for s in found
    }
    return {**facts, "average": average(found), "tasks": tasks}
