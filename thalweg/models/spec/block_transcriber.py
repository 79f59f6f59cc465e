"""Granite Speech 5: the conformer of Granite Speech, whose first layers halve the frames, with a CTC head."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from thalweg.models.spec.norm import LayerNorm
from thalweg.models.spec.transcript import CTCHead
from thalweg.models.spec.vision import plain
from thalweg.models.weights import Source, Weight, Weights, linear, vector


@dataclass(frozen=True, slots=True, kw_only=True)
class BlockTranscriberSpec:
    """Fields are those of `ConformerSpec`."""

    inputs: int
    hidden: int
    layers: int
    heads: int
    head_dim: int
    inner: int
    bias: bool
    """Of feed-forward parts."""
    context: int
    reach: int
    kernel: int
    channels: int
    halved: tuple[int, ...]
    """Layers that halve the frames, counted from 0."""
    frames: int
    """Of the longest clip, after all layers."""
    head: CTCHead
    """Its matrix also gives the classes that are added to the states after half of the layers."""
    eps: float = 1e-5
    root: str = "encoder."
    kept: tuple[int, ...] = ()

    @property
    def width(self) -> int:
        """As of `VisionSpec`."""
        return 1

    def norm(self, name: str) -> LayerNorm:
        return LayerNorm(name, self.hidden, self.eps)

    def weights(self, hidden: int) -> Weights:
        """hidden: unused, as the result is a transcript. Parameters are whole on each rank, in the model's dtype."""
        at, n = self.root, self.hidden
        head = self.head.weights(n)
        return plain({
            "enter": linear({f"{at}input_linear": n}, self.inputs, shard=0, bias=True),
            "classes": head["out"],
            "feedback": linear({f"{at}out_mid": n}, self.head.labels, shard=0, bias=True),
            "layers": {i: self._layer(f"{at}layers.{i}.") for i in range(self.layers)},
            "head": head,
        })  # fmt: skip

    def _layer(self, at: str) -> Weights:
        n, wide, a, c = self.hidden, self.heads * self.head_dim, f"{at}self_attn.", f"{at}conv."
        result: dict[str, Any] = {
            f"ff{i}": {
                "norm": self.norm(f"norm_feed_forward{i}").weights(at),
                "up": linear({f"{at}feed_forward{i}.linear1": self.inner}, n, shard=0, bias=self.bias),
                "down": linear({f"{at}feed_forward{i}.linear2": n}, self.inner, shard=0, bias=self.bias),
            }
            for i in (1, 2)
        }
        result["attn"] = {
            "norm": self.norm("norm_self_att").weights(at),
            "q": linear({f"{a}q_proj": wide}, n, shard=0),
            "kv": linear({f"{a}k_proj": wide, f"{a}v_proj": wide}, n, shard=0),
            "out": linear({f"{a}o_proj": n}, wide, shard=0, bias=True),
            "far": Weight((Source(f"{a}rel_pos_emb.weight", (2 * self.reach + 1, self.head_dim)),)),
        }
        result["conv"] = {
            "norm": self.norm("norm_conv").weights(at),
            "up": linear({f"{c}pointwise_lin1": 2 * self.channels}, n, shard=0, bias=True),
            "depth": Weight((Source(f"{c}depthwise_conv.weight", (self.channels, 1, self.kernel)),)),
            "batch": {
                key: vector(f"{c}norm.{name}", self.channels)
                for key, name in (("weight", "weight"), ("bias", "bias"), ("mean", "running_mean"), ("var", "running_var"))
            },
            "down": linear({f"{c}pointwise_lin2": n}, self.channels, shard=0, bias=True),
        }
        result["norm"] = self.norm("norm_out").weights(at)
        return result
