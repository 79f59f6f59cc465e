"""The null device: memory is numpy, an executable runs when it is called, and its result is ready when its time is over."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from thalweg.backends.null.hashing import HashModel, hash_logprobs, verify_drafts
from thalweg.hal.attention import AttentionBackend, AttnSpec
from thalweg.hal.device import Device, DeviceInfo, Memory
from thalweg.hal.kv import KVLayout
from thalweg.hal.parts.drafts import Drafts
from thalweg.hal.parts.scores import Scores
from thalweg.hal.step import Array, Features, Params, StateBox, Step, StepBatch, StepResult, StepShape

if TYPE_CHECKING:
    from thalweg.backends.null.platform import NullOptions

POISON = -0x0123456789ABCDF
"""Value that `NullDevice.poison` leaves in a block, which no step should read."""

NULL_MEMORY = 1 << 34
"""Bytes the device says it has."""


class SimClock:
    """A clock that moves only on request. Shared by a simulated device and the engine, it makes time an input."""

    def __init__(self, now: float = 0.0) -> None:
        self.now = now

    def __call__(self) -> float:
        return self.now

    def advance_to(self, when: float) -> None:
        self.now = max(self.now, when)


@dataclass(slots=True)
class SimulatedStep:
    """A step that has run. Its result is there from `due` on."""

    value: StepResult
    due: float = 0.0
    clock: Callable[[], float] | None = None

    def ready(self) -> bool:
        return self.clock is None or self.clock() >= self.due

    def result(self) -> StepResult:
        if self.clock is not None:
            if isinstance(self.clock, SimClock):
                self.clock.advance_to(self.due)
            else:
                time.sleep(max(0.0, self.due - self.clock()))
        return self.value


class HashAttention(AttentionBackend):
    """One 64-bit number per token: how the hash model's cache lies in memory. It attends inside the model."""

    name = "hash"
    batch_invariant = True

    def supports(self, spec: AttnSpec) -> str | None:
        return None if spec.kind in ("full", "window") else f"the hash model has no {spec.kind} attention"

    def layout(self, spec: AttnSpec, block_tokens: int) -> KVLayout:
        return KVLayout((block_tokens,), "int64", f"hash64x{block_tokens}")

    def attend(
        self, q: Array, k: Array, v: Array, kv: Array, batch: StepBatch, group: int, spec: AttnSpec,
        sinks: Array | None = None,
    ) -> tuple[Array, Array]:  # fmt: skip
        raise NotImplementedError("null: no model runs here, so no layer attends")


class NullDevice(Device):
    attention = (HashAttention(),)
    moves_blocks = True

    def __init__(self, options: NullOptions) -> None:
        self.options = options
        self.info = DeviceInfo("null", "null", NULL_MEMORY, 1, ("float32", "bfloat16", "float16"))
        self._free_at = 0.0

    def memory(self) -> Memory:
        return Memory(NULL_MEMORY, NULL_MEMORY)

    def put(self, t: Array) -> Array:
        return np.asarray(t)

    def alloc_kv(self, layout: KVLayout, blocks: int) -> np.ndarray:
        return np.zeros((blocks, *layout.shape), layout.dtype)

    def alloc(self, shape: tuple[int, ...], dtype: str) -> np.ndarray:
        return np.zeros(shape, dtype)

    def compile(
        self, step: Step, params: Params, state: StateBox, shape: StepShape | None, features: Features | None
    ) -> Callable[[StepBatch], SimulatedStep]:
        """`step` is ignored, and so is `params` except {"vocab": V}. The hash model needs the state {"kv": one int64
        array [blocks, block_tokens] per KV group, "history": i32[slots, length]}. "fixed" needs none."""
        vocab = params["vocab"] if isinstance(params, dict) and "vocab" in params else self.options.vocab
        if self.options.tokens == "fixed":
            return self._simulate_latency(FixedTokenModel(self.options.fixed % vocab, vocab))
        return self._simulate_latency(HashModel(state, vocab, self.options.salt, self.options.windows))

    def _simulate_latency(self, run: Callable[[StepBatch], StepResult]) -> Callable[[StepBatch], SimulatedStep]:
        o = self.options
        if o.clock is None and not (o.base or o.per_token or o.per_seq):
            return lambda batch: SimulatedStep(run(batch))
        clock = o.clock or time.monotonic

        def launch(batch: StepBatch) -> SimulatedStep:
            took = o.base + o.per_token * batch.tokens.shape[0] + o.per_seq * batch.slots.shape[0]
            self._free_at = max(self._free_at, clock()) + took
            return SimulatedStep(run(batch), self._free_at, clock)

        return launch

    def poison(self, kv: np.ndarray, block: int) -> None:
        """Fill a block with a marker that no hash equals: a later read shows as wrong tokens."""
        kv[block] = POISON

    def copy_blocks(self, kv: Array, source: np.ndarray, target: np.ndarray) -> Array:
        kv[target] = kv[source]
        return kv

    def read_blocks(self, kv: Array, blocks: np.ndarray) -> bytes:
        data: bytes = np.ascontiguousarray(kv[blocks]).tobytes()
        return data

    def write_blocks(self, kv: Array, blocks: np.ndarray, data: bytes) -> Array:
        kv[blocks] = np.frombuffer(data, kv.dtype).reshape(len(blocks), *kv.shape[1:])
        return kv


class FixedTokenModel:
    """Returns one token for every row that samples, and a plausible answer where logprobs are asked."""

    def __init__(self, token: int, vocab: int) -> None:
        self._token = token
        self._vocab = vocab
        self._cache: dict[int, np.ndarray[Any, Any]] = {}

    def __call__(self, batch: StepBatch) -> StepResult:
        n, drafts, scores = batch.slots.shape[0], batch.get(Drafts), batch.get(Scores)
        if drafts is not None:
            ids = np.full(batch.tokens.size, self._token, np.int64)
            result = verify_drafts(
                batch, drafts, ids[:1].repeat(n), ids[drafts.row], np.where(batch.tokens < 0, ids, batch.tokens)
            )
            if batch.features.logprobs >= 0:
                chosen = result.tokens.astype(np.int64).ravel()
                result.logprobs = hash_logprobs(chosen, np.zeros_like(chosen), batch.features.logprobs, self._vocab)
            return result
        tokens = self._cache.get(n)
        if tokens is None:
            tokens = self._cache[n] = np.full((n, 1), self._token, np.int32)
        result = StepResult(tokens, batch.emit.astype(np.int32))
        f = batch.features
        if f.logprobs >= 0:
            result.logprobs = hash_logprobs(tokens[:, 0], np.zeros(n, np.int64), f.logprobs, self._vocab)
        if scores is not None:
            result.score = hash_logprobs(scores.target, np.zeros(scores.target.size, np.int64), scores.level, self._vocab)
        return result
