"""The first parts of audio encoders: from a clip to the states that layers read."""

from __future__ import annotations

from dataclasses import dataclass
from math import prod
from typing import Any

from thalweg.models.weights import Source, Weight, Weights, linear, vector


@dataclass(frozen=True, slots=True, kw_only=True)
class SampleConvolutions:
    """Convolutions over samples, and a projection (wav2vec 2.0)."""

    convs: tuple[tuple[int, int, int], ...]
    """Outputs, taps and stride of each."""
    bias: bool
    act: str
    each_normed: bool
    """A layer norm follows each. False: the first has a norm of each channel over time."""
    normed: bool
    """A layer norm precedes the projection to `hidden`."""
    hidden: int
    eps: float
    norm: str = "feature_projection.layer_norm"
    projection: str = "feature_projection.projection"
    """"": the last convolution has `hidden` outputs."""

    @property
    def stride(self) -> int:
        """Samples of a state."""
        return prod(stride for _, _, stride in self.convs)

    def weights(self, at: str) -> Weights:
        convs: dict[int, Any] = {}
        inputs = 1
        for i, (outputs, taps, _) in enumerate(self.convs):
            name = f"{at}feature_extractor.conv_layers.{i}"
            convs[i] = convolution(f"{name}.conv", (outputs, inputs, taps), self.bias)
            if self.each_normed or not i:
                convs[i]["norm"] = scale_shift(f"{name}.layer_norm", outputs)
            inputs = outputs
        result: dict[str, Any] = {"convs": convs}
        if self.projection:
            result["enter"] = linear({f"{at}{self.projection}": self.hidden}, inputs, shard=0, bias=True)
        if self.normed:
            result["entering"] = scale_shift(f"{at}{self.norm}", inputs)
        return result


@dataclass(frozen=True, slots=True, kw_only=True)
class FrameConvolutions:
    """A linear layer, two convolutions over frames, and a linear layer (LASR)."""

    bins: int
    hidden: int
    channels: int
    taps: int
    stride: int

    def weights(self, at: str) -> Weights:
        n, c, at = self.hidden, self.channels, f"{at}subsampler."
        return {
            "first": linear({f"{at}dense_0": n}, self.bins, shard=0, bias=True),
            "convs": {
                0: convolution(f"{at}conv_0", (n, n, self.taps)),
                1: convolution(f"{at}conv_1", (c, n, self.taps)),
            },
            "enter": linear({f"{at}dense_1": n}, c, shard=0, bias=True),
        }  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class FrameProjection:
    """A layer norm of frames, and a projection (w2v-BERT)."""

    inputs: int
    hidden: int
    eps: float

    def weights(self, at: str) -> Weights:
        at = f"{at}feature_projection."
        return {
            "entering": scale_shift(f"{at}layer_norm", self.inputs),
            "enter": linear({f"{at}projection": self.hidden}, self.inputs, shard=0, bias=True),
        }


Entrance = SampleConvolutions | FrameConvolutions | FrameProjection


def convolution(name: str, shape: tuple[int, ...], bias: bool = True) -> dict[str, Any]:
    """A convolution's kernel, and its bias."""
    result = {"kernel": Weight((Source(f"{name}.weight", shape),))}
    return result | ({"bias": vector(f"{name}.bias", shape[0])} if bias else {})


def scale_shift(name: str, size: int, bias: bool = True) -> dict[str, Weight]:
    """A norm's weight, and its bias."""
    result = {"scale": vector(f"{name}.weight", size)}
    return result | ({"shift": vector(f"{name}.bias", size)} if bias else {})
