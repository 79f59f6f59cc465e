"""FastConformer (Rekesh et al. 2023, https://arxiv.org/abs/2305.05084): convolutions that join eight frames of a spectrum, and
conformer layers with relative positions (Dai et al. 2019, https://arxiv.org/abs/1901.02860)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from thalweg.models.spec.conformer_layer import ConformerLayer
from thalweg.models.spec.transcript import TranscriptHead
from thalweg.models.spec.vision import plain
from thalweg.models.weights import Source, Weight, Weights, linear, vector


@dataclass(frozen=True, slots=True, kw_only=True)
class LanguagePrompt:
    """Two linear layers of a state and the one-hot vector of a language, before the head."""

    languages: int
    """Sizes of the vector."""
    language: int
    """Of all clips."""
    inner: int
    name: str = "prompt_projector."

    def weights(self, hidden: int) -> Weights:
        return {
            "up": linear({f"{self.name}linear_1": self.inner}, hidden + self.languages, shard=0, bias=True),
            "down": linear({f"{self.name}linear_2": hidden}, self.inner, shard=0, bias=True),
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class FastConformerSpec:
    bins: int
    """Of the spectrum."""
    hidden: int
    layers: int
    heads: int
    inner: int
    act: str
    bias: bool
    """Of attention and feed-forward parts."""
    kernel: int
    """Frames of a layer's convolution."""
    conv_bias: bool
    channels: int
    """Of the convolutions before the layers."""
    taps: int
    """Kernel size of these, along both axes."""
    stride: int
    halvings: int
    """Convolutions with a stride."""
    scale: float
    """Of the layers' input."""
    frames: int
    """Of the longest clip, after the convolutions."""
    head: TranscriptHead | None
    """None: the states are the result."""
    eps: float = 1e-5
    causal: bool = False
    """Convolutions read no later frame, up to their stride, and those of layers have layer norms (Noroozi et al. 2023,
    https://arxiv.org/abs/2312.17279)."""
    chunk: int = 0
    """As of `ConformerLayer`."""
    chunks: int = 0
    prompt: LanguagePrompt | None = None
    root: str = "encoder."

    @property
    def width(self) -> int:
        """As of `VisionSpec`."""
        return 1

    @property
    def pads(self) -> tuple[int, int]:
        """Zeros before and behind the frames, and the bins, of a convolution."""
        return (self.taps - 1, self.stride - 1) if self.causal else ((self.taps - 1) // 2,) * 2

    def count_frames(self, frames: int) -> int:
        """Frames, or bins, after the convolutions."""
        for _ in range(self.halvings):
            frames = (frames + sum(self.pads) - self.taps) // self.stride + 1
        return frames

    @property
    def layer(self) -> ConformerLayer:
        """Of each layer."""
        return ConformerLayer(
            hidden=self.hidden, heads=self.heads, inner=self.inner, act=self.act, bias=self.bias, kernel=self.kernel,
            conv_bias=self.conv_bias, eps=self.eps, causal=self.causal, conv_norm="layer" if self.causal else "batch",
            chunk=self.chunk, chunks=self.chunks,
        )  # fmt: skip

    def weights(self, hidden: int) -> Weights:
        """hidden: unused, as the result is a transcript. Parameters are whole on each rank, in the model's dtype."""
        at, n, c = f"{self.root}subsampling.", self.hidden, self.channels
        convs: dict[int, Any] = {0: self._conv(f"{at}conv_in" if self.causal else f"{at}layers.0", 1, c, self.taps)}
        for i in range(1, self.halvings):
            one = (f"layers.{i - 1}.depthwise_conv", f"layers.{i - 1}.pointwise_conv")
            depth, point = one if self.causal else (f"layers.{3 * i - 1}", f"layers.{3 * i}")
            convs[2 * i - 1] = self._conv(f"{at}{depth}", 1, c, self.taps)
            convs[2 * i] = self._conv(f"{at}{point}", c, c, 1)
        result: dict[str, Any] = {
            "convs": convs,
            "enter": linear({f"{at}linear": n}, c * self.count_frames(self.bins), shard=0, bias=True),
            "layers": {i: self.layer.weights(f"{self.root}layers.{i}.") for i in range(self.layers)},
        }
        if self.prompt is not None:
            result["prompt"] = self.prompt.weights(n)
        if self.head is not None:
            result["head"] = self.head.weights(n)
        return plain(result)

    @staticmethod
    def _conv(name: str, inputs: int, outputs: int, taps: int) -> dict[str, Weight]:
        return {
            "kernel": Weight((Source(f"{name}.weight", (outputs, inputs, taps, taps)),)),
            "bias": vector(f"{name}.bias", outputs),
        }  # fmt: skip
