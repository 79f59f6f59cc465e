"""The audio encoder of Phi-4-multimodal (Abouelenin et al. 2025, https://arxiv.org/abs/2503.01743): convolutions that join
frames of a spectrum, conformer layers with a learned bias for each distance, and two projectors."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from thalweg.models.spec.norm import LayerNorm
from thalweg.models.spec.transcript import pointwise
from thalweg.models.spec.vision import plain
from thalweg.models.weights import Source, Weight, Weights, linear, vector

PROJECTORS = ("speech", "vision_speech")
"""Of clips, and of clips in a prompt with images."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WindowConformerSpec:
    """Layers see windows of `window` states of a longer clip. The last window is filled up with zeros, which they see too."""

    bins: int
    """Of the spectrum."""
    hidden: int
    layers: int
    heads: int
    inner: int
    acts: tuple[str, str, str, str]
    """Of feed-forward parts, of the gate of a convolution, behind a convolution, and of the convolutions before the layers."""
    channels: int
    """Of a layer's convolution."""
    multiple: int
    """Outputs of its depthwise convolution for each channel."""
    outputs: int
    """Of its pointwise convolution, and as many behind it."""
    kernel: int
    """Frames of a convolution, which reads no later frame."""
    first: int
    """Channels of the convolutions before the layers."""
    halvings: int
    """Convolutions before the layers, each with a stride of 2."""
    reach: int
    """Distances that have separate biases, on each side."""
    symmetric: bool
    """A distance and its negative share a bias."""
    window: int = 500
    eps: float = 1e-5
    root: str = "model.embed_tokens_extend.audio_embed."

    @property
    def width(self) -> int:
        """As of `VisionSpec`."""
        return 1

    @property
    def final(self) -> int:
        """Bins after the convolutions."""
        bins = self.bins
        for _ in range(self.halvings):
            bins = (bins + 1) // 2
        return bins

    def norm(self, name: str) -> LayerNorm:
        return LayerNorm(name, self.hidden, self.eps)

    def weights(self, hidden: int) -> Weights:
        """hidden: the language model's. Every parameter is whole on each rank, and held in the model's dtype."""
        at, n, c = f"{self.root}encoder.", self.hidden, self.first
        convs: dict[int, Any] = {0: _conv(f"{at}embed.conv.0", 1, c, 3)}
        for i in range(1, self.halvings):
            convs[2 * i - 1] = _conv(f"{at}embed.conv.{3 * i - 1}", 1, c, 3)
            convs[2 * i] = _conv(f"{at}embed.conv.{3 * i}", c, c, 1)
        rows = self.reach * (1 if self.symmetric else 2)
        return plain({
            "centre": vector(f"{at}encoder_embedding.global_mean", self.bins),
            "inverse": vector(f"{at}encoder_embedding.global_invstd", self.bins),
            "convs": convs,
            "enter": linear({f"{at}embed.out": n}, c * self.final, shard=0, bias=True),
            "far": Weight((Source(f"{at}relative_attention_bias_layer.bias_values.weight", (rows, self.heads)),)),
            "layers": {i: self._layer(f"{at}encoders.{i}.") for i in range(self.layers)},
            "projectors": {
                i: {
                    "up": linear({f"{self.root}up_proj_for_{name}": hidden}, n, shard=0, bias=True),
                    "down": linear({f"{self.root}down_proj_for_{name}": hidden}, hidden, shard=0, bias=True),
                } for i, name in enumerate(PROJECTORS)
            },
        })  # fmt: skip

    def _layer(self, at: str) -> Weights:
        n = self.hidden
        result: dict[str, Any] = {
            name: {
                "norm": self.norm("layer_norm").weights(f"{at}feed_forward_{name}."),
                "up": linear({f"{at}feed_forward_{name}.gate_up_proj": 2 * self.inner}, n, shard=0, bias=True),
                "down": linear({f"{at}feed_forward_{name}.down_proj": n}, self.inner, shard=0, bias=True),
            }
            for name in ("in", "out")
        }
        result["attn"] = {
            "norm": self.norm("layer_norm_att").weights(at),
            "qkv": linear({f"{at}self_attn.{x}_proj": n for x in "qkv"}, n, shard=0, bias=True),
            "out": linear({f"{at}self_attn.o_proj": n}, n, shard=0, bias=True),
        }
        c, wide = f"{at}conv.", n * self.multiple
        result["conv"] = {
            "norm": self.norm("layer_norm").weights(c),
            "up": pointwise(f"{c}glu.ext_pw_conv_1d", n, 2 * self.channels, True),
            **{key: Weight((Source(f"{c}glu.{key}", (1, self.channels, 1)),)) for key in ("b1", "b2")},
            "depth": {
                "kernel": Weight((Source(f"{c}dw_sep_conv_1d.dw_conv.weight", (wide, 1, self.kernel)),)),
                "bias": vector(f"{c}dw_sep_conv_1d.dw_conv.bias", wide),
            },
            "point": pointwise(f"{c}dw_sep_conv_1d.pw_conv", wide, self.outputs, True),
            "down": pointwise(f"{c}ext_pw_conv_1d", n, n, True),
        }
        result["norm"] = self.norm("layer_norm").weights(at)
        return result


def _conv(name: str, inputs: int, outputs: int, taps: int) -> dict[str, Weight]:
    return {
        "kernel": Weight((Source(f"{name}.weight", (outputs, inputs, taps, taps)),)),
        "bias": vector(f"{name}.bias", outputs),
    }  # fmt: skip
