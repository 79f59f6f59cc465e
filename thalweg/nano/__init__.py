"""The tasks of thalweg-nano: the bundled model is trained on their training split and judged on their held-out split.

`TASKS` names them, `generate(task, split, seed)` makes any number of examples, `judge(example, text)` says whether an answer is
right. Every example has a `key`, its content without the wording around it. The hash of the key decides its split, so that no
content is in two splits. This room imports no model, engine or tensor framework.
"""

from __future__ import annotations

from thalweg.nano.example import SPLITS, Example, judge, split_of
from thalweg.nano.tasks import TASKS, generate

__all__ = ["SPLITS", "TASKS", "Example", "generate", "judge", "split_of"]
