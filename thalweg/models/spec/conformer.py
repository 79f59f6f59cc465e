"""Granite Speech's audio encoder: a conformer over stacked spectra, and a Q-Former that projects windows of its states."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from thalweg.models.spec.norm import LayerNorm
from thalweg.models.spec.qformer import QFormerSpec
from thalweg.models.spec.vision import convolution, plain
from thalweg.models.weights import Source, Weight, Weights, linear, vector


@dataclass(frozen=True, slots=True, kw_only=True)
class ConformerSpec:
    """Layers of half a feed-forward part, attention within blocks of frames, a convolution, and the other half."""

    inputs: int
    """Values of a frame."""
    hidden: int
    layers: int
    heads: int
    head_dim: int
    inner: int
    context: int
    """Frames of a block."""
    reach: int
    """Farthest distance that has a learned vector."""
    kernel: int
    """Frames of a convolution."""
    channels: int
    """Of a convolution."""
    labels: int
    """Classes whose probabilities are added to the states after half of the layers."""
    projector: QFormerSpec
    kept: tuple[int, ...] = ()
    """Layers, counted from 1, whose states the projector reads in front of the last ones; 0 is the first layer's input."""
    halved: tuple[int, ...] = ()
    """As of `BlockTranscriberSpec`."""
    eps: float = 1e-5
    root: str = "model.encoder."

    @property
    def width(self) -> int:
        """As of `VisionSpec`."""
        return 1

    def norm(self, name: str) -> LayerNorm:
        return LayerNorm(name, self.hidden, self.eps)

    def weights(self, hidden: int) -> Weights:
        """hidden: the language model's. Every parameter is whole on each rank, and held in the model's dtype."""
        at, n = self.root, self.hidden
        return plain({
            "enter": linear({f"{at}input_linear": n}, self.inputs, shard=0, bias=True),
            "classes": linear({f"{at}out": self.labels}, n, shard=0, bias=True),
            "feedback": linear({f"{at}out_mid": n}, self.labels, shard=0, bias=True),
            "layers": {i: self._layer(f"{at}layers.{i}.") for i in range(self.layers)},
            "projector": self.projector.weights(hidden),
        })  # fmt: skip

    def _layer(self, at: str) -> Weights:
        n, wide, inner = self.hidden, self.heads * self.head_dim, self.inner
        result: dict[str, Any] = {
            f"ff{i}": {
                "norm": self.norm("pre_norm").weights(f"{at}ff{i}."),
                "up": linear({f"{at}ff{i}.up_proj": inner}, n, shard=0, bias=True),
                "down": linear({f"{at}ff{i}.down_proj": n}, inner, shard=0, bias=True),
            }
            for i in (1, 2)
        }
        result["attn"] = {
            "norm": self.norm("pre_norm").weights(f"{at}attn."),
            "q": linear({f"{at}attn.to_q": wide}, n, shard=0),
            "kv": linear({f"{at}attn.to_kv": 2 * wide}, n, shard=0),
            "out": linear({f"{at}attn.to_out": n}, wide, shard=0, bias=True),
            "far": Weight((Source(f"{at}attn.rel_pos_emb.weight", (2 * self.reach + 1, self.head_dim)),)),
        }
        c = f"{at}conv."
        result["conv"] = {
            "norm": self.norm("norm").weights(c),
            "up": _pointwise(f"{c}up_conv", n, 2 * self.channels),
            "depth": Weight((Source(f"{c}depth_conv.conv.weight", (self.channels, 1, self.kernel)),)),
            "batch": {
                key: vector(f"{c}batch_norm.{name}", self.channels)
                for key, name in (("weight", "weight"), ("bias", "bias"), ("mean", "running_mean"), ("var", "running_var"))
            },
            "down": _pointwise(f"{c}down_conv", self.channels, n),
        }
        result["norm"] = self.norm("post_norm").weights(at)
        return result


def _pointwise(name: str, inputs: int, outputs: int) -> Weights:
    """A convolution over single frames, as the matrix that it is."""
    return {"weight": convolution(name, outputs, (inputs, 1)), "bias": vector(f"{name}.bias", outputs)}
