"""The decoder of Mimi (Défossez et al. 2024, https://arxiv.org/abs/2410.00037): codes of residual codebooks, a transformer over
frames, and causal convolutions."""

from __future__ import annotations

from dataclasses import dataclass
from math import prod
from typing import Any

from thalweg.models.spec.rope import Rope
from thalweg.models.spec.vision import plain
from thalweg.models.spec.vits import convolution, matrix, scale_shift
from thalweg.models.weights import Source, Weight, Weights, vector


@dataclass(frozen=True, slots=True, kw_only=True)
class MimiSpec:
    books: int
    semantic: int
    """Codebooks with a separate projection, the first ones."""
    codes: int
    """Of a codebook."""
    inner_codes: int
    """Numbers of a code's vector."""
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
    stride: int
    """Places of the transformer per frame. 1: frames are not divided."""
    groups: int
    """Of the convolution that divides frames."""
    filters: int
    ratios: tuple[int, ...]
    blocks: int
    """Residual blocks after each upsampling."""
    growth: int
    """Factor of dilations from block to block."""
    compress: int
    taps: int
    """Of the first convolution."""
    last_taps: int
    block_taps: int
    most_frames: int
    root: str

    @property
    def width(self) -> int:
        """Samples of a row of the result."""
        return prod(self.ratios) * self.stride

    def weights(self) -> Weights:
        """Whole on each rank."""
        at, n = self.root, self.hidden
        result: dict[str, Any] = {
            "semantic": self.quantizer(f"{at}quantizer.semantic_residual_vector_quantizer.", self.semantic),
            "acoustic": self.quantizer(f"{at}quantizer.acoustic_residual_vector_quantizer.", self.books - self.semantic),
            "layers": self.transformer(f"{at}decoder_transformer."),
            **self._convolutions(f"{at}decoder.layers."),
        }
        if self.stride > 1:
            result["divide"] = {
                "kernel": Weight((Source(f"{at}upsample.conv.weight", (n, n // self.groups, 2 * self.stride)),))
            }
        return plain(result)

    def transformer(self, at: str) -> dict[int, Any]:
        """Weights of the layers with names that begin with `at`."""
        return {i: self._layer(f"{at}layers.{i}.") for i in range(self.layers)}

    def quantizer(self, at: str, books: int, project: str = "output_proj") -> Weights:
        tables = {
            i: {
                "sums": Weight((Source(f"{at}layers.{i}.codebook.embed_sum", (self.codes, self.inner_codes)),)),
                "uses": vector(f"{at}layers.{i}.codebook.cluster_usage", self.codes),
            }
            for i in range(books)
        }
        sizes = (self.inner_codes, self.hidden) if project == "input_proj" else (self.hidden, self.inner_codes)
        return {"tables": tables, "project": convolution(f"{at}{project}", *sizes, 1, bias=False)}

    def _layer(self, at: str) -> Weights:
        n, a, size = self.hidden, f"{at}self_attn.", self.hidden // self.heads
        return {
            "norm1": scale_shift(f"{at}input_layernorm", n),
            "q": matrix(f"{a}q_proj", n, n, self.bias),
            "k": matrix(f"{a}k_proj", self.kv_heads * size, n, self.bias),
            "v": matrix(f"{a}v_proj", self.kv_heads * size, n, self.bias),
            "out": matrix(f"{a}o_proj", n, n, self.bias),
            "scale1": vector(f"{at}self_attn_layer_scale.scale", n),
            "norm2": scale_shift(f"{at}post_attention_layernorm", n),
            "up": matrix(f"{at}mlp.fc1", self.inner, n, False),
            "down": matrix(f"{at}mlp.fc2", n, self.inner, False),
            "scale2": vector(f"{at}mlp_layer_scale.scale", n),
        }

    def _convolutions(self, at: str) -> dict[str, Any]:
        n, number, ups = self.filters << len(self.ratios), 1, dict[int, Any]()
        result: dict[str, Any] = {"enter": convolution(f"{at}0.conv", n, self.hidden, self.taps)}
        for i, ratio in enumerate(self.ratios):
            name, half = f"{at}{number + 1}.conv", n // 2
            inner, number = half // self.compress, number + 2
            kernel = Weight((Source(f"{name}.weight", (n, half, 2 * ratio)),))
            blocks = {
                j: {
                    "first": convolution(f"{at}{number + j}.block.1.conv", inner, half, self.block_taps),
                    "second": convolution(f"{at}{number + j}.block.3.conv", half, inner, 1),
                }
                for j in range(self.blocks)
            }
            ups[i] = {"up": {"kernel": kernel, "bias": vector(f"{name}.bias", half)}, "blocks": blocks}
            n, number = half, number + self.blocks
        return result | {"ups": ups, "leave": convolution(f"{at}{number + 1}.conv", 1, self.filters, self.last_taps)}
