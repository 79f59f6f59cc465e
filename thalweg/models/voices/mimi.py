"""The decoder of Mimi: codes of frames in, samples out. It is causal: samples of a frame depend on no later frame, so the
samples of a beginning are the beginning of the samples."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch.nn import functional

from thalweg.hal.parts.utterance import Utterance
from thalweg.hal.step import Array, Params, State, Step, StepBatch, StepResult
from thalweg.models import spec
from thalweg.models.voices.convolutions import convolve, convolve_causal, float32_specs
from thalweg.models.voices.mimi_layers import code_vectors, read_places, run_layer

Parts = Mapping[Any, Any]


class MimiNetwork:
    """Holds no tensors: parameters are passed. It computes in float32."""

    attention = None
    depth = 1

    def __init__(self, s: spec.MimiSpec) -> None:
        self.spec = s
        self.specs = float32_specs(s.weights())

    def part(self, first: int, last: int, carried: dict[str, Any]) -> Step:
        """As of `VisionEncoder`: `StepResult.pooled` is f32[frames, samples of a frame]."""

        def step(params: Params, state: State, batch: StepBatch) -> tuple[State, StepResult]:
            utterance = batch.get(Utterance)
            assert utterance is not None
            zeros = torch.zeros_like(batch.slots)
            return state, StepResult(zeros.unsqueeze(1), zeros, pooled=self._decode(params, utterance.units.long()))

        return step

    def _decode(self, p: Params, codes: Array) -> Array:
        """codes [frames, books]. Codes beyond the codebook are its last."""
        s, codes = self.spec, codes.clamp(0, self.spec.codes - 1)
        x = self._dequantise(p["semantic"], codes[:, : s.semantic]) + self._dequantise(p["acoustic"], codes[:, s.semantic :])
        if s.stride > 1:
            divided = functional.conv_transpose1d(x[None], p["divide"]["kernel"], stride=s.stride, groups=s.groups)[0]
            x = divided[:, : -s.stride]
        return self._convolve(p, self._transform(p["layers"], x.T).T).view(-1, s.width)

    def _dequantise(self, p: Parts, codes: Array) -> Array:
        """[hidden, frames]."""
        result = torch.zeros((), device=codes.device)
        for i in range(codes.shape[1]):
            result = result + code_vectors(p["tables"][i], codes[:, i])
        return convolve(p["project"], result.T)

    def _transform(self, layers: Parts, x: Array) -> Array:
        """x [T, hidden]."""
        places = read_places(self.spec, x)
        for i in range(self.spec.layers):
            x = run_layer(self.spec, layers[i], x, places)
        return x

    def _convolve(self, p: Params, x: Array) -> Array:
        """x [hidden, T] -> f32[T * product of ratios]."""
        s = self.spec
        x = convolve_causal(p["enter"], x)
        for i, ratio in enumerate(s.ratios):
            up = p["ups"][i]["up"]
            x = functional.conv_transpose1d(functional.elu(x)[None], up["kernel"], up["bias"], stride=ratio)[0][:, :-ratio]
            for j in range(s.blocks):
                block = p["ups"][i]["blocks"][j]
                y = convolve_causal(block["first"], functional.elu(x), dilation=s.growth**j)
                x = x + convolve_causal(block["second"], functional.elu(y))
        return convolve_causal(p["leave"], functional.elu(x))[0]
