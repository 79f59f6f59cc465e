"""The encoder of a VQ-VAE: an image's pixels in, embeddings of vocabulary tokens out (Gafni et al. 2022,
https://arxiv.org/abs/2203.13131)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from thalweg.models.spec.vision import ProjectorSpec, plain
from thalweg.models.weights import Source, Weight, Weights, vector


@dataclass(frozen=True, slots=True, kw_only=True)
class VqEncoderSpec:
    """Residual blocks of convolutions, on grids that are halved from level to level. The nearest vector of a codebook is a
    token of the vocabulary, and the result is its embedding."""

    channels: int
    """Of the first convolution."""
    widths: tuple[int, ...]
    """Channels of each level."""
    rows: int
    """Of patches of the square image. Each yields a vector."""
    blocks: int
    """Residual blocks of each level."""
    attends: frozenset[int]
    """Levels with attention behind each block."""
    middle: bool
    """Is there attention between the last two blocks?"""
    latent: int
    """Channels of the encoder's output."""
    code: int
    """Values of a vector of the codebook."""
    tokens: tuple[int, ...]
    """The token of each vector of the codebook."""
    embedding: str
    """The tensor [vocab, hidden] of token embeddings."""
    vocab: int
    root: str = "model.vqmodel."
    shrinks: None = None
    """As of `VisionSpec`, as are the next."""

    @property
    def projector(self) -> ProjectorSpec:
        """Without layers."""
        return ProjectorSpec(root="", steps=())

    @property
    def width(self) -> int:
        return 1

    @property
    def first_token(self) -> int:
        return min(self.tokens)

    def weights(self, hidden: int) -> Weights:
        """hidden: the language model's. Every parameter is whole on each rank, and held in the model's dtype."""
        at, last = f"{self.root}encoder.", self.widths[-1]
        rows = max(self.tokens) + 1 - self.first_token
        middle: dict[str, Any] = {f"block_{i}": _block(f"{at}mid.block_{i}.", last, last) for i in (1, 2)}
        if self.middle:
            middle["attn_1"] = _attention(f"{at}mid.attn_1.", last)
        return plain({
            "enter": _conv(f"{at}conv_in", self.channels, 3, 3),
            "levels": {i: self._level(f"{at}down.{i}.", i) for i in range(len(self.widths))},
            "middle": middle,
            "norm": _norm(f"{at}norm_out", last),
            "leave": _conv(f"{at}conv_out", self.latent, last, 3),
            "quant": _conv(f"{self.root}quant_conv", self.code, self.latent, 1),
            "codebook": Weight((Source(f"{self.root}quantize.embedding.weight", (len(self.tokens), self.code)),)),
            "embedding": Weight((Source(self.embedding, (rows, hidden), self.first_token, self.vocab),)),
        })  # fmt: skip

    def _level(self, at: str, level: int) -> Weights:
        n, inputs = self.widths[level], (self.channels, *self.widths)[level]
        result: dict[str, Any] = {
            "blocks": {i: _block(f"{at}block.{i}.", inputs if i == 0 else n, n) for i in range(self.blocks)},
        }
        if level in self.attends:
            result["attns"] = {i: _attention(f"{at}attn.{i}.", n) for i in range(self.blocks)}
        if level + 1 < len(self.widths):
            result["shrink"] = _conv(f"{at}downsample.conv", n, n, 3)
        return result


def _block(at: str, inputs: int, outputs: int) -> Weights:
    result: dict[str, Any] = {
        "norm1": _norm(f"{at}norm1", inputs), "conv1": _conv(f"{at}conv1", outputs, inputs, 3),
        "norm2": _norm(f"{at}norm2", outputs), "conv2": _conv(f"{at}conv2", outputs, outputs, 3),
    }  # fmt: skip
    return result if inputs == outputs else {**result, "shortcut": _conv(f"{at}nin_shortcut", outputs, inputs, 1)}


def _attention(at: str, n: int) -> Weights:
    return {"norm": _norm(f"{at}norm", n), **{key: _conv(f"{at}{key}", n, n, 1) for key in ("q", "k", "v", "proj_out")}}


def _norm(name: str, size: int) -> Weights:
    return {"weight": vector(f"{name}.weight", size, fill="ones"), "bias": vector(f"{name}.bias", size)}


def _conv(name: str, outputs: int, inputs: int, side: int) -> Weights:
    kernel = Weight((Source(f"{name}.weight", (outputs, inputs, side, side)),))
    return {"weight": kernel, "bias": vector(f"{name}.bias", outputs)}
