"""A draft model as the tail of the target's step.

The draft's layers keep keys and values on the blocks of one of the target's KV groups, so prefix hits, chunks and preemption
apply to both. Every step runs the draft over the step's tokens and the one that it returned, which gives the first draft, and
then once more for each further draft. Accepted counts are values: rows of rejected tokens are computed, and written again.

Drafts are argmax(logits / (temperature * TAU) + noise), with the noise of the target's draw. At a share of the temperature
they are right more often than at the whole of it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from thalweg.errors import ConfigError
from thalweg.hal import ops
from thalweg.hal.attention import AttentionBackend
from thalweg.hal.device import Device
from thalweg.hal.step import StepBatch
from thalweg.models.build import build
from thalweg.models.load import load_params
from thalweg.models.proposer import KEY, Proposer, ProposerSetup, accepted_row, last_token
from thalweg.models.sizes import shared_group

TAU = 0.25
"""Share of the temperature in drafts."""
CACHES = "kv"


class DraftModelProposer(Proposer):
    @classmethod
    def of(cls, setup: ProposerSetup) -> DraftModelProposer:
        return cls(setup)

    def __init__(self, setup: ProposerSetup) -> None:
        """Raises ConfigError if an attention backend plans the draft's steps on the host, where accepted tokens are unknown."""
        super().__init__(setup.model, setup.binder, setup.config)
        assert setup.checkpoint is not None, "planning has read it"
        self._path, config = setup.checkpoint
        self._load_format, self._seed = setup.load_format, setup.seed
        self.draft = draft = build(
            config, binder=setup.binder, attention=setup.attention, mesh=setup.mesh, dtype=setup.model.dtype,
            max_len=setup.max_len, block_tokens=setup.block_tokens,
        )  # fmt: skip
        for backend in {a[0] for a in draft.attention if a is not None}:
            if type(backend).metadata is not AttentionBackend.metadata:
                raise ConfigError(
                    f"speculative_config: draft_model: attention {backend.name} plans each step on the host, and draft steps "
                    "follow accepted tokens, which only the device knows; use method ngram or suffix on this platform"
                )
        self._group = shared_group(setup.model.groups)
        self.caches = tuple((self._group, layout) for layout in draft.layouts)
        self._max_len = setup.max_len
        self._tau = 0.0 if setup.config.options["draft_sample_method"] == "greedy" else TAU
        facts = {"vocab": draft.vocab, "dtype": "float32"}
        self._sample = {random: setup.binder.bind(ops.sample, random=random, **facts) for random in (False, True)}

    def load(self, device: Device) -> Mapping[str, Any]:
        params: Mapping[str, Any] = load_params(
            self.draft, self._path, device, load_format=self._load_format, seed=self._seed, progress=False
        )
        return params

    def propose(
        self, params: Any, state: Any, batch: StepBatch, taps: tuple[Tensor, ...], tokens: Tensor, counts: Tensor
    ) -> tuple[Tensor, Any]:
        weights, kv = params[KEY], state[KEY][CACHES]
        newest, table = last_token(tokens, counts), self._table(batch)
        longer, row, position = self._with_newest(batch, newest, counts, table)
        x, kv = self.draft.forward(weights, longer, kv, row)
        single = self._single(batch, table)
        drafts = [self._choose(weights, x, batch, position + 1)]
        for _ in range(self.most - 1):
            position = position + 1
            at = position.clamp(max=self._max_len - 1)
            fed = replace(single, tokens=self._clamp(drafts[-1]), positions=at, context=at, metadata=self._plans())
            x, kv = self.draft.forward(weights, fed, kv)
            drafts.append(self._choose(weights, x, batch, position + 1))
        return torch.stack(drafts, 1), {**state, KEY: {**state[KEY], CACHES: kv}}

    def _table(self, batch: StepBatch) -> Tensor:
        """The blocks of the draft's tokens. Those beyond a sequence's blocks go to scratch."""
        table = batch.block_tables[self._group]
        size = self.draft.groups[0].block_tokens
        return torch.cat([table, table.new_zeros(table.shape[0], 1 + self.most // size)], 1)

    def _clamp(self, tokens: Tensor) -> Tensor:
        """Tokens as the draft embeds them: its matrix may have fewer rows of padding than the target's."""
        return tokens.clamp(max=self.draft.vocab - 1)

    def _with_newest(
        self, batch: StepBatch, newest: Tensor, counts: Tensor, table: Tensor
    ) -> tuple[StepBatch, Tensor, Tensor]:  # fmt: skip
        """(the step with one token more of each sequence, the row of the newest token of each, the position of that).

        The newest token takes the place of the first rejected draft, if there is one. Rows after it mean nothing, and no row
        before attends to them."""
        n, t = batch.slots.shape[0], batch.tokens.shape[0]
        each = torch.arange(n, device=newest.device, dtype=torch.int32)
        end = (batch.context + batch.query).to(torch.int32)
        if batch.uniform:
            width = batch.uniform + 1
            tokens = torch.cat([batch.tokens.view(n, -1), torch.zeros_like(newest)[:, None]], 1).flatten()
            positions = torch.cat([batch.positions.view(n, -1), end[:, None]], 1).flatten()
            owners = each[:, None].expand(n, width).reshape(-1)
        else:
            width = 0
            ends = batch.last_row + each + 1
            place = torch.cat([torch.arange(t, device=each.device) + batch.token_seq, ends]).long()
            order = torch.zeros_like(place).scatter(0, place, torch.arange(t + n, device=place.device))
            pairs = ((batch.tokens, torch.zeros_like(newest)), (batch.positions, end), (batch.token_seq, each))
            tokens, positions, owners = (torch.cat(pair).index_select(0, order) for pair in pairs)
        row = accepted_row(batch, counts) + each + 1
        emits = counts > 0
        kept = torch.where(emits, newest, tokens.index_select(0, row))
        tokens = self._clamp(tokens.index_copy(0, row.long(), kept))
        longer = replace(
            batch, tokens=tokens, token_seq=owners, positions=positions.clamp(max=self._max_len - 1), query=batch.query + 1,
            last_row=batch.last_row + each + 1, block_tables=(table,) * len(self.draft.groups), uniform=width, parts=(),
            metadata=self._plans(),
        )  # fmt: skip
        return longer, row, positions.index_select(0, row)

    def _single(self, batch: StepBatch, table: Tensor) -> StepBatch:
        """A step of one token of each sequence. Its tokens and places are still to be filled in."""
        each = torch.arange(batch.slots.shape[0], device=table.device, dtype=torch.int32)
        return replace(
            batch, token_seq=each, last_row=each, query=torch.ones_like(each), uniform=1, parts=(),
            block_tables=(table,) * len(self.draft.groups),
        )  # fmt: skip

    def _plans(self) -> tuple[dict[str, Any], ...]:
        """Where attention of each group keeps data that its layers share. A pass has its own, as it has its own positions."""
        return tuple({} for _ in self.draft.groups)

    def _choose(self, params: Any, x: Tensor, batch: StepBatch, position: Tensor) -> Tensor:
        """The draft of each sequence after hidden states x [S, hidden]. position: the draft's own."""
        random = batch.features.random and self._tau > 0
        if not random and self.draft.has_argmax:
            token: Tensor = self.draft.argmax(params, x)[0]
            return token.to(torch.int32)
        logits, temperature = self.draft.logits(params, x), batch.sampling.temperature
        if random:
            logits = logits / torch.where(temperature > 0, temperature * self._tau, 1.0)[:, None]
        drawn: Tensor = self._sample[random](logits, temperature, batch.sampling.seed, position)
        return drawn.to(torch.int32)
