"""The decoder of a frame's codes, within the step that samples its first one."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any, Protocol

import torch
from torch.nn import functional

from thalweg.hal.ops.activation import activate
from thalweg.hal.parts.spoken import SpokenTokens
from thalweg.hal.parts.states import HiddenStates
from thalweg.hal.parts.utterance import Utterance
from thalweg.hal.step import SCRATCH, Array, Params, State, Step, StepBatch, StepResult
from thalweg.models import spec
from thalweg.models.layers.rotary import cos_sin_table
from thalweg.models.voices.convolutions import rotate
from thalweg.models.weights import ParamSpec, Weight

Parts = Mapping[Any, Any]
CODES = "codes"
"""Key of the state: i32[slots, tokens, books - 1], the codes after the first of each token that is a frame."""
SPOKEN = "spoken"
"""Key of the state: i32[slots, tokens], the text of each position, of models with a `PositionText`."""
STRIDE = 0x9E3779B1
"""Seeds of a frame's codes differ by multiples of it, so that their noise is independent."""


class Chooser(Protocol):
    """`Sampler.choose`."""

    def __call__(self, logits: Array, batch: StepBatch, seed: Array, position: Array, /) -> Array: ...


class DepthDecoder:
    """Holds no tensors: parameters are passed."""

    def __init__(self, s: spec.DepthSpec, weights: Parts, dtype: str) -> None:
        self.spec = s
        self.specs = _specs(weights, dtype)
        self._rope = cos_sin_table(s.rope.parameters, s.head_dim, s.rope.trained, s.books)

    def embed(self, p: Parts, codes: Array) -> Array:
        """codes i32[T, books - 1] -> [T, outer], the sum of their embeddings."""
        total: Array = functional.embedding(self._rows(codes), p["table"]).sum(1)
        return total

    def _rows(self, codes: Array) -> Array:
        s = self.spec
        return codes.clamp(0, s.codes - 1).long() + torch.arange(s.books - 1, device=codes.device) * s.codes

    def __call__(self, p: Parts, x: Array, first: Array, embedded: Array, batch: StepBatch, choose: Chooser) -> Array:
        """x [S, outer]: hidden states that the first codes were sampled from. first: i32[S]. embedded: [S, outer], of these.
        Returns i32[S, books - 1]."""
        s, size, table = self.spec, self.spec.head_dim, self._rope.to(x.device, x.dtype)
        position, batch = batch.context + batch.query, self._with_sampling(batch)
        kept: list[tuple[Array, Array]] = []
        y = torch.stack([x, embedded.to(x.dtype)], 1)
        built: list[Array] = []
        for book in range(1, s.books):
            begin = 0 if book == 1 else book
            y = functional.linear(y, p["enter"]["matrix"]) if s.projected else y
            for i in range(s.layers):
                y = self._layer(p["layers"][i], y, table[begin : begin + y.shape[1]], kept, i, size)
            last = _root_norm(y[:, -1], p["norm"], s.eps)
            logits = self._logits(p["head"], last, book)
            code = choose(logits, batch, batch.sampling.seed ^ _word(book * STRIDE), position)
            built.append(code)
            row = code.clamp(0, s.codes - 1).long() + (book - 1) * s.codes
            y = functional.embedding(row, p["table"])[:, None]
        return torch.stack(built, 1).to(torch.int32)

    def _logits(self, head: Array, x: Array, book: int) -> Array:
        """f32[S, codes] of a codebook."""
        if not self.spec.separate:
            return (x @ head[book - 1]).float()
        at = (book - 1) * self.spec.codes
        return functional.linear(x, head[at : at + self.spec.codes]).float()

    def _with_sampling(self, batch: StepBatch) -> StepBatch:
        """The batch with the sampling parameters of codes after the first."""
        s, given = self.spec, batch.sampling
        if not s.top_k or not batch.features.random:
            return batch
        warmth = (given.temperature > 0).to(given.temperature.dtype)
        top_k, top_p = torch.full_like(given.top_k, s.top_k), torch.full_like(given.top_p, s.top_p)
        sampling = replace(given, temperature=warmth, top_k=top_k, top_p=top_p)
        return replace(batch, sampling=sampling, features=replace(batch.features, truncate=True))

    def _layer(self, p: Parts, x: Array, table: Array, kept: list[tuple[Array, Array]], i: int, size: int) -> Array:
        """x [S, new, hidden]."""
        s, (rows, new) = self.spec, x.shape[:2]
        y = _root_norm(x, p["norm1"], s.eps)
        q, k, v = (
            functional.linear(y, p[c]["matrix"], p[c].get("bias")).view(rows, new, -1, size).transpose(1, 2) for c in "qkv"
        )
        if s.head_norms:
            q, k = _root_norm(q, p["q_norm"], s.eps), _root_norm(k, p["k_norm"], s.eps)
        q, k = rotate(q, table), rotate(k, table)
        if i < len(kept):
            k, v = torch.cat([kept[i][0], k], 2), torch.cat([kept[i][1], v], 2)
            kept[i] = (k, v)
        else:
            kept.append((k, v))
        k, v = (each.repeat_interleave(s.heads // s.kv_heads, 1) for each in (k, v))
        y = functional.scaled_dot_product_attention(q, k, v, is_causal=new > 1)
        x = x + functional.linear(y.transpose(1, 2).reshape(rows, new, -1), p["out"]["matrix"], p["out"].get("bias"))
        y = _root_norm(x, p["norm2"], s.eps)
        gate, up = (functional.linear(y, p[c]["matrix"], p[c].get("bias")) for c in ("gate", "up"))
        return x + functional.linear(activate(gate, s.act) * up, p["down"]["matrix"], p["down"].get("bias"))

    def finish(
        self, p: Parts, result: StepResult, state: State, x: Array, embedded: Array, batch: StepBatch, choose: Chooser
    ) -> tuple[StepResult, Array]:
        """The result with the codes of each frame, and the state's codes. embedded: of the result's tokens."""
        s, first = self.spec, result.tokens[:, 0]
        codes = self(p, x, first, embedded, batch, choose)
        tokens = first
        if s.end >= 0:
            over = (first == s.end) & (codes[:, :-1] == s.end).all(1)
            tokens = torch.where(over, s.codes, first).to(first.dtype)
        slots = torch.where(batch.emit, batch.slots, SCRATCH).long()
        held = state[CODES]
        held[slots, (batch.context + batch.query).long()] = codes
        return replace(result, tokens=tokens[:, None], frames=codes), held


class TextEmbedder:
    """The vectors of a prompt's text, as an encoder computes them."""

    attention = None
    depth = 1

    def __init__(self, s: spec.TextTable, weights: Parts, dtype: str) -> None:
        self.spec = s
        self.specs = _specs(weights, dtype)

    def part(self, first: int, last: int, carried: dict[str, Any]) -> Step:
        """As of `VisionEncoder`."""

        def step(params: Params, state: State, batch: StepBatch) -> tuple[State, StepResult]:
            utterance = batch.get(Utterance)
            assert utterance is not None
            zeros = torch.zeros_like(batch.slots)
            vectors = functional.embedding(utterance.units[:, 0].long(), params["table"]).float()
            return state, StepResult(zeros.unsqueeze(1), zeros, pooled=vectors)

        return step


class PositionEmbedder:
    """The vectors of a text that accompanies the positions of sequences. Holds no tensors: parameters are passed."""

    attention = None
    depth = 1

    def __init__(self, s: spec.PositionText, weights: Parts, dtype: str) -> None:
        self.spec = s
        self.specs = _specs(weights, dtype)

    def read(self, held: Array, batch: StepBatch) -> Array:
        """The text's tokens i32[T] of a step. held i32[slots, tokens]: those of each slot. A `SpokenTokens` of the step changes
        them first."""
        part = batch.get(SpokenTokens)
        if part is not None:
            held[part.entering.long()] = self.spec.pad
            held[part.slot.long(), part.position.long()] = part.token
        slots = batch.slots.index_select(0, batch.token_seq)
        found: Array = held[slots.long(), batch.positions.long()]
        return found

    def __call__(self, p: Parts, tokens: Array) -> Array:
        """tokens i32[T] -> [T, outer]."""
        return self._project(p["text"], functional.embedding(tokens.clamp(0, self.spec.tokens - 1).long(), p["table"]))

    def _project(self, p: Parts, x: Array) -> Array:
        x = activate(functional.linear(x, p["up"]["matrix"], p["up"]["bias"]), self.spec.act)
        built: Array = functional.linear(x, p["down"]["matrix"], p["down"]["bias"])
        return built

    def part(self, first: int, last: int, carried: dict[str, Any]) -> Step:
        """As of `VisionEncoder`: the vectors of hidden states of the model that has written the text."""

        def step(params: Params, state: State, batch: StepBatch) -> tuple[State, StepResult]:
            utterance = batch.get(HiddenStates)
            assert utterance is not None
            zeros, p = torch.zeros_like(batch.slots), params["states"]
            vectors = self._project(p, utterance.vector.to(p["up"]["matrix"].dtype)).float()
            return state, StepResult(zeros.unsqueeze(1), zeros, pooled=vectors)

        return step


def _word(value: int) -> int:
    """The low 32 bits, as a signed number."""
    value &= 0xFFFFFFFF
    return value - (1 << 32) if value >> 31 else value


def _root_norm(x: Array, weight: Array, eps: float) -> Array:
    wide = x.float()
    built: Array = weight * (wide * torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + eps)).to(x.dtype)
    return built


def _specs(tree: Any, dtype: str) -> Any:
    if isinstance(tree, Weight):
        return ParamSpec(tree, dtype)
    return {key: _specs(part, dtype) for key, part in tree.items()}
