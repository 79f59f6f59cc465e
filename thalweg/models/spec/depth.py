"""Frames of several codes: a model's token is the first code of a frame, and a small decoder predicts the others one after
another, from the hidden state that predicted the first (CSM)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from thalweg.models.spec.rope import Rope
from thalweg.models.spec.vision import plain
from thalweg.models.spec.vits import matrix
from thalweg.models.weights import Source, Weight, Weights, vector


@dataclass(frozen=True, slots=True, kw_only=True)
class DepthSpec:
    books: int
    """Codes of a frame, with the first."""
    codes: int
    """Of a codebook: the model's vocabulary."""
    end: int
    """A frame of this code, whatever its last one, ends a sequence. Its token is `codes`, which is no code."""
    outer: int
    """Hidden size of the model."""
    hidden: int
    layers: int
    heads: int
    kv_heads: int
    head_dim: int
    inner: int
    act: str
    eps: float
    rope: Rope
    bias: bool
    inner_bias: bool
    table: str
    """Of embeddings of all codebooks, one after the other: [books * codes, outer]. The model embeds a frame as their sum."""
    root: str
    head: str

    def weights(self, at: str) -> Weights:
        """at: the model's prefix. Whole on each rank."""
        n, b = self.hidden, f"{at}{self.root}"
        rest = (self.books - 1) * self.codes
        made: dict[str, Any] = {
            "table": Weight((Source(f"{at}{self.table}.weight", (rest, self.outer), self.codes, self.books * self.codes),)),
            "enter": matrix(f"{b}inputs_embeds_projector", n, self.outer, False),
            "layers": {i: self._layer(f"{b}layers.{i}.") for i in range(self.layers)},
            "norm": vector(f"{b}norm.weight", n),
            "head": Weight((Source(f"{at}{self.head}.weight", (self.books - 1, n, self.codes)),)),
        }
        return plain(made)

    def _layer(self, at: str) -> Weights:
        n, a, m = self.hidden, f"{at}self_attn.", f"{at}mlp."
        wide, narrow = self.heads * self.head_dim, self.kv_heads * self.head_dim
        return {
            "norm1": vector(f"{at}input_layernorm.weight", n),
            "q": matrix(f"{a}q_proj", wide, n, self.bias),
            "k": matrix(f"{a}k_proj", narrow, n, self.bias),
            "v": matrix(f"{a}v_proj", narrow, n, self.bias),
            "out": matrix(f"{a}o_proj", n, wide, self.bias),
            "norm2": vector(f"{at}post_attention_layernorm.weight", n),
            "gate": matrix(f"{m}gate_proj", self.inner, n, self.inner_bias),
            "up": matrix(f"{m}up_proj", self.inner, n, self.inner_bias),
            "down": matrix(f"{m}down_proj", n, self.inner, self.inner_bias),
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class TextTable:
    """Embeddings of a prompt's text, in a model whose own tokens are codes."""

    tokens: int
    hidden: int
    name: str

    def weights(self, at: str) -> Weights:
        return plain({"table": Weight((Source(f"{at}{self.name}.weight", (self.tokens, self.hidden)),))})
