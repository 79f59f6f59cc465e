"""DFlash as the tail of the target's step: a block of masks after the newest token is filled in one pass.

The cache has keys and values of the target's hidden states, at the positions of their tokens. An entry depends only on tokens
up to its position, so prefixes are shared like the target's. The block is written after them, and the next step overwrites it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from thalweg.errors import ConfigError
from thalweg.hal.parts.proposing import Proposing
from thalweg.hal.parts.spans import Spans
from thalweg.hal.step import Array, StepBatch
from thalweg.models.context import Context
from thalweg.models.decoder import Decoder
from thalweg.models.draft_vocabulary import DraftHeadProposer
from thalweg.models.flow import Flow
from thalweg.models.layered_proposer import CACHES, draft_context, repeat_sampling
from thalweg.models.layers.linear import Linear
from thalweg.models.layers.norm import build_norm
from thalweg.models.markov import MarkovHead
from thalweg.models.proposer import KEY, ProposerSetup
from thalweg.models.spec.dflash import DFlashSpec


class DFlashModule(Decoder):
    def __init__(self, ctx: Context, s: DFlashSpec) -> None:
        super().__init__(ctx, s)
        weights: Mapping[str, Any] = s.weights()
        self._fc = Linear(ctx, weights["fc"])
        self._context_norm = build_norm(ctx, s.context_norm, weights["context_norm"])
        self.chain = None if s.chain is None else MarkovHead(ctx, s.chain, weights["chain"])
        if self.chain is not None:
            self.specs["chain"] = self.chain.specs
        self.specs |= {"fc": self._fc.specs, "context_norm": self._context_norm.specs}

    def rename(self, name: str) -> str | None:
        """As `Decoder.rename`. Some checkpoints begin names with "model."."""
        return self.spec.rename(name.removeprefix("model."))

    def store(self, params: Any, batch: StepBatch, kv: list[Array], taps: tuple[Tensor, ...]) -> list[Array]:
        """The caches with the keys and values of the batch's tokens in every layer. taps [T, hidden] of each place."""
        context = self._context_norm(params["context_norm"], self._fc(params["fc"], torch.cat(taps, -1), None))
        flow = Flow(batch, list(kv), params["rope"], None)
        for i, block in self.blocks.items():
            block.mixers[0](params["layers"][i]["mixer"], context, flow)  # its output is of no use
        return flow.caches


class DFlashProposer(DraftHeadProposer):
    _spec: DFlashSpec

    def __init__(self, setup: ProposerSetup) -> None:
        assert setup.draft is not None, "planning has read it"
        assert isinstance(setup.draft.spec, DFlashSpec)
        spec = setup.draft.spec
        self.taps = spec.taps
        module = DFlashModule(draft_context(setup), spec)
        super().__init__(setup, module)
        if self.most > spec.most:
            raise ConfigError(
                f"speculative_config: num_speculative_tokens: {self.most} is more than the {spec.most} of the drafter's blocks"
            )
        if not module.looks_ahead:
            raise ConfigError(
                "speculative_config: dflash: no attention of this device lets the tokens of a block see each other"
            )
        self._limit = setup.max_len

    @classmethod
    def of(cls, setup: ProposerSetup) -> DFlashProposer:
        return cls(setup)

    def propose(
        self, params: Any, state: Any, batch: StepBatch, taps: tuple[Tensor, ...], tokens: Tensor, counts: Tensor
    ) -> tuple[Tensor, Any]:
        part = batch.get(Proposing)
        assert part is not None
        weights, kept = params[KEY], state[KEY]
        ids, _, _, _, _, row, after = self._arrange(batch, tokens, counts)
        table = self._table(batch)
        known = self._plan(replace(batch, block_tables=table, parts=()))
        kv = self.draft.store(weights, known, kept[CACHES], taps)
        fed, newest = self._lay_block(batch, ids.index_select(0, row), after[0]), after[0]
        fed = self._plan(replace(fed, block_tables=table))
        entered = self._model.embed(params, fed.tokens)[None]
        x, kv = self.draft.forward(weights, fed, kv, entered=entered)
        drafts = self._fill(
            params, x.unflatten(0, (counts.shape[0], -1)), batch, fed.tokens.view(counts.shape[0], -1)[:, 0], newest, part.level
        )
        return drafts, {**state, KEY: {**kept, CACHES: kv}}

    def _fill(self, params: Any, x: Tensor, batch: StepBatch, token: Tensor, newest: Tensor, level: int) -> Tensor:
        """Drafts i32[S, level] by the outputs x [S, block, hidden] of a block. token, newest i32[S]: the newest tokens, and
        their positions."""
        n, first = x.shape[0], 0 if self._spec.from_newest else 1
        read = x[:, first : first + level].flatten(0, 1)
        position = (newest[:, None] + torch.arange(level, device=newest.device, dtype=newest.dtype)).flatten()
        return self._choose(params, read, repeat_sampling(batch, level), position).view(n, level)

    def _lay_block(self, batch: StepBatch, newest: Tensor, at: Tensor) -> StepBatch:
        """The block of each sequence: its newest token i32[S], at these positions i32[S], and masks. All see each other."""
        n, size = newest.shape[0], self.most + (0 if self._spec.from_newest else 1)
        each = torch.arange(n, device=at.device, dtype=torch.int32)
        place = torch.arange(size, device=at.device, dtype=torch.int32)
        tokens = torch.where(place == 0, newest[:, None], self._spec.mask).to(torch.int32)
        positions = at[:, None] + place
        last = positions[:, -1:].expand(-1, size).clamp(max=self._limit - 1)
        return replace(
            batch, tokens=tokens.flatten(), token_seq=each.repeat_interleave(size),
            positions=positions.clamp(max=self._limit - 1).flatten(), context=at, query=torch.full_like(each, size),
            last_row=(each + 1) * size - 1, uniform=size, parts=(Spans(last=last.reshape(-1, 1).contiguous()),),
        )  # fmt: skip
