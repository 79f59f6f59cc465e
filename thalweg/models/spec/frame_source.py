"""A speech encoder that reads samples in frames, and attends within windows."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from thalweg.models.spec.norm import LayerNorm
from thalweg.models.spec.speech import SpeechEncoder
from thalweg.models.spec.vision import plain
from thalweg.models.weights import Source, TensorView, Weight, Weights, linear, vector

TAPS, STRIDE = 5, 2
"""Of both convolutions."""


def count_sources(frames: int) -> int:
    """Vectors of so many frames."""
    for _ in range(2):
        frames = (frames - 1) // STRIDE + 1
    return frames


@dataclass(frozen=True, slots=True, kw_only=True)
class FrameSource(SpeechEncoder):
    """Frames of samples, normalised and compressed by asinh, two causal convolutions, and layers without positions, whose
    attention sees a window. Then learned positions, and a matrix to the decoder's size. A row of features is the number of
    samples, and the samples."""

    form: str = "start"
    starts: bool = True
    bins: int = 0
    longest: int
    """Hundredths of a second of the longest clip."""
    frame: int
    """Samples of a frame."""
    heads: int
    head_dim: int
    inner: int
    windows: tuple[tuple[int, int], ...]
    """Of each layer: states that a state sees up to itself, and one more than those after it."""
    bias: bool
    """Of attention."""
    rows: int
    """Of the learned positions."""
    projected: int
    """Outputs of the matrix. 0: there is none."""
    eps: float = 1e-5

    @property
    def frames(self) -> int:
        return self.longest

    def normalize(self, name: str) -> LayerNorm:
        return LayerNorm(name, self.hidden, self.eps, bias=False, offset=1.0)

    def weights(self, at: str) -> Weights:
        n, root, at = self.hidden, at, f"{at}{self.name}"
        e = f"{at}embedder."
        result: dict[str, Any] = {
            "scale": Weight((Source(f"{e}comp.log_k.value", (1,), within=TensorView(f"{e}comp.log_k", ())),)),
            "enter": linear({f"{e}linear": n}, self.frame, shard=0),
            "convs": {
                i: {
                    "kernel": Weight((Source(f"{e}conv{i + 1}.weight", (outputs, inputs, TAPS)),)),
                    "bias": vector(f"{e}conv{i + 1}.bias", outputs),
                }
                for i, (inputs, outputs) in enumerate(((n, 2 * n), (2 * n, n)))
            },
            "layers": {i: self._layer(f"{at}layers.{i}.") for i in range(len(self.windows))},
            "norm": self.normalize("final_norm").weights(at),
            "places": Weight((Source(f"{root}decoder.pos_emb.weight", (self.rows, n)),)),
        }
        if self.projected:
            result["out"] = linear({f"{root}decoder.proj": self.projected}, n, shard=0)
        return plain(result)

    def _layer(self, at: str) -> Weights:
        n, inside, a = self.hidden, self.heads * self.head_dim, f"{at}self_attn."
        return {
            "norm1": self.normalize("input_layernorm").weights(at),
            "qkv": linear({f"{a}{x}_proj": inside for x in "qkv"}, n, shard=0, bias=self.bias),
            "out": linear({f"{a}o_proj": n}, inside, shard=0, bias=self.bias),
            "norm2": self.normalize("post_attention_layernorm").weights(at),
            "up": linear({f"{at}mlp.fc1": self.inner}, n, shard=0, bias=True),
            "down": linear({f"{at}mlp.fc2": n}, self.inner, shard=0, bias=True),
        }
