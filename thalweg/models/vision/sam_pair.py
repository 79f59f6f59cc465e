"""SAM and SigLIP over the same image at two sizes."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch.nn import functional

from thalweg.hal.ops.activation import activate
from thalweg.hal.parts.patches import Patches
from thalweg.hal.step import Array, Params, State, Step, StepBatch, StepResult
from thalweg.models import spec
from thalweg.models.context import Context
from thalweg.models.layers.linear import Linear
from thalweg.models.layers.norm import build_norm
from thalweg.models.vision.encoder_layer import EncoderLayer
from thalweg.models.vision.patch_source import attend
from thalweg.models.vision.sam import SamEncoder
from thalweg.models.weights import ParamSpec

Parts = Mapping[str, Any]


class SamPairEncoder(SamEncoder):
    """Holds no tensors: parameters are passed. It encodes an image at a time."""

    def __init__(self, ctx: Context, s: spec.SamPairSpec, weights: Parts, block: Callable[..., Any]) -> None:
        super().__init__(ctx, s, {key: part for key, part in weights.items() if key not in ("low", "halves")}, block)
        ctx, low = ctx.of_encoder(), weights["low"]
        assert s.low.leave is not None
        self._pair = s
        self._patch, self._leave = Linear(ctx, low["patch"]), build_norm(ctx, s.low.leave, low["leave"])
        self._low = [EncoderLayer(ctx, each, low["layers"][i]) for i, each in enumerate(s.low.layers)]
        self._halves = [Linear(ctx, weights["halves"][i]) for i in range(2)]
        self.specs["low"] = {
            "patch": self._patch.specs, "leave": self._leave.specs,
            "places": {"weight": ParamSpec(low["places"]["weight"], ctx.dtype)},
            "layers": {i: each.specs for i, each in enumerate(self._low)},
        }  # fmt: skip
        self.specs["halves"] = {i: each.specs for i, each in enumerate(self._halves)}

    @property
    def depth(self) -> int:
        """SAM's layers, then SigLIP's."""
        return self._pair.layers + len(self._low)

    def part(self, first: int, last: int, carried: dict[str, Any]) -> Step:
        """As of `VisionEncoder`."""
        layers = self._pair.layers

        def step(params: Params, state: State, batch: StepBatch) -> tuple[State, StepResult]:
            patches = batch.get(Patches)
            assert patches is not None
            high, tap, low = carried.pop("pair") if first else self._begin(params, patches)
            for i in range(first, last):
                if i < layers:
                    high = self._layer(f"/layers/{i}", params["layers"][i], high, i)
                    tap = high if i == self._pair.tap else tap
                else:
                    low = self._low[i - layers](params["low"]["layers"][i - layers], low, attend)
            out = None
            if last < self.depth:
                carried["pair"] = high, tap, low
            else:
                out = self._join(params, high, tap, low)
            zeros = torch.zeros_like(batch.slots)
            return state, StepResult(zeros.unsqueeze(1), zeros, pooled=out)

        return step

    def _begin(self, params: Params, patches: Patches) -> tuple[Array, Array, Array]:
        """SAM's patches are first."""
        count, p = self._pair.grid**2, params["low"]
        (high,) = self._enter(params, patches.value[:count])
        low = self._patch(p["patch"], patches.value[count:].to(self._dtype), None)
        return high, high, low + p["places"]["weight"].index_select(0, patches.place[count:, 0])

    def _join(self, params: Params, high: Array, tap: Array, low: Array) -> Array:
        first, second = (self._shrink({**params, "neck": params[key]}, x)[0] for key, x in (("neck", high), ("second", tap)))
        low = self._leave(params["low"]["leave"], low)
        halves = [
            each(params["halves"][i], x.contiguous(), None)
            for i, (each, x) in enumerate(zip(self._halves, (first + second * params["weigh"], low), strict=True))
        ]
        x = activate(torch.cat(halves, 1), "gelu")
        return self._projector(params["projector"], x, torch.arange(len(x), device=x.device)).to(torch.float32)

    def _stretch(self, x: Array) -> Array:
        side = self._pair.stretched
        return functional.interpolate(x.float(), (side, side), mode="bilinear").to(x.dtype)
