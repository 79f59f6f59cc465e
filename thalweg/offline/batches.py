"""Batches of requests in the calling thread, as prepared and run by every method of `LLM`."""

from __future__ import annotations

import contextlib
import itertools
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import msgspec
from tqdm import tqdm

from thalweg.engine.client.submission import PoolingSubmission, Submission
from thalweg.errors import RequestError
from thalweg.offline.engine import LLMEngine
from thalweg.offline.prompts import per_prompt
from thalweg.offline.sharing import Runs
from thalweg.outputs import RequestOutput
from thalweg.params import PoolingParams, RequestOutputKind, SamplingParams

UseTqdm = bool | Callable[..., Any]
"""Whether to show a progress bar, or a replacement for tqdm."""


class Batches:
    """The part of `LLM` that runs requests. The calling thread has the engine to itself (`in_turn`)."""

    llm_engine: LLMEngine
    runs: Runs
    _ids: itertools.count[int]

    def _prepare(
        self, prompts: Sequence[Any], params: Sequence[Any], *, priority: Any = None,
        tokenization_kwargs: Mapping[str, Any] | None = None, lora_request: Any = None,
    ) -> list[Submission | PoolingSubmission]:  # fmt: skip
        """Requests with fresh ids, all checked before any runs. params: one for each prompt. RequestError names the field."""
        ranks = per_prompt("priority", priority, len(prompts), int)
        adapters = per_prompt("lora_request", lora_request, len(prompts), lambda: None)
        return [
            self.llm_engine.prepare(
                str(next(self._ids)), p, _final_only(s), priority=r, tokenization_kwargs=tokenization_kwargs, lora_request=a
            )
            for p, s, r, a in zip(prompts, params, ranks, adapters, strict=True)
        ]

    def _run(self, prepared: Sequence[Submission | PoolingSubmission], use_tqdm: UseTqdm = False) -> list[Any]:
        """Their last outputs, in order. Interrupted, the engine drops them and stays usable."""
        ids = [s.request_id for s in prepared]
        with self.runs.dropping(ids):
            self.llm_engine.submit(prepared)
            return self._finish(ids, use_tqdm)

    def _finish(self, ids: Sequence[str], use_tqdm: UseTqdm) -> list[Any]:
        bar = open_bar(use_tqdm, len(ids), "requests")
        generated, start = 0, time.monotonic()

        def show(out: Any) -> None:
            nonlocal generated
            if isinstance(out, RequestOutput):
                generated += sum(len(c.token_ids) for c in out.outputs)
                bar.set_postfix_str(f"{generated / (time.monotonic() - start):.1f} tok/s", refresh=False)
            bar.update()

        with contextlib.closing(bar):
            done = self.runs.finish(ids, show)
        return [done[i] for i in ids]


def open_bar(use_tqdm: UseTqdm, total: int, what: str) -> Any:
    """A progress bar, which the caller closes."""
    return (use_tqdm if callable(use_tqdm) else tqdm)(total=total, disable=not use_tqdm, desc=what, unit="req")


def _final_only(params: Any) -> SamplingParams | PoolingParams:
    if isinstance(params, PoolingParams):
        return params
    if not isinstance(params, SamplingParams):
        raise RequestError(f"sampling_params must be SamplingParams, not {type(params).__name__}", "sampling_params")
    return msgspec.structs.replace(params, output_kind=RequestOutputKind.FINAL_ONLY)
