"""The facts of the null platform: it runs everywhere, is never chosen unless asked for, and runs no model."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal, Self

from thalweg.backends.null.device import NullDevice
from thalweg.backends.null.hashing import STATE
from thalweg.errors import DeviceError
from thalweg.hal.device import DeviceInfo
from thalweg.hal.platform import Defaults, ModelInfo, Place, Platform, Probe


@dataclass(frozen=True, slots=True)
class NullOptions:
    """Times are seconds. A step lasts base + per_token * T + per_seq * S, one step after another."""

    tokens: Literal["fixed", "hash"] = "hash"
    vocab: int = 256
    """Tokens are below this, unless the parameters given to compile() are {"vocab": V}."""
    windows: tuple[int, ...] = (0,)
    """hash: per KV group, the window its layers attend to. 0 = everything. -1 = everything, by a recurrent state."""
    salt: int = 0
    """hash: two salts are two different models."""
    fixed: int = 0
    """fixed: the token."""
    base: float = 0.0
    per_token: float = 0.0
    per_seq: float = 0.0
    clock: Callable[[], float] | None = None
    """Steps take their time on this clock: a SimClock is moved on, any other is slept on. None: the real one."""


class NullPlatform(Platform):
    name = "null"
    shares_device = True
    supports_ranks = supports_stages = True  # each computes every token, so there is nothing to exchange
    options: NullOptions = NullOptions()
    runs_models = False

    def with_options(self, options: Any) -> Self:
        result = super().with_options(options)
        if result.options.tokens not in ("fixed", "hash"):
            raise DeviceError(f"null: tokens must be 'fixed' or 'hash', not {result.options.tokens!r}")
        if any(w < STATE or w == 1 for w in result.options.windows):
            raise DeviceError(
                "null: a window must be 0 (everything), -1 (a state) or at least 2, as a token's hash needs the one before"
            )
        return result

    def probe(self) -> Probe:
        return Probe(1, "computes nothing, on any machine; for measuring the host and for tests")

    def defaults(self, model: ModelInfo, device: DeviceInfo) -> Defaults:
        return Defaults(
            dtype="float32", block_tokens=16, max_num_seqs=256, max_num_batched_tokens=8192, kv_cache_bytes=1 << 30,
            pipeline_depth=2,
        )  # fmt: skip

    def describe(self) -> DeviceInfo:
        return NullDevice(NullOptions()).info

    def open(self, place: Place) -> NullDevice:
        return NullDevice(self.options)
