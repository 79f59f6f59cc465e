"""Scores a model on held-out examples, and formats the table of accuracies."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from thalweg.errors import ConfigError
from thalweg.nano.example import Example, judge
from thalweg.nano.tasks import TASKS, generate

N = 100
MAX_TOKENS = 160
"""Most tokens of an answer, more than any correct one has."""

Answer = Callable[[Sequence[Example]], list[str]]
"""Examples -> the model's greedy answers, in order."""


@dataclass(frozen=True, slots=True)
class Score:
    """The result of one task. `wrong`: (missed example, the model's text)."""

    task: str
    n: int
    wrong: tuple[tuple[Example, str], ...]

    @property
    def accuracy(self) -> float:
        return 1 - len(self.wrong) / self.n


def held_out(task: str, n: int, seed: int) -> list[Example]:
    """`n` examples of the test split with distinct contents. ConfigError if the task has fewer."""
    found: dict[str, Example] = {}
    repeated = 0
    for example in generate(task, "test", seed):
        repeated = repeated + 1 if example.key in found else 0
        if repeated > 1000:
            raise ConfigError(f"--n: task {task} has only about {len(found)} held-out examples, not {n}")
        found.setdefault(example.key, example)
        if len(found) == n:
            break
    return list(found.values())


def check_tasks(names: Sequence[str]) -> list[str]:
    """The named tasks in the table's order, or all if none are named. ConfigError names unknown tasks."""
    unknown = sorted(set(names) - set(TASKS))
    if unknown:
        raise ConfigError(f"--tasks: unknown {', '.join(unknown)}; supported: {', '.join(TASKS)}")
    return [t for t in TASKS if not names or t in names]


def scores(answer: Answer, tasks: Sequence[str], n: int, seed: int) -> Iterator[Score]:
    """The scores of the tasks, one by one."""
    for task in tasks:
        examples = held_out(task, n, seed)
        texts = answer(examples)
        missed = ((e, t) for e, t in zip(examples, texts, strict=True) if not judge(e, t))
        yield Score(task, n, tuple(missed))


def average(found: Sequence[Score]) -> float:
    """The mean accuracy, with equal weight per task."""
    return sum(s.accuracy for s in found) / len(found)


def table(found: Sequence[Score]) -> str:
    """The accuracies in per cent (exact match) as a Markdown table."""
    width = max(len("average"), *(len(s.task) for s in found))
    rows = [(s.task, str(s.n), f"{100 * s.accuracy:.1f}") for s in found]
    rows.append(("average", str(sum(s.n for s in found)), f"{100 * average(found):.1f}"))
    lines = [f"| {'task':{width}} | prompts | right % |", f"|-{'-' * width}-|--------:|--------:|"]
    return "\n".join(lines + [f"| {a:{width}} | {b:>7} | {c:>7} |" for a, b, c in rows])


def as_json(found: Sequence[Score], **facts: Any) -> dict[str, Any]:
    """All results, including wrong answers."""
    tasks = {
        s.task: {
            "n": s.n,
            "accuracy": s.accuracy,
            "wrong": [{"messages": e.messages, "expected": e.answer, "got": t} for e, t in s.wrong],
        }
        for s in found
    }
    return {**facts, "average": average(found), "tasks": tasks}
