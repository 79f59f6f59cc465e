"""An audio encoder of codes: Mimi's encoder (Defossez et al. 2024, https://arxiv.org/abs/2410.00037), and the embeddings of the
codes of a frame, of which the sum is the vector of a token (Kyutai's speech to text)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from thalweg.models.spec.mimi import MimiSpec
from thalweg.models.spec.vision import plain
from thalweg.models.spec.vits import convolution
from thalweg.models.weights import Source, Weight, Weights


@dataclass(frozen=True, slots=True, kw_only=True)
class MimiEncoderSpec:
    """The first vector is that of the frame before any audio: `silent` in all codebooks."""

    codec: MimiSpec
    table: str
    """The tensor of embeddings: of text tokens, then of the codes of each codebook."""
    table_rows: int
    first: int
    """The row of the first codebook's first code."""
    rows: int
    """Rows of a codebook."""
    silent: int
    """Code of the frame before any audio."""
    begin: tuple[int, int] | None
    """Rows of two text tokens: the prompt has the second, and the model reads the first one, which is no token of its
    vocabulary. None: the prompt has the token that the model reads."""

    @property
    def layers(self) -> int:
        return self.codec.layers

    @property
    def width(self) -> int:
        """As of `VisionSpec`."""
        return 1

    @property
    def hop(self) -> int:
        """Samples of a place of the transformer."""
        return self.codec.width // self.codec.stride

    @property
    def reach(self) -> int:
        """Samples before its own that a place of the convolutions' output depends on, rounded up to whole places."""
        s, jump, result = self.codec, 1, self.codec.taps - 1
        for ratio in reversed(s.ratios):
            result += sum((s.block_taps - 1) * s.growth**j for j in range(s.blocks)) * jump + (2 * ratio - 1) * jump
            jump *= ratio
        return -(-(result + (s.last_taps - 1) * jump) // jump) * jump

    def weights(self, hidden: int) -> Weights:
        """hidden: the language model's. Whole on each rank."""
        s, at = self.codec, self.codec.root
        result: dict[str, Any] = {
            **self._convolutions(f"{at}encoder.layers."),
            "layers": s.transformer(f"{at}encoder_transformer."),
            **{
                kind: s.quantizer(f"{at}quantizer.{kind}_residual_vector_quantizer.", books, "input_proj")
                for kind, books in (("semantic", s.semantic), ("acoustic", s.books - s.semantic))
            },
            "codes": Weight((Source(self.table, (s.books * self.rows, hidden), self.first, self.table_rows),)),
        }
        if s.stride > 1:
            result["unite"] = convolution(f"{at}downsample.conv", s.hidden, s.hidden, 2 * s.stride, bias=False)
        if self.begin is not None:
            result["begin"] = Weight(tuple(Source(self.table, (1, hidden), row, self.table_rows) for row in self.begin))
        return plain(result)

    def _convolutions(self, at: str) -> dict[str, Any]:
        s, n, number, downs = self.codec, self.codec.filters, 1, dict[int, Any]()
        result: dict[str, Any] = {"enter": convolution(f"{at}0.conv", n, 1, s.taps)}
        for i, ratio in enumerate(reversed(s.ratios)):
            inner = n // s.compress
            blocks = {
                j: {
                    "first": convolution(f"{at}{number + j}.block.1.conv", inner, n, s.block_taps),
                    "second": convolution(f"{at}{number + j}.block.3.conv", n, inner, 1),
                }
                for j in range(s.blocks)
            }
            number += s.blocks + 1  # an activation has a number, too
            downs[i] = {"blocks": blocks, "down": convolution(f"{at}{number}.conv", 2 * n, n, 2 * ratio)}
            n, number = 2 * n, number + 1
        return result | {"downs": downs, "leave": convolution(f"{at}{number + 1}.conv", s.hidden, n, s.last_taps)}
