"""Fun-ASR-Nano's audio encoder (SenseVoice): layers of attention with a convolution over values, and a projector with layers
behind it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from thalweg.models.spec.entrances import scale_shift
from thalweg.models.spec.vision import plain
from thalweg.models.weights import Source, Weight, Weights, linear


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryLayer:
    """Attention, maybe with a depthwise convolution over its values (FSMN, Zhang et al. 2018, https://arxiv.org/abs/1803.05030),
    and a feed-forward part."""

    inputs: int
    hidden: int
    heads: int
    inner: int
    act: str
    eps: float
    taps: int = 0
    """Of the convolution. 0: there is none."""
    normed: bool = False
    """A norm follows."""

    def weights(self, at: str) -> Weights:
        n, a = self.hidden, f"{at}self_attn."
        result: dict[str, Any] = {
            "norm1": scale_shift(f"{at}input_layernorm", self.inputs),
            "qkv": linear({f"{a}{x}_proj": n for x in "qkv"}, self.inputs, shard=0, bias=True),
            "out": linear({f"{a}o_proj": n}, n, shard=0, bias=True),
            "norm2": scale_shift(f"{at}post_attention_layernorm", n),
            "up": linear({f"{at}mlp.fc1": self.inner}, n, shard=0, bias=True),
            "down": linear({f"{at}mlp.fc2": n}, self.inner, shard=0, bias=True),
        }
        if self.taps:
            result["memory"] = Weight((Source(f"{a}fsmn.conv.weight", (n, 1, self.taps)),))
        if self.normed:
            result["last"] = scale_shift(f"{at}final_layernorm", n)
        return result


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryEncoderSpec:
    """Frames are stacked spectra. A frame gives a vector."""

    encoder: tuple[MemoryLayer, ...]
    adaptor: tuple[MemoryLayer, ...]
    inner: int
    """Of the projector between both."""
    act: str
    """The same."""
    root: str = "model."

    @property
    def width(self) -> int:
        """As of `VisionSpec`."""
        return 1

    @property
    def layers(self) -> int:
        return len(self.encoder)

    def weights(self, hidden: int) -> Weights:
        """hidden: the language model's. Every parameter is whole on each rank, and held in the model's dtype."""
        at = f"{self.root}multi_modal_projector."
        return plain({
            "layers": {i: each.weights(f"{self.root}audio_tower.layers.{i}.") for i, each in enumerate(self.encoder)},
            "one": linear({f"{at}linear_1": self.inner}, self.encoder[-1].hidden, shard=0, bias=True),
            "two": linear({f"{at}linear_2": hidden}, self.inner, shard=0, bias=True),
            "adaptor": {i: each.weights(f"{at}layers.{i}.") for i, each in enumerate(self.adaptor)},
        })  # fmt: skip
