"""Batch inference in Ray Data: a class for `Dataset.map_batches`.

ds = ray.data.read_json("prompts.jsonl")
ds = ds.map_batches(
    BatchGenerator, fn_constructor_kwargs={"options": {"model": "Qwen/Qwen3-8B"}, "sampling": {"max_tokens": 64}},
    concurrency=2, num_gpus=1, batch_size=256,
)
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from thalweg import LLM, EngineArgs, SamplingParams
from thalweg.errors import ConfigError, RequestError

TEXT, TOKENS, REASON, ERROR = "generated_text", "num_generated_tokens", "finish_reason", "error"


class BatchGenerator:
    """An engine in a Ray Data actor. Each batch gets the columns generated_text, num_generated_tokens and finish_reason, and
    keeps its own.

    A row that is refused has its reason in the column error, an empty text, and finish_reason "error". The others are empty
    there."""

    def __init__(
        self,
        options: Mapping[str, Any],
        sampling: Mapping[str, Any] | None = None,
        *,
        prompt_column: str = "prompt",
        messages_column: str = "messages",
    ) -> None:
        """options: flags of the engine with `_` for `-`. sampling: fields of SamplingParams. prompt_column: texts.
        messages_column: conversations, in a dataset without prompt_column. ConfigError names an unknown option."""
        unknown = sorted(set(options) - set(EngineArgs.__struct_fields__))
        if unknown:
            raise ConfigError(f"unknown options: {', '.join(unknown)}; `thalweg serve --help` lists those of the engine")
        self._params = SamplingParams(**dict(sampling or {}))
        self._prompts, self._messages = prompt_column, messages_column
        self._llm = LLM(**options)

    def __call__(self, batch: dict[str, Any]) -> dict[str, Any]:
        """batch: columns by name, as the batch format "numpy" has them."""
        run: Any
        if self._prompts in batch:
            rows, run = [str(text) for text in batch[self._prompts]], self._llm.generate
        elif self._messages in batch:
            rows, run = [plain(row) for row in batch[self._messages]], self._llm.chat
        else:
            raise RequestError(
                f"the batch has neither a column {self._prompts!r} nor {self._messages!r}; name it with prompt_column or "
                f"messages_column (columns: {', '.join(sorted(batch))})"
            )
        texts, counts, reasons, errors = [], [], [], []
        for output, error in self._run(run, rows):
            result = output.outputs[0] if output is not None else None
            texts.append(result.text if result else "")
            counts.append(len(result.token_ids) if result else 0)
            reasons.append((result.finish_reason or "") if result else "error")
            errors.append(error)
        new = {TEXT: np.array(texts, object), TOKENS: np.array(counts), REASON: np.array(reasons, object)}
        return {**batch, **new, ERROR: np.array(errors, object)}

    def _run(self, run: Any, rows: list[Any]) -> list[tuple[Any, str]]:
        """(output, "") or (None, reason) of each row. One refused row must not fail those with it."""
        if not rows:
            return []
        try:
            return [(output, "") for output in run(rows, self._params, use_tqdm=False)]
        except RequestError as e:
            if len(rows) == 1:
                return [(None, str(e))]
        middle = len(rows) // 2
        return [*self._run(run, rows[:middle]), *self._run(run, rows[middle:])]


def plain(value: Any) -> Any:
    """Lists and dicts of a nested value of numpy and Arrow. Arrow fills the fields that a dict lacks with None, so fields of
    None are left out."""
    if isinstance(value, np.ndarray | list | tuple):
        return [plain(one) for one in value]
    if isinstance(value, Mapping):
        return {name: plain(one) for name, one in value.items() if one is not None}
    return value.item() if isinstance(value, np.generic) else value
