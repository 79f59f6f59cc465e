"""Mimi's encoder in front of a language model: samples in, a vector for each token out. No vector depends on later audio."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch.nn import functional

from thalweg.hal.parts.frames import Frames
from thalweg.hal.step import Array, Params
from thalweg.models import spec
from thalweg.models.context import Context
from thalweg.models.vision.clip_encoder import ClipEncoder
from thalweg.models.voices.convolutions import convolve, convolve_causal, float32_specs
from thalweg.models.voices.mimi_layers import code_vectors, read_places, run_layer
from thalweg.models.weights import ParamSpec

Parts = Mapping[Any, Any]
PIECE = 1 << 17
"""Samples that convolutions read at once, so that their memory does not grow with a clip."""
EMBEDDED = ("codes", "begin")


class MimiEncoder(ClipEncoder):
    """The codec computes in float32, whatever the model's dtype is: a code is a choice."""

    def __init__(self, ctx: Context, s: spec.MimiEncoderSpec, weights: Parts, block: Callable[..., Any]) -> None:
        """block: unused, as its layers are of another kind."""
        self.spec = s
        self.specs: dict[str, Any] = {
            key: ParamSpec(part, ctx.dtype) if key in EMBEDDED else float32_specs(part) for key, part in weights.items()
        }

    def enter(self, params: Params, clip: Array) -> Array:
        """clip f32[1, n]: a frame of zeros, which is no audio, and whole frames of samples."""
        s, wave = self.spec, clip.float()[:, self.spec.codec.width :]
        step, parts = -(-PIECE // s.hop) * s.hop, list[Array]()
        for at in range(0, wave.shape[1], step):
            first = max(0, at - s.reach)
            parts.append(self._convolve(params, wave[:, first : at + step])[:, (at - first) // s.hop :])
        return torch.cat(parts, 1).T.contiguous() if parts else wave.new_zeros(0, s.codec.hidden)

    def read_places(self, params: Params, x: Array) -> Array:
        return read_places(self.spec.codec, x)

    def run_layer(self, i: int, params: Params, x: Array, places: Array) -> Array:
        return run_layer(self.spec.codec, params["layers"][i], x, places) if len(x) else x

    def finish(self, params: Params, x: Array, frames: Frames) -> Array:
        """f32[1 + frames, hidden of the language model]."""
        s, table = self.spec, params["codes"]
        places = torch.arange(s.codec.books, device=table.device) * s.rows
        codes = torch.cat((torch.full_like(places, s.silent)[None], self._quantise(params, x)))
        vectors = [table[each + places].float().sum(0) for each in codes]
        if s.begin is not None:
            read, written = params["begin"].float()
            vectors[0] = vectors[0] + read - written
        return torch.stack(vectors)

    def _convolve(self, p: Parts, x: Array) -> Array:
        """x [1, n] -> [hidden, n // hop]."""
        s = self.spec.codec
        x = convolve_causal(p["enter"], x)
        for i, ratio in enumerate(reversed(s.ratios)):
            for j in range(s.blocks):
                block = p["downs"][i]["blocks"][j]
                y = convolve_causal(block["first"], functional.elu(x), dilation=s.growth**j)
                x = x + convolve_causal(block["second"], functional.elu(y))
            x = convolve_causal(p["downs"][i]["down"], functional.elu(x), stride=ratio)
        return convolve_causal(p["leave"], functional.elu(x))

    def _quantise(self, p: Parts, x: Array) -> Array:
        """x [T, hidden] -> codes [frames, books]."""
        s, y = self.spec.codec, x.T
        if not len(x):
            return torch.zeros(0, s.books, dtype=torch.long, device=x.device)
        if s.stride > 1:  # the first place is repeated in front of it
            y = convolve(p["unite"], torch.cat((y[:, :1].expand(-1, s.stride), y), 1), stride=s.stride)
        result = list[Array]()
        for kind, books in (("semantic", s.semantic), ("acoustic", s.books - s.semantic)):
            rest = convolve(p[kind]["project"], y).T
            for i in range(books):
                table = p[kind]["tables"][i]
                every = code_vectors(table, torch.arange(s.codes, device=x.device))
                code = torch.cdist(rest[None], every[None])[0].argmin(-1)
                rest = rest - every[code]
                result.append(code)
        return torch.stack(result, 1)
