"""The encoder of wav2vec 2.0 (Baevski et al. 2020, https://arxiv.org/abs/2006.11477) and its relatives: convolutions over
samples, positions by a convolution, and layers in which everything sees everything."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

from thalweg.models.spec.entrances import SampleConvolutions, convolution
from thalweg.models.spec.norm import LayerNorm
from thalweg.models.spec.transcript import TranscriptHead
from thalweg.models.spec.vision import plain
from thalweg.models.weights import Source, Weight, Weights, linear, vector


@dataclass(frozen=True, slots=True, kw_only=True)
class PlaceConvolution:
    """Grouped convolutions over the frames, whose outputs are added as positions."""

    taps: int
    groups: int
    form: Literal["weight norm", "batch norm", "stack"]
    """weight norm: one, whose matrices of each tap have learned lengths. batch norm: one, behind a batch norm. stack: several,
    each followed by a layer norm without weights."""
    layers: int = 1
    name: str = "encoder.pos_conv_embed."

    def weights(self, at: str, hidden: int) -> Weights:
        at, shape = f"{at}{self.name}", (hidden, hidden // self.groups, self.taps)
        if self.form == "stack":
            return {i: convolution(f"{at}layers.{i}.conv", shape) for i in range(self.layers)}
        if self.form == "batch norm":
            parts = (("weight", "weight"), ("bias", "bias"), ("mean", "running_mean"), ("var", "running_var"))
            batch = {key: vector(f"{at}batch_norm.{name}", hidden) for key, name in parts}
            return {0: convolution(f"{at}conv", shape), "batch": batch}
        lengths = Weight((Source(f"{at}conv.parametrizations.weight.original0", (1, 1, self.taps)),))
        kernel = Weight((Source(f"{at}conv.parametrizations.weight.original1", shape),))
        return {0: {"kernel": kernel, "lengths": lengths, "bias": vector(f"{at}conv.bias", hidden)}}


@dataclass(frozen=True, slots=True, kw_only=True)
class Wav2VecSpec:
    samples: SampleConvolutions
    hidden: int
    layers: int
    heads: int
    inner: int
    act: str
    places: PlaceConvolution
    before: bool
    """Norms precede the parts of a layer. False: they follow the additions."""
    eps: float
    buckets: int = 0
    """Of distances, each with a learned bias of attention scores that a gate scales (WavLM: Chen et al. 2021,
    https://arxiv.org/abs/2110.13900). 0: none."""
    distance: int = 0
    """The last bucket begins at it."""
    frames: int
    """Of the longest clip, after the convolutions."""
    head: TranscriptHead | None
    """None: the states are the result."""
    root: str
    adapter: int = 0
    """Inner values of a part behind each layer, added to it (MMS: Pratap et al. 2023, https://arxiv.org/abs/2305.13516).
    Requires `before`. 0: none."""
    squeeze: int = 1
    """Neighbouring states that layers read as one (SEW: Wu et al. 2021, https://arxiv.org/abs/2109.06870)."""

    @property
    def width(self) -> int:
        """As of `VisionSpec`."""
        return 1

    def norm(self, name: str) -> LayerNorm:
        return LayerNorm(name, self.hidden, self.eps)

    def weights(self, hidden: int) -> Weights:
        """hidden: unused, as the result is a transcript. Parameters are whole on each rank, in the model's dtype."""
        at, n = self.root, self.hidden
        result: dict[str, Any] = {
            **self.samples.weights(at),
            "places": self.places.weights(at, n),
            "norm": self.norm("encoder.layer_norm").weights(at),
            "layers": {i: self._layer(f"{at}encoder.layers.{i}.", i) for i in range(self.layers)},
        }
        if self.head is not None:
            result["head"] = self.head.weights(n)
        if self.squeeze > 1:
            result["spread"] = linear({f"{at}encoder.upsample.projection": n * self.squeeze}, n, shard=0, bias=True)
        return plain(result)

    def _layer(self, at: str, i: int) -> Weights:
        n, a = self.hidden, f"{at}attention."
        result: dict[str, Any] = {
            "norm1": self.norm("layer_norm").weights(at),
            "qkv": linear({f"{a}{x}_proj": n for x in "qkv"}, n, shard=0, bias=True),
            "out": linear({f"{a}out_proj": n}, n, shard=0, bias=True),
            "norm2": self.norm("final_layer_norm").weights(at),
            "up": linear({f"{at}feed_forward.intermediate_dense": self.inner}, n, shard=0, bias=True),
            "down": linear({f"{at}feed_forward.output_dense": n}, self.inner, shard=0, bias=True),
        }
        if self.adapter:
            inside = f"{at}adapter_layer."
            result["adapter"] = {
                "norm": self.norm("norm").weights(inside),
                "up": linear({f"{inside}linear_1": self.adapter}, n, shard=0, bias=True),
                "down": linear({f"{inside}linear_2": n}, self.adapter, shard=0, bias=True),
            }
        if self.buckets:
            result["gate"] = linear({f"{a}gru_rel_pos_linear": 8}, n // self.heads, shard=0, bias=True)
            result["share"] = Weight((Source(f"{a}gru_rel_pos_const", (1, self.heads, 1, 1)),))
            if not i:
                result["far"] = Weight((Source(f"{a}rel_attn_embed.weight", (self.buckets, self.heads)),))
        return result
