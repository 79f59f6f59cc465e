"""Transcripts read from the states of an audio encoder without a decoder: CTC (Graves et al. 2006) and transducers
(Graves 2012, https://arxiv.org/abs/1211.3711; with durations: Xu et al. 2023, https://arxiv.org/abs/2304.06795)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from thalweg.models.weights import Source, Weight, Weights, linear, vector

COLUMNS = 4
"""Numbers of a token: its id, its log-probability, its first frame, and the frame after its last."""


def transcript_width(tokens: int) -> int:
    """Numbers of a transcript of at most so many tokens: their count, and `COLUMNS` of each."""
    return 1 + COLUMNS * tokens


@dataclass(frozen=True, slots=True, kw_only=True)
class CTCHead:
    """The most probable class of each frame. Equal neighbours are one token, and blanks are none."""

    labels: int
    """With the blank."""
    blank: int
    name: str
    pointwise: bool = False
    """The matrix is stored as a convolution over single frames."""
    per_frame: ClassVar[int] = 1
    """Most tokens of a frame."""

    def weights(self, hidden: int) -> Weights:
        if not self.pointwise:
            return {"out": linear({self.name: self.labels}, hidden, shard=0, bias=True)}
        return {"out": pointwise(self.name, hidden, self.labels)}


@dataclass(frozen=True, slots=True, kw_only=True)
class TransducerHead:
    """A network of the previous tokens (LSTM), joined with a frame, predicts the next token, or a blank. With durations it
    predicts the frames until the next prediction, too."""

    labels: int
    """With the blank."""
    blank: int
    hidden: int
    """Of the LSTM layers, and of the joint network."""
    layers: int
    act: str
    durations: tuple[int, ...] = ()
    """(): a blank advances one frame, and a token none."""
    most: int = 10
    """Tokens of one frame, without durations, after which it advances."""
    per_frame: ClassVar[int] = 2
    """Mean tokens of a frame, at most: longer transcripts are cut. Speech has fewer than one."""

    def weights(self, hidden: int) -> Weights:
        n, four = self.hidden, 4 * self.hidden
        return {
            "enter": linear({"encoder_projector": n}, hidden, shard=0, bias=True),
            "table": Weight((Source("decoder.embedding.weight", (self.labels, n)),)),
            "lstm": {
                i: {
                    "input": Weight((Source(f"decoder.lstm.weight_ih_l{i}", (four, n)),)),
                    "state": Weight((Source(f"decoder.lstm.weight_hh_l{i}", (four, n)),)),
                    "input_bias": vector(f"decoder.lstm.bias_ih_l{i}", four),
                    "state_bias": vector(f"decoder.lstm.bias_hh_l{i}", four),
                }
                for i in range(self.layers)
            },
            "join": linear({"decoder.decoder_projector": n}, n, shard=0, bias=True),
            "out": linear({"joint.head": self.labels + len(self.durations)}, n, shard=0, bias=True),
        }


def pointwise(name: str, inputs: int, outputs: int, bias: bool = True) -> dict[str, Weight]:
    """A convolution over single frames, as the matrix that it is."""
    from thalweg.models.spec.vision import convolution

    result = {"weight": convolution(name, outputs, (inputs, 1))}
    return result | ({"bias": vector(f"{name}.bias", outputs)} if bias else {})


TranscriptHead = CTCHead | TransducerHead
