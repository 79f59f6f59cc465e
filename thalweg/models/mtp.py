"""A module for multi-token prediction (MTP) as the tail of the target's step.

It reads pairs of a last hidden state of the target and the next token, then its own output (`paired_proposer`).
"""

from __future__ import annotations

from typing import Any

from torch import Tensor

from thalweg.hal.step import Array, StepBatch
from thalweg.models.cache_reader import CacheReader
from thalweg.models.drafts.taps import FINAL
from thalweg.models.mtp_module import MTPModule
from thalweg.models.paired_proposer import PairedProposer
from thalweg.models.proposer import KEY, Proposer, ProposerSetup


class MTPProposer(PairedProposer):
    @classmethod
    def of(cls, setup: ProposerSetup) -> Proposer:  # type: ignore[override]
        return cls(setup) if setup.model.spec.mtp.cache is None else CacheReader(setup)

    def __init__(self, setup: ProposerSetup) -> None:
        assert setup.draft is not None, "planning has read it"
        model = self._model = setup.model
        self.width, self._last = model.hidden, len(model.spec.mtp.layers) - 1
        self._raw: bool = model.spec.mtp.raw
        self.taps = (len(model.spec.layers) - 1,) if self._raw else (FINAL,)
        super().__init__(setup, MTPModule.of(setup, setup.draft.kv_dtype), model)

    def run(
        self, params: Any, batch: StepBatch, hidden: Tensor, kv: list[Array], rows: Tensor | None
    ) -> tuple[Tensor, Tensor, list[Array]]:
        """As `PairedProposer.run`. Further passes read the output after the last norm, or before it if they are `raw`."""
        weights = params[KEY]
        entered = self.draft.join(weights, self._model.embed(params, batch.tokens), hidden)
        taps: dict[int, Any] = {self._last: None} if self._raw else {}
        x, kv = self.draft.forward(weights, batch, kv, rows, entered=entered[None], taps=taps)
        return x, taps.get(self._last, x), kv
