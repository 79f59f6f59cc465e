"""A causal audio encoder: log-mel spectra in, vectors that are added to tokens out. No vector depends on later audio."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from thalweg.models.spec.norm import Norm
from thalweg.models.spec.vision import ProjectorSpec, plain
from thalweg.models.weights import Source, Weight, Weights, linear, vector

TAPS = 3
"""Kernel size of both convolutions."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CausalAudioSpec:
    """Two causal convolutions, of which the second halves the frames. Layers with RoPE and a sliding window. A projector."""

    bins: int
    hidden: int
    layers: int
    heads: int
    head_dim: int
    inner: int
    act: str
    eps: float
    window: int
    """States that a state attends to, itself included."""
    rope: Mapping[str, Any]
    """Parameters of the rotary table."""
    projector: ProjectorSpec
    root: str = "model.audio_tower."

    @property
    def width(self) -> int:
        """As of `VisionSpec`."""
        return 1

    def norm(self, name: str) -> Norm:
        return Norm(name, self.hidden, self.eps)

    def weights(self, hidden: int) -> Weights:
        """hidden: the language model's. Every parameter is whole on each rank, and held in the model's dtype."""
        at, n = self.root, self.hidden
        return plain({
            "convs": {
                i: {
                    "kernel": Weight((Source(f"{at}embedder.conv{i + 1}.weight", (n, inputs, TAPS)),)),
                    "bias": vector(f"{at}embedder.conv{i + 1}.bias", n),
                }
                for i, inputs in enumerate((self.bins, n))
            },
            "layers": {i: self._layer(f"{at}layers.{i}.") for i in range(self.layers)},
            "norm": self.norm("norm").weights(at),
            "projector": self.projector.weights(),
        })  # fmt: skip

    def _layer(self, at: str) -> Weights:
        n, inside, a = self.hidden, self.heads * self.head_dim, f"{at}self_attn."
        return {
            "norm1": self.norm("self_attn_layer_norm").weights(at),
            "q": linear({f"{a}q_proj": inside}, n, shard=0, bias=True),
            "k": linear({f"{a}k_proj": inside}, n, shard=0),
            "v": linear({f"{a}v_proj": inside}, n, shard=0, bias=True),
            "out": linear({f"{a}o_proj": n}, inside, shard=0, bias=True),
            "norm2": self.norm("final_layer_norm").weights(at),
            "gate_up": linear({f"{at}mlp.{x}_proj": self.inner for x in ("gate", "up")}, n, shard=0),
            "down": linear({f"{at}mlp.down_proj": n}, self.inner, shard=0, bias=True),
        }  # fmt: skip
