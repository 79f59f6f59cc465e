"""Qwen3-Omni's decoder of codes (Xu et al. 2025, https://arxiv.org/abs/2509.17765): the mean of the embeddings of a frame's
codes, a transformer over frames, and convolutions that divide frames into samples."""

from __future__ import annotations

from dataclasses import dataclass
from math import prod
from typing import Any

from thalweg.models.spec.rope import Rope
from thalweg.models.spec.vision import plain
from thalweg.models.spec.vits import convolution, matrix, scale_shift
from thalweg.models.weights import Source, Weight, Weights, vector

TAPS = 7
"""Of every convolution over time that does not divide frames, except the last ones of residual units."""
DILATIONS = (1, 3, 9)
"""Of the residual units after each upsampling."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Code2WavSpec:
    books: int
    codes: int
    """Of a codebook."""
    hidden: int
    layers: int
    heads: int
    kv_heads: int
    inner: int
    act: str
    eps: float
    window: int
    rope: Rope
    bias: bool
    """Of attention's projections."""
    ratios: tuple[int, ...]
    """Of the first upsamplings, each followed by a ConvNeXt block."""
    rates: tuple[int, ...]
    """Of the others, each followed by residual units. They halve the channels."""
    channels: int
    """Before the first of these."""
    most_frames: int
    root: str
    chunk: int = 300
    """Frames that are decoded together."""
    before: int = 25
    """Frames before a chunk that are decoded with it, and whose samples are left out."""

    @property
    def hop(self) -> int:
        """Samples of a frame."""
        return prod(self.ratios) * prod(self.rates)

    def weights(self) -> Weights:
        """Whole on each rank."""
        at, n = self.root, self.hidden
        result: dict[str, Any] = {
            "table": Weight((Source(f"{at}code_embedding.weight", (self.books * self.codes, n)),)),
            "layers": {i: self._layer(f"{at}pre_transformer.layers.{i}.") for i in range(self.layers)},
            "norm": vector(f"{at}pre_transformer.norm.weight", n),
            "divide": {i: self._divide(f"{at}upsample.{i}.", ratio) for i, ratio in enumerate(self.ratios)},
            **self._convolutions(f"{at}decoder."),
        }
        return plain(result)

    def _layer(self, at: str) -> Weights:
        n, a, m, size = self.hidden, f"{at}self_attn.", f"{at}mlp.", self.hidden // self.heads
        return {
            "norm1": vector(f"{at}input_layernorm.weight", n),
            "q": matrix(f"{a}q_proj", n, n, self.bias),
            "k": matrix(f"{a}k_proj", self.kv_heads * size, n, self.bias),
            "v": matrix(f"{a}v_proj", self.kv_heads * size, n, self.bias),
            "out": matrix(f"{a}o_proj", n, n, self.bias),
            "scale1": vector(f"{at}self_attn_layer_scale.scale", n),
            "norm2": vector(f"{at}post_attention_layernorm.weight", n),
            "gate": matrix(f"{m}gate_proj", self.inner, n, False),
            "up": matrix(f"{m}up_proj", self.inner, n, False),
            "down": matrix(f"{m}down_proj", n, self.inner, False),
            "scale2": vector(f"{at}mlp_layer_scale.scale", n),
        }

    def _divide(self, at: str, ratio: int) -> Weights:
        n = self.hidden
        return {
            "up": _declare_upsampling(f"{at}0.conv", n, n, ratio),
            "mix": convolution(f"{at}1.dwconv.conv", n, 1, TAPS),
            "norm": scale_shift(f"{at}1.norm", n),
            "enter": matrix(f"{at}1.pwconv1", 4 * n, n, True),
            "leave": matrix(f"{at}1.pwconv2", n, 4 * n, True),
            "scale": vector(f"{at}1.gamma", n),
        }

    def _convolutions(self, at: str) -> dict[str, Any]:
        n, ups = self.channels, dict[int, Any]()
        result: dict[str, Any] = {"enter": convolution(f"{at}0.conv", n, self.hidden, TAPS)}
        for i, rate in enumerate(self.rates):
            name, half = f"{at}{i + 1}.block.", n // 2
            units = {
                j: {
                    "bend1": _snake(f"{name}{j + 2}.act1", half),
                    "first": convolution(f"{name}{j + 2}.conv1.conv", half, half, TAPS),
                    "bend2": _snake(f"{name}{j + 2}.act2", half),
                    "second": convolution(f"{name}{j + 2}.conv2.conv", half, half, 1),
                }
                for j in range(len(DILATIONS))
            }
            ups[i] = {
                "bend": _snake(f"{name}0", n),
                "up": _declare_upsampling(f"{name}1.conv", n, half, 2 * rate),
                "units": units,
            }
            n = half
        last = len(self.rates) + 1
        return result | {"ups": ups, "bend": _snake(f"{at}{last}", n), "leave": convolution(f"{at}{last + 1}.conv", 1, n, TAPS)}


def _declare_upsampling(name: str, inputs: int, outputs: int, taps: int) -> Weights:
    return {"kernel": Weight((Source(f"{name}.weight", (inputs, outputs, taps)),)), "bias": vector(f"{name}.bias", outputs)}


def _snake(name: str, size: int) -> Weights:
    return {"alpha": vector(f"{name}.alpha", size), "beta": vector(f"{name}.beta", size)}
