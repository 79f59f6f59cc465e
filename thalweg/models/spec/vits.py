"""VITS (Kim et al. 2021, https://arxiv.org/abs/2106.06103): a text encoder, durations, a flow and a vocoder. The whole model
is one network from characters to samples."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import prod
from typing import Any

from thalweg.models.spec.vision import plain
from thalweg.models.weights import Source, Weight, Weights, vector


@dataclass(frozen=True, slots=True, kw_only=True)
class VocoderSpec:
    """HiFi-GAN (Kong et al. 2020, https://arxiv.org/abs/2010.05646): transposed convolutions, each followed by the mean of
    residual blocks of several kernel sizes."""

    inputs: int
    channels: int
    """Before the first upsampling, which halves them, as each does."""
    rates: tuple[int, ...]
    kernels: tuple[int, ...]
    """Of the upsamplings."""
    block_kernels: tuple[int, ...]
    dilations: tuple[tuple[int, ...], ...]
    """Of each kernel size's block."""
    slope: float
    """Of leaky ReLU."""

    @property
    def hop(self) -> int:
        """Samples of a frame."""
        return prod(self.rates)

    def weights(self, at: str, condition: int) -> Weights:
        result: dict[str, Any] = {"enter": convolution(f"{at}conv_pre", self.channels, self.inputs, 7)}
        if condition:
            result["condition"] = convolution(f"{at}cond", self.channels, condition, 1)
        ups, blocks, n = dict[int, Any](), dict[int, Any](), self.channels
        for i, kernel in enumerate(self.kernels):
            name = f"{at}upsampler.{i}"
            taps = Weight((Source(f"{name}.weight", (n, n // 2, kernel)),))
            n //= 2
            ups[i] = {"kernel": taps, "bias": vector(f"{name}.bias", n)}
            for j, (size, steps) in enumerate(zip(self.block_kernels, self.dilations, strict=True)):
                at_block = i * len(self.block_kernels) + j
                blocks[at_block] = {
                    k: {
                        "first": convolution(f"{at}resblocks.{at_block}.convs1.{k}", n, n, size),
                        "second": convolution(f"{at}resblocks.{at_block}.convs2.{k}", n, n, size),
                    }
                    for k in range(len(steps))
                }
        result |= {"up": ups, "blocks": blocks, "leave": convolution(f"{at}conv_post", 1, n, 7, bias=False)}
        return result


@dataclass(frozen=True, slots=True, kw_only=True)
class VitsSpec:
    vocab: int
    hidden: int
    layers: int
    heads: int
    window: int
    """Distances up to it have learned vectors of keys and values."""
    bias: bool
    inner: int
    inner_kernel: int
    act: str
    eps: float
    flow: int
    """Numbers of a latent frame."""
    flows: int
    flow_layers: int
    flow_kernel: int
    flow_dilation: int
    stochastic: bool
    """Durations are drawn by a flow. False: they are predicted."""
    duration_kernel: int
    duration_filters: int
    """Without `stochastic`."""
    duration_flows: int
    duration_bins: int
    duration_bound: float
    duration_layers: int
    speakers: int
    condition: int
    """Numbers of a speaker's vector. 0: the model has one speaker."""
    vocoder: VocoderSpec
    pace: float
    """Speed at which a request's 1.0 speaks."""
    noise: float
    """Scale of the noise of latent frames."""
    duration_noise: float
    most_frames: int
    """Of the longest result."""

    @property
    def width(self) -> int:
        """Samples of a row of the result."""
        return self.vocoder.hop

    def weights(self) -> Weights:
        """All of the model, whole on each rank."""
        n = self.hidden
        result: dict[str, Any] = {
            "table": Weight((Source("text_encoder.embed_tokens.weight", (self.vocab, n)),)),
            "layers": {i: self._layer(f"text_encoder.encoder.layers.{i}.") for i in range(self.layers)},
            "project": convolution("text_encoder.project", 2 * self.flow, n, 1),
            "durations": self._flow_predictor() if self.stochastic else self._predictor(),
            "flows": {i: self._coupling(f"flow.flows.{i}.") for i in range(self.flows)},
            "vocoder": self.vocoder.weights("decoder.", self.condition),
        }
        if self.condition:
            result["speakers"] = Weight((Source("embed_speaker.weight", (self.speakers, self.condition)),))
        return plain(result)

    def _layer(self, at: str) -> Weights:
        n, a, f = self.hidden, f"{at}attention.", f"{at}feed_forward."
        near = (1, 2 * self.window + 1, n // self.heads)
        return {
            **{x: matrix(f"{a}{x}_proj", n, n, self.bias) for x in ("q", "k", "v", "out")},
            "near_k": Weight((Source(f"{a}emb_rel_k", near),)),
            "near_v": Weight((Source(f"{a}emb_rel_v", near),)),
            "norm1": scale_shift(f"{at}layer_norm", n),
            "up": convolution(f"{f}conv_1", self.inner, n, self.inner_kernel),
            "down": convolution(f"{f}conv_2", n, self.inner, self.inner_kernel),
            "norm2": scale_shift(f"{at}final_layer_norm", n),
        }

    def _flow_predictor(self) -> Weights:
        at, n = "duration_predictor.", self.hidden
        result: dict[str, Any] = {
            "enter": convolution(f"{at}conv_pre", n, n, 1),
            "dilated": self._dilation(f"{at}conv_dds."),
            "project": convolution(f"{at}conv_proj", n, n, 1),
            "translate": Weight((Source(f"{at}flows.0.translate", (2, 1)),)),
            "log_scale": Weight((Source(f"{at}flows.0.log_scale", (2, 1)),)),
            "flows": {
                i: {
                    "enter": convolution(f"{at}flows.{i}.conv_pre", n, 1, 1),
                    "dilated": self._dilation(f"{at}flows.{i}.conv_dds."),
                    "project": convolution(f"{at}flows.{i}.conv_proj", 3 * self.duration_bins - 1, n, 1),
                }
                for i in range(2, self.duration_flows + 1)
            },
        }
        return result | self._condition(at, n)

    def _predictor(self) -> Weights:
        at, n, m = "duration_predictor.", self.hidden, self.duration_filters
        result: dict[str, Any] = {
            "conv1": convolution(f"{at}conv_1", m, n, self.duration_kernel), "norm1": scale_shift(f"{at}norm_1", m),
            "conv2": convolution(f"{at}conv_2", m, m, self.duration_kernel), "norm2": scale_shift(f"{at}norm_2", m),
            "project": convolution(f"{at}proj", 1, m, 1),
        }  # fmt: skip
        return result | self._condition(at, n)

    def _condition(self, at: str, outputs: int) -> dict[str, Any]:
        return {"condition": convolution(f"{at}cond", outputs, self.condition, 1)} if self.condition else {}

    def _dilation(self, at: str) -> Weights:
        n = self.hidden
        return {
            i: {
                "dilated": convolution(f"{at}convs_dilated.{i}", n, 1, self.duration_kernel),
                "norm1": scale_shift(f"{at}norms_1.{i}", n),
                "pointwise": convolution(f"{at}convs_pointwise.{i}", n, n, 1),
                "norm2": scale_shift(f"{at}norms_2.{i}", n),
            }
            for i in range(self.duration_layers)
        }

    def _coupling(self, at: str) -> Weights:
        n, half, last = self.hidden, self.flow // 2, self.flow_layers - 1
        layers = {
            i: {
                "enter": normed_convolution(f"{at}wavenet.in_layers.{i}", 2 * n, n, self.flow_kernel),
                "leave": normed_convolution(f"{at}wavenet.res_skip_layers.{i}", n if i == last else 2 * n, n, 1),
            }
            for i in range(self.flow_layers)
        }
        result: dict[str, Any] = {
            "enter": convolution(f"{at}conv_pre", n, half, 1), "layers": layers,
            "leave": convolution(f"{at}conv_post", half, n, 1),
        }  # fmt: skip
        if self.condition:
            result["condition"] = normed_convolution(f"{at}wavenet.cond_layer", 2 * n * self.flow_layers, self.condition, 1)
        return result


def convolution(name: str, outputs: int, inputs: int, taps: int, bias: bool = True) -> dict[str, Weight]:
    result = {"kernel": Weight((Source(f"{name}.weight", (outputs, inputs, taps)),))}
    return result | ({"bias": vector(f"{name}.bias", outputs)} if bias else {})


def normed_convolution(name: str, outputs: int, inputs: int, taps: int) -> dict[str, Weight]:
    """Each output's matrix has a learned length (weight norm)."""
    return {
        "lengths": Weight((Source(f"{name}.parametrizations.weight.original0", (outputs, 1, 1)),)),
        "kernel": Weight((Source(f"{name}.parametrizations.weight.original1", (outputs, inputs, taps)),)),
        "bias": vector(f"{name}.bias", outputs),
    }


def matrix(name: str, outputs: int, inputs: int, bias: bool) -> dict[str, Weight]:
    result = {"matrix": Weight((Source(f"{name}.weight", (outputs, inputs)),))}
    return result | ({"bias": vector(f"{name}.bias", outputs)} if bias else {})


def scale_shift(name: str, size: int) -> dict[str, Weight]:
    return {"scale": vector(f"{name}.weight", size), "shift": vector(f"{name}.bias", size)}


def unused_names(spec: VitsSpec, conditioned: bool) -> Sequence[str]:
    """Prefixes of tensors for training only. conditioned: the files have layers for vectors of speakers."""
    found = ["posterior_encoder.", "duration_predictor.post_", "duration_predictor.flows.1."]
    if conditioned and not spec.condition:
        found += ["decoder.cond.", "duration_predictor.cond."]
        found += [f"flow.flows.{i}.wavenet.cond_layer." for i in range(spec.flows)]
    return found
