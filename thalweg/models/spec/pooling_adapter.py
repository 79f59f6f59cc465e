"""Layers behind an encoder that halve its states (w2v-BERT 2.0): a strided convolution, attention, and a feed-forward part."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from thalweg.models.spec.entrances import convolution
from thalweg.models.spec.norm import LayerNorm
from thalweg.models.weights import Weights, linear


@dataclass(frozen=True, slots=True, kw_only=True)
class PoolingAdapter:
    hidden: int
    heads: int
    inner: int
    act: str
    layers: int
    taps: int
    stride: int
    eps: float
    at: str

    def weights(self) -> Weights:
        return {i: self._layer(f"{self.at}{i}.") for i in range(self.layers)}

    def _layer(self, at: str) -> dict[str, Any]:
        n, shape = self.hidden, (2 * self.hidden, self.hidden, self.taps)

        def norm(name: str) -> Weights:
            return LayerNorm(name, n, self.eps).weights(at)

        return {
            "residual": {"norm": norm("residual_layer_norm"), "conv": convolution(f"{at}residual_conv", shape)},
            "attn": {
                "norm": norm("norm_self_att"),
                "conv": convolution(f"{at}self_attn_conv", shape),
                "qkv": linear({f"{at}self_attn.{x}_proj": n for x in "qkv"}, n, shard=0, bias=True),
                "out": linear({f"{at}self_attn.o_proj": n}, n, shard=0, bias=True),
            },
            "ff": {
                "norm": norm("ffn_layer_norm"),
                "up": linear({f"{at}ffn.intermediate_dense": self.inner}, n, shard=0, bias=True),
                "down": linear({f"{at}ffn.output_dense": n}, self.inner, shard=0, bias=True),
            },
        }
