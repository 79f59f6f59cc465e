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
from thalweg.hal.parts.drafts import Drafts
from thalweg.hal.step import StepBatch
from thalweg.models.build import build
from thalweg.models.load import load_params
from thalweg.models.proposer import KEY, Proposer, ProposerSetup
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
        self._embeds_all = draft.vocab >= setup.model.vocab
        self._tau = 0.0 if setup.config.options["draft_sample_method"] == "greedy" else TAU
        facts = {"vocab": draft.vocab, "dtype": "float32"}
        self._inputs = setup.binder.bind(ops.draft_inputs, passes=self.most - 1, limit=setup.max_len)
        self._sample = {random: setup.binder.bind(ops.sample, random=random, **facts) for random in (False, True)}

    def load(self, device: Device) -> Mapping[str, Any]:
        params: Mapping[str, Any] = load_params(
            self.draft, self._path, device, load_format=self._load_format, seed=self._seed, progress=False
        )
        return params

    def propose(
        self, params: Any, state: Any, batch: StepBatch, taps: tuple[Tensor, ...], tokens: Tensor, counts: Tensor
    ) -> tuple[Tensor, Any]:
        weights, kv, drafted = params[KEY], state[KEY][CACHES], batch.get(Drafts)
        pick = counts[:, None][:, :0] if drafted is None else drafted.pick
        ids, owner, position, query, last, row, after = self._inputs(
            batch.tokens, batch.token_seq, batch.positions, batch.context, batch.query, batch.last_row, tokens, counts, pick
        )
        table = self._table(batch)
        fed = replace(
            batch, tokens=self._clamp(ids), token_seq=owner, positions=position, query=query, last_row=last, block_tables=table,
            uniform=batch.uniform + 1 if batch.uniform else 0, parts=(), metadata=self._plans(),
        )  # fmt: skip
        x, kv = self.draft.forward(weights, fed, kv, row)
        drafts = [self._choose(weights, x, batch, after[0])]
        each = torch.arange(counts.shape[0], device=counts.device, dtype=torch.int32)
        single = replace(fed, token_seq=each, last_row=each, query=torch.ones_like(each), uniform=1)
        for at in after[1 : self.most]:
            fed = replace(single, tokens=self._clamp(drafts[-1]), positions=at, context=at, metadata=self._plans())
            x, kv = self.draft.forward(weights, fed, kv)
            drafts.append(self._choose(weights, x, batch, at))
        return torch.stack(drafts, 1), {**state, KEY: {**state[KEY], CACHES: kv}}

    def _table(self, batch: StepBatch) -> tuple[Tensor, ...]:
        """The blocks of the draft's tokens, for each of its KV groups. Tokens beyond a sequence's blocks go to scratch."""
        table = batch.block_tables[self._group]
        wider = torch.nn.functional.pad(table, (0, 1 + self.most // self.draft.groups[0].block_tokens))
        return (wider,) * len(self.draft.groups)

    def _clamp(self, tokens: Tensor) -> Tensor:
        """Tokens that the draft can embed: its matrix may have fewer rows of padding than the target's."""
        return tokens if self._embeds_all else tokens.clamp(max=self.draft.vocab - 1)

    def _plans(self) -> tuple[dict[str, Any], ...]:
        """Where attention of each group keeps data that its layers share. A pass has its own, as it has its own positions."""
        return tuple({} for _ in self.draft.groups)

    def _choose(self, params: Any, x: Tensor, batch: StepBatch, position: Tensor) -> Tensor:
        """The draft of each sequence after hidden states x [S, hidden] of the tokens at these positions."""
        random = batch.features.random and self._tau > 0
        if not random and self.draft.has_argmax:
            token: Tensor = self.draft.argmax(params, x)[0]
            return token.to(torch.int32)
        logits, temperature = self.draft.logits(params, x), batch.sampling.temperature
        if random:
            logits = logits / torch.where(temperature > 0, temperature * self._tau, 1.0)[:, None]
        drawn: Tensor = self._sample[random](logits, temperature, batch.sampling.seed, position + 1)
        return drawn.to(torch.int32)
