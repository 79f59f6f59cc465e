"""Frames of several codes: a model's token is the first code of a frame, and a small decoder predicts the others one after
another, from the hidden state that predicted the first (CSM, Qwen3-Omni's talker)."""

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
    """A frame of this code, whatever its last one, ends a sequence. Its token is `codes`, which is no code. -1: none does."""
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
    """Of embeddings of all codebooks, one after the other: [books * codes, outer]. The model embeds a frame as their sum.
    `separate`: with the place of a codebook's number, from 0 for the second codebook."""
    root: str
    head: str
    separate: bool = False
    """Each codebook has separate tables of embeddings and of logits. False: one for all, and no logits table has rows."""
    projected: bool = True
    """Embeddings enter through a matrix. False: they have the decoder's width."""
    head_norms: bool = False
    """RMSNorm of q and k."""
    top_k: int = 0
    """Of sampled codes after the first, which then have a temperature of 1. 0: they are sampled as the first."""
    top_p: float = 1.0

    def weights(self, at: str) -> Weights:
        """at: the model's prefix. Whole on each rank."""
        n, b = self.hidden, f"{at}{self.root}"
        rest = (self.books - 1) * self.codes
        if self.separate:
            table = self._each(f"{at}{self.table}.weight", self.outer)
            head = self._each(f"{at}{self.head}.weight", n)
        else:
            table = (Source(f"{at}{self.table}.weight", (rest, self.outer), self.codes, self.books * self.codes),)
            head = (Source(f"{at}{self.head}.weight", (self.books - 1, n, self.codes)),)
        result: dict[str, Any] = {
            "table": Weight(table),
            "layers": {i: self._layer(f"{b}layers.{i}.") for i in range(self.layers)},
            "norm": vector(f"{b}norm.weight", n),
            "head": Weight(head),
        }
        if self.projected:
            result["enter"] = matrix(f"{b}inputs_embeds_projector", n, self.outer, False)
        return plain(result)

    def _each(self, name: str, width: int) -> tuple[Source, ...]:
        """name: with {} for the number of the codebook."""
        return tuple(Source(name.format(i), (self.codes, width)) for i in range(self.books - 1))

    def _layer(self, at: str) -> Weights:
        n, a, m = self.hidden, f"{at}self_attn.", f"{at}mlp."
        wide, narrow = self.heads * self.head_dim, self.kv_heads * self.head_dim
        norms = {f"{c}_norm": vector(f"{a}{c}_norm.weight", self.head_dim) for c in "qk" if self.head_norms}
        return norms | {
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


@dataclass(frozen=True, slots=True, kw_only=True)
class PositionText:
    """A text with a token for each position of a sequence. Its projected embeddings are added to those of codes."""

    tokens: int
    width: int
    """Of the embeddings: the hidden size of the model that has written the text."""
    inner: int
    outer: int
    """Hidden size of the model."""
    act: str
    pad: int
    """The token of positions behind the text."""
    table: str
    text: str
    """The projection of the embeddings, two matrices."""
    states: str
    """The same of hidden states of that model, which replace a text's vectors at placeholders of media."""

    def weights(self, at: str) -> Weights:
        result: dict[str, Any] = {"table": Weight((Source(f"{at}{self.table}.weight", (self.tokens, self.width)),))}
        for key, name in (("text", self.text), ("states", self.states)):
            result[key] = {
                "up": matrix(f"{at}{name}.linear_fc1", self.inner, self.width, True),
                "down": matrix(f"{at}{name}.linear_fc2", self.outer, self.inner, True),
            }
        return plain(result)


@dataclass(frozen=True, slots=True, kw_only=True)
class CodeRows:
    """The rows of a stored vocabulary that a model of codes uses, in this order: the codes, the token that ends a sequence, and
    tokens of prompts. A last token has a vector of zeros. The output matrix has the codes and the end."""

    stored: int
    codes: int
    end: int
    prompt: tuple[int, ...]

    @property
    def vocab(self) -> int:
        return self.codes + 2 + len(self.prompt)

    @property
    def nothing(self) -> int:
        """The token with a vector of zeros."""
        return self.vocab - 1

    def embedding(self, name: str, width: int) -> tuple[Source, ...]:
        rows = (Source(name, (1, width), row, self.stored) for row in self.prompt)
        return (*self.head(name, width), *rows, Source(f"{name}.nothing", (1, width), absent=True))

    def head(self, name: str, width: int) -> tuple[Source, ...]:
        return Source(name, (self.codes, width), 0, self.stored), Source(name, (1, width), self.end, self.stored)
