"""A stand-in for AsyncLLM over a pooling model, with arithmetic anyone can do by hand, and a tokenizer of letters."""

from __future__ import annotations

import asyncio
import tempfile
from collections.abc import AsyncGenerator, Iterable
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
from fake_engine import FakeEngine, config
from zoo import make_bert_tokenizer

from thalweg.config import PoolingConfig
from thalweg.engine.client.inputs import InputProcessor
from thalweg.engine.client.pool_shape import apply_pool_shape
from thalweg.outputs import ABORTED, PoolingOutput, PoolingRequestOutput, RequestMetrics
from thalweg.params import PoolingParams
from thalweg.text.tokenizer import load_tokenizer

EMBEDS = PoolingConfig(task="embed", mode="mean", activation="normalise", activate=True, size=4, dimensions=(2, 3), types=2)
RANKS = PoolingConfig(task="classify", mode="cls", activation="sigmoid", activate=True, size=1, labels=("LABEL_0",), types=2)
SORTS = PoolingConfig(task="classify", mode="cls", activation="softmax", activate=True, size=3, labels=("good", "bad", "odd"))
LATE = PoolingConfig(task="embed", mode="cls", activation="normalise", activate=True, size=4, each=True)
BROKEN, MOST = 50, 64
"""A token on which the engine fails ("x" begins a word with it); the model's longest sequence."""


def numbers(ids: list[int], types: list[int], size: int) -> np.ndarray:
    """What the model gives before it is activated."""
    made = [len(ids), sum(ids), sum(i * t for i, t in zip(ids, types, strict=True)), max(ids)]
    return np.array(made[:size] if size > 1 else [made[2] / 100 - 1], np.float32)


class FakePooling(FakeEngine):
    """delay: seconds per request. A text with an "x" at the beginning of a word fails; "!"-texts are not needed here."""

    def __init__(self, pooling: PoolingConfig = EMBEDS, *, delay: float = 0.0, policy: str = "fcfs", most: int = MOST) -> None:
        super().__init__(delay=delay, policy=policy)
        with tempfile.TemporaryDirectory() as folder:
            make_bert_tokenizer(Path(folder))
            self.tokenizer = load_tokenizer(Path(folder))  # type: ignore[assignment]
        base = config(policy)
        model = msgspec.structs.replace(base.model, pooling=pooling, max_len=most)
        self.config = msgspec.structs.replace(base, model=model)
        self._inputs = InputProcessor(self.config, self.tokenizer)
        self._numbers = iter(range(1, 10**9))
        self.waiting: dict[str, asyncio.Event] = {}

    def check_pooling(self, params: PoolingParams) -> None:
        self._inputs.check_pooling(params)

    async def encode(
        self, prompt: Any, pooling_params: PoolingParams, request_id: str, *, priority: int = 0, lora_request: Any = None
    ) -> AsyncGenerator[PoolingRequestOutput[PoolingOutput], None]:
        s = self._inputs.process_pooling(request_id, prompt, pooling_params, priority=priority, handles=self._numbers)
        self.prompts.append(prompt)
        assert request_id not in self.waiting, "ids must be unique"
        told = self.waiting[request_id] = asyncio.Event()
        self.most_running = max(self.most_running, len(self.waiting))
        error, done = None, False
        try:
            try:
                await asyncio.wait_for(told.wait(), self.delay or 0.001)
                error = ABORTED
            except TimeoutError:
                error = "it broke" if BROKEN in s.prompt_ids else None
            types = prompt.get("token_type_ids") or [0] * len(s.prompt_ids)
            pooling = self.config.model.pooling
            assert pooling is not None
            data = np.empty(0, np.float32)
            if error is None and s.shape.each:
                data = apply_pool_shape(
                    np.stack([numbers([i], [0], pooling.size) for i in s.prompt_ids]), s.shape, s.prompt_ids
                )
            elif error is None:
                data = apply_pool_shape(numbers(s.prompt_ids, types, pooling.size), s.shape, s.prompt_ids)
            output = PoolingRequestOutput(
                request_id, PoolingOutput(data), s.prompt_ids, 0, metrics=RequestMetrics(1.0, 1.0, 1.5, 2.0, 3.0), error=error
            )
            for logger in self.loggers:
                logger.record_request(output, pooling_params)
            done = True
            yield output
        finally:
            del self.waiting[request_id]
            if not done:
                self.aborted.append(request_id)

    async def abort(self, request_id: str | Iterable[str]) -> None:
        for one in [request_id] if isinstance(request_id, str) else list(request_id):
            if one in self.waiting:
                self.waiting[one].set()
