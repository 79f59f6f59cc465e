"""The short convolution that recurrent layers begin with, on the cache of its last inputs."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from thalweg.hal import ops
from thalweg.hal.step import Array, StepBatch
from thalweg.models.context import Context
from thalweg.models.flow import Place
from thalweg.models.weights import ParamSpec


class Convolved:
    """x [T, channels], held as `ops.causal_conv` has it -> (y [T, channels], held)."""

    def __init__(self, ctx: Context, weights: Mapping[str, Any], act: str) -> None:
        channels, _, taps = weights["weight"].shape(ctx.comm.size)
        biased = {"biased": True} if "bias" in weights else {}
        self._conv = ctx.bind(ops.causal_conv, act=act, channels=channels, taps=taps, **biased)
        self.specs = {name: ParamSpec(w, ctx.dtype) for name, w in weights.items()}

    def __call__(self, p: Mapping[str, Any], x: Array, held: Array, rows: tuple[Array, ...]) -> tuple[Array, Array]:
        """rows: of `ragged`."""
        y, held = self._conv(x, p["weight"], held, *rows, *([p["bias"]] if "bias" in p else []))
        return y, held


def ragged(batch: StepBatch, place: Place) -> tuple[Array, ...]:
    """The arrays of a batch that ops over recurrent state take last."""
    return batch.block_tables[place.group], batch.context, batch.query, batch.last_row, batch.token_seq
