"""Proposers that run layers of attention in the target's step, with keys and values on the blocks of one of its KV groups.

Prefix hits, chunks and preemption therefore apply to both. Accepted counts are values: rows of rejected tokens are computed,
and written again. Drafts are argmax(logits / (temperature * TAU) + noise), with the noise of the target's draw. At a share of
the temperature they are right more often than at the whole of it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from thalweg.drafters import SAMPLING
from thalweg.hal import ops
from thalweg.hal.device import Device
from thalweg.hal.parts.drafts import Drafts
from thalweg.hal.parts.sparse import Sparse
from thalweg.hal.step import StepBatch
from thalweg.models.build import Model, resolve_scheme
from thalweg.models.context import Context
from thalweg.models.load import load_params
from thalweg.models.precision import model_scheme
from thalweg.models.proposer import Proposer, ProposerSetup
from thalweg.models.sizes import shared_group

TAU = 0.25
"""Share of the temperature in drafts."""
CACHES = "kv"


class LayeredProposer(Proposer):
    arranges = ops.draft_inputs
    """The op that arranges a step's tokens for the layers, from the arguments of `draft_inputs` and those of `_arrange`."""

    def __init__(self, setup: ProposerSetup, draft: Model, head: Any) -> None:
        """draft: the model that runs after the target. head: has the output matrix of drafts: a model, or vocab, has_argmax,
        argmax and logits as of one."""
        super().__init__(setup.model, setup.binder, setup.config)
        self._setup = setup
        self.draft, self._head = draft, head
        self._group = shared_group(setup.model.groups)
        self.caches = tuple((self._group, layout) for layout in draft.layouts)
        self._top = max((a[1].top for a in draft.attention if a is not None), default=0)
        self._tau = 0.0 if setup.config.options[SAMPLING] == "greedy" else TAU
        facts = {"vocab": head.vocab, "dtype": "float32"}
        self._inputs = setup.binder.bind(self.arranges, passes=self.most - 1, limit=setup.max_len)
        self._sample = {random: setup.binder.bind(ops.sample, random=random, **facts) for random in (False, True)}

    def load(self, device: Device) -> Mapping[str, Any]:
        """The parameters of the draft's layers, this rank's part of them."""
        setup = self._setup
        assert setup.draft is not None, "planning has read it"
        params: Mapping[str, Any] = load_params(
            self.draft, setup.draft.path, device, load_format=setup.load_format, seed=setup.seed, progress=False,
            ranks=setup.ranks,
        )  # fmt: skip
        return params

    def _arrange(self, batch: StepBatch, tokens: Tensor, counts: Tensor, *more: Tensor) -> tuple[Tensor, ...]:
        """The outputs of `arranges` for this step and its result."""
        drafted = batch.get(Drafts)
        pick = counts[:, None][:, :0] if drafted is None else drafted.pick
        found: tuple[Tensor, ...] = self._inputs(
            batch.tokens,
            batch.token_seq,
            batch.positions,
            batch.context,
            batch.query,
            batch.last_row,
            tokens,
            counts,
            pick,
            *more,
        )
        return found

    def _table(self, batch: StepBatch) -> tuple[Tensor, ...]:
        """The blocks of the draft's tokens, for each of its KV groups. Tokens beyond a sequence's blocks go to scratch."""
        table = batch.block_tables[self._group]
        wider = torch.nn.functional.pad(table, (0, 1 + self.most // self.draft.groups[0].block_tokens))
        return (wider,) * len(self.draft.groups)

    def _plan(self, batch: StepBatch, sparse: bool = False) -> StepBatch:
        """The batch with the plans of attention, and with what layers of a group share. Each pass has its own positions.
        sparse: some tokens may see more than layers with an indexer read."""
        groups = enumerate(self.draft.attention)
        plans = tuple({} if a is None else a[0].plan_on_device(batch, g, a[1]) for g, a in groups)
        batch = replace(batch, metadata=plans)
        if not (sparse and self._top):
            return batch
        row = torch.arange(batch.tokens.shape[0], dtype=torch.int32, device=batch.tokens.device)
        return replace(batch, parts=(Sparse(row, torch.where(batch.positions >= self._top, row, -1)[:, None]),))

    def _choose(self, params: Any, x: Tensor, batch: StepBatch, position: Tensor) -> Tensor:
        """The draft i32[S] of each sequence after hidden states x [S, hidden] of the tokens at these positions. params: of the
        model with the output matrix."""
        random = batch.features.random and self._tau > 0
        if not random and self._head.has_argmax:
            token: Tensor = self._head.argmax(params, x)[0]
            return token.to(torch.int32)
        return self._draw(self._head.logits(params, x), batch, position)

    def _draw(self, logits: Tensor, batch: StepBatch, position: Tensor) -> Tensor:
        """The drafts i32[S] by logits [S, vocab], as of `_choose`."""
        random, temperature = batch.features.random and self._tau > 0, batch.sampling.temperature
        if random:
            logits = logits / torch.where(temperature > 0, temperature * self._tau, 1.0)[:, None]
        drawn: Tensor = self._sample[random](logits, temperature, batch.sampling.seed, position + 1)
        return drawn.to(torch.int32)


def draft_context(setup: ProposerSetup) -> Context:
    """For layers of a separate checkpoint, with the formats of its weights."""
    assert setup.draft is not None, "planning has read it"
    hidden, dtype = setup.draft.spec.hidden, setup.model.dtype
    use = resolve_scheme(model_scheme(setup.draft.hf, setup.draft.quantization, setup.draft.spec), setup.binder, dtype, hidden)
    return Context(
        setup.binder, setup.attention, setup.mesh, dtype, setup.max_len, setup.block_tokens, use, setup.draft.kv_dtype
    )


def repeat_sampling(batch: StepBatch, times: int) -> StepBatch:
    """The batch with the temperature and the seed of each sequence several times in turn, for as many rows of it."""
    s = batch.sampling
    temperature, seed = s.temperature.repeat_interleave(times), s.seed.repeat_interleave(times, 0)
    return replace(batch, sampling=replace(s, temperature=temperature, seed=seed))
