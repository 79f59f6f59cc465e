"""A module for multi-token prediction (MTP) as the tail of the target's step.

An entry of its cache pairs the target's hidden state h(i) with the next token t(i + 1), and lies at position i. Every step runs
the module over the entries that its tokens complete, and then once more for each further draft, with the output of the pass
before as hidden state. The state keeps h of each sequence's last token, which the next step pairs with its first token.

A sequence without that state starts at its first token of the step. After a prefix hit, older entries are those of the sequence
that computed the prefix. The last one was computed with that sequence's next token.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from thalweg.hal.device import Device
from thalweg.hal.parts.proposing import Proposing
from thalweg.hal.step import Array, StepBatch
from thalweg.models.context import Context
from thalweg.models.decoder import FINAL, Decoder
from thalweg.models.layered_proposer import CACHES, LayeredProposer
from thalweg.models.layers.linear import Linear
from thalweg.models.layers.norm import build_norm
from thalweg.models.load import load_params
from thalweg.models.proposer import KEY, ProposerSetup, accepted_row
from thalweg.models.spec import MTPSpec

HIDDEN = "hidden"
"""Key of the state [slots, hidden]: the target's hidden state of each sequence's last token."""


class MTPModule(Decoder):
    """Its layers, with the input of the first made from embeddings and hidden states."""

    def __init__(self, ctx: Context, s: MTPSpec) -> None:
        super().__init__(ctx, s)
        weights: Mapping[str, Any] = s.weights()
        self._hidden_first = s.hidden_first
        self._token_norm = build_norm(ctx, s.token_norm, weights["token_norm"])
        self._hidden_norm = build_norm(ctx, s.hidden_norm, weights["hidden_norm"])
        self._proj = Linear(ctx, weights["proj"])
        self.specs |= {
            "token_norm": self._token_norm.specs, "hidden_norm": self._hidden_norm.specs, "proj": self._proj.specs,
        }  # fmt: skip

    def join(self, params: Any, embedded: Array, hidden: Array) -> Array:
        """embedded, hidden [N, hidden]: of tokens, and of the target before them. The first layer's input [N, hidden]."""
        token = self._token_norm(params["token_norm"], embedded)
        before = self._hidden_norm(params["hidden_norm"], hidden)
        both = (before, token) if self._hidden_first else (token, before)
        return self._proj(params["proj"], torch.cat(both, -1), None)


class MTPProposer(LayeredProposer):
    taps = (FINAL,)

    @classmethod
    def of(cls, setup: ProposerSetup) -> MTPProposer:
        return cls(setup)

    def __init__(self, setup: ProposerSetup) -> None:
        assert setup.checkpoint is not None, "planning has read it"
        self._path, self._load_format, self._seed = setup.checkpoint[0], setup.load_format, setup.seed
        model = self._model = setup.model
        ctx = Context(
            setup.binder, setup.attention, setup.mesh, model.dtype, setup.max_len, setup.block_tokens, model.formats
        )  # fmt: skip
        super().__init__(setup, MTPModule(ctx, model.spec.mtp), model)

    def load(self, device: Device) -> Mapping[str, Any]:
        params: Mapping[str, Any] = load_params(
            self.draft, self._path, device, load_format=self._load_format, seed=self._seed, progress=False
        )
        return params

    def allocate(self, device: Device, slots: int, max_len: int) -> Mapping[str, Any]:
        return {HIDDEN: device.alloc((slots, self._model.hidden), self._model.dtype)}

    def propose(
        self, params: Any, state: Any, batch: StepBatch, taps: tuple[Tensor, ...], tokens: Tensor, counts: Tensor
    ) -> tuple[Tensor, Any]:
        part = batch.get(Proposing)
        assert part is not None
        kept, (hidden,) = state[KEY], taps
        fresh, slots = part.fresh.to(torch.int32), batch.slots.long()
        ids, owner, position, query, last, row, after = self._arrange(batch, tokens, counts)
        late = fresh.index_select(0, owner)
        source = torch.minimum(torch.arange(ids.shape[0], device=ids.device, dtype=torch.int32) + late, last[owner.long()])
        before = _pair_hidden(hidden, kept[HIDDEN].index_select(0, slots), owner, last - query + 1)
        fed = replace(
            batch, tokens=ids.index_select(0, source), token_seq=owner, positions=position - 1 + late,
            context=batch.context - 1 + fresh, query=query, last_row=last, block_tables=self._table(batch),
            uniform=batch.uniform + 1 if batch.uniform else 0, parts=(), metadata=self._plans(),
        )  # fmt: skip
        x, kv = self._run(params, fed, before.index_select(0, source), kept[CACHES], row - fresh)
        drafts = [self._choose(params, x, batch, after[0])]
        each = torch.arange(counts.shape[0], device=counts.device, dtype=torch.int32)
        single = replace(fed, token_seq=each, last_row=each, query=torch.ones_like(each), uniform=1)
        for at in after[1 : self.most]:
            fed = replace(single, tokens=drafts[-1], positions=at - 1, context=at - 1, metadata=self._plans())
            x, kv = self._run(params, fed, x, kv, None)
            drafts.append(self._choose(params, x, batch, at))
        kept[HIDDEN].index_copy_(0, slots, hidden.index_select(0, accepted_row(batch, counts)))
        return torch.stack(drafts, 1), {**state, KEY: {**kept, CACHES: kv}}

    def _run(
        self, params: Any, batch: StepBatch, hidden: Tensor, kv: list[Array], rows: Tensor | None
    ) -> tuple[Tensor, list[Array]]:
        """The module's output after its last norm, for these rows, and the new caches. hidden: paired with the tokens."""
        weights = params[KEY]
        entered = self.draft.join(weights, self._model.embed(params, batch.tokens), hidden)
        found: tuple[Tensor, list[Array]] = self.draft.forward(weights, batch, kv, rows, entered=entered[None])
        return found


def _pair_hidden(hidden: Tensor, kept: Tensor, owner: Tensor, first: Tensor) -> Tensor:
    """[T + S, hidden]: the target's hidden state before each token of `ops.draft_inputs`. hidden [T, hidden]: of the step's
    tokens. kept [S, hidden]: of the last token before the step. owner i32[T + S]. first i32[S]: each sequence's first row."""
    row, seq = torch.arange(owner.shape[0], device=owner.device, dtype=torch.int32), owner.long()
    inside = hidden.index_select(0, (row - owner - 1).clamp(min=0))
    return torch.where((row == first[seq])[:, None], kept[seq], inside)
