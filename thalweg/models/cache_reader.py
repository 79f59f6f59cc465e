"""A module for multi-token prediction that reads the keys and values of one of the target's layers.

It keeps nothing between steps: the cache has an entry of every token before the newest one, whoever computed it, and whether or
not drafts were made then. So prompts and steps without drafts cost nothing, and drafts may begin at any token. A step runs the
module once for each draft. Its own entries lie behind the accepted tokens, where no token of the target looks. The next steps
write theirs over them.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from thalweg.errors import ConfigError
from thalweg.hal import ops
from thalweg.hal.device import Device
from thalweg.hal.parts.drafts import Drafts
from thalweg.hal.parts.proposing import Proposing
from thalweg.hal.step import StepBatch
from thalweg.models.drafts.taps import SAMPLED
from thalweg.models.layered_proposer import LayeredProposer
from thalweg.models.mtp_module import MTPModule
from thalweg.models.proposer import KEY, ProposerSetup


class CacheReader(LayeredProposer):
    arranges = ops.newest_tokens
    taps = (SAMPLED,)
    remembers = False

    def __init__(self, setup: ProposerSetup) -> None:
        """Raises ConfigError where the device keeps the module's entries in another form than the target's layer."""
        model = self._model = setup.model
        at = self._at = model.spec.mtp.cache
        group = model.layer_group[at]
        backend, spec = model.attention[group]
        assert setup.draft is not None, "planning has read it"
        if setup.draft.kv_dtype not in ("", spec.kv_dtype or spec.dtype):
            raise ConfigError(
                "speculative_config: kv_cache_dtype: the module of this model has no cache, and reads that of layer "
                f"{at}; omit it"
            )
        module = MTPModule.of(setup, spec.kv_dtype)
        super().__init__(setup, module, model)
        self._group, self.caches = group, ()
        block = module.groups[0].block_tokens
        self._blocks = setup.binder.bind(ops.owned_blocks, block=block, more=1 + self.most // block)
        own = module.attention[0]
        if own is None or type(own[0]) is not type(backend) or module.layouts[0] != model.layouts[at]:
            raise ConfigError(
                f"speculative_config: mtp: the module reads the keys and values of layer {at}, which attention {backend.name} "
                f"keeps in a form that no attention for drafts reads ({spec}); omit --attention-backend and kv_cache_dtype"
            )

    def allocate(self, device: Device, slots: int, max_len: int) -> Mapping[str, Any]:
        return {}

    def propose(
        self, params: Any, state: Any, batch: StepBatch, taps: tuple[Tensor, ...], tokens: Tensor, counts: Tensor
    ) -> tuple[Tensor, Any]:
        part, drafted = batch.get(Proposing), batch.get(Drafts)
        assert part is not None
        pick = counts[:, None][:, :0] if drafted is None else drafted.pick
        row, token, after, each, one = self._inputs(batch.context, batch.query, tokens, counts, pick)
        hidden, kv = taps[0].index_select(0, row), [state["kv"][self._at]]
        table = self._blocks(batch.block_tables[self._group], part.room)
        single = replace(
            batch, token_seq=each, query=one, last_row=each, block_tables=(table,), uniform=1, parts=()
        )  # fmt: skip
        weights, drafts = params[KEY], []
        for at in after[: part.level]:
            fed = self._plan(replace(single, tokens=token, positions=at, context=at))
            entered = self.draft.join(weights, self._model.embed(params, token), hidden)
            hidden, kv = self.draft.forward(weights, fed, kv, entered=entered[None])
            token = self._choose(params, hidden, batch, at)
            drafts.append(token)
        caches = list(state["kv"])
        (caches[self._at],) = kv
        return torch.stack(drafts, 1), {**state, "kv": caches}
