"""EAGLE-3 as the tail of the target's step: layers that read pairs of a hidden state and the next token (`paired_proposer`).

The hidden state of a pair is a projection of the target's hidden states at several places (`spec.EagleSpec`).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from thalweg.hal.step import Array, StepBatch
from thalweg.models.context import Context
from thalweg.models.decoder import Decoder
from thalweg.models.draft_vocabulary import DraftHeadProposer
from thalweg.models.layered_proposer import draft_context
from thalweg.models.layers.embedding import Embedding
from thalweg.models.layers.linear import Linear
from thalweg.models.layers.norm import build_norm
from thalweg.models.paired_proposer import PairedProposer
from thalweg.models.proposer import KEY, ProposerSetup
from thalweg.models.spec.eagle import EagleSpec
from thalweg.models.weights import ParamSpec


class EagleModule(Decoder):
    """The layers, with the projection of their hidden states, and an embedding if the drafter has one."""

    def __init__(self, ctx: Context, s: EagleSpec) -> None:
        super().__init__(ctx, s)
        weights: Mapping[str, Any] = s.weights()
        if s.paired:
            self.parts_before = 2  # an embedding and a hidden state
        self._fc = Linear(ctx, weights["fc"])
        self.specs["fc"] = self._fc.specs
        self._tap_norms = [build_norm(ctx, norm, weights["tap_norms"][i]) for i, norm in enumerate(s.tap_norms)]
        if s.tap_norms:
            self.specs["tap_norms"] = {i: norm.specs for i, norm in enumerate(self._tap_norms)}
        self._joined_norm = None if s.joined_norm is None else build_norm(ctx, s.joined_norm, weights["joined_norm"])
        if self._joined_norm is not None:
            self.specs["joined_norm"] = self._joined_norm.specs
        if s.mask is not None:
            self.specs["mask"] = ParamSpec(weights["mask"], ctx.dtype)
        self.table = Embedding(ctx, replace(s, vocab=s.embedded), weights["table"]) if s.embedded else None
        if self.table is not None:
            self.specs["table"] = self.table.specs

    def rename(self, name: str) -> str | None:
        """As `Decoder.rename`. Some checkpoints begin names with "model."."""
        known = self.spec.rename(name.removeprefix("model."))
        return None if known is None or (known.startswith("embed_tokens.") and self.table is None) else known

    def project(self, params: Any, hidden: Array) -> Array:
        """[N, inputs of fc] -> [N, hidden]"""
        return self._fc(params["fc"], hidden, None)

    def join(self, params: Any, taps: tuple[Tensor, ...]) -> Array:
        """Hidden states [T, hidden of the target] of each place -> [T, hidden]."""
        if self._tap_norms:
            norms = enumerate(self._tap_norms)
            taps = tuple(norm(params["tap_norms"][i], x) for (i, norm), x in zip(norms, taps, strict=True))
        joined = torch.cat(taps, -1)
        if self._joined_norm is not None:
            joined = self._joined_norm(params["joined_norm"], joined)
        return self.project(params, joined)


class EagleProposer(DraftHeadProposer, PairedProposer):
    """What EAGLE's methods share: the parameters, and an embedding that is the target's or the drafter's."""

    _spec: EagleSpec

    def __init__(self, setup: ProposerSetup) -> None:
        assert setup.draft is not None, "planning has read it"
        assert isinstance(setup.draft.spec, EagleSpec)
        spec = setup.draft.spec
        self.taps, self.width = spec.taps, spec.hidden
        super().__init__(setup, EagleModule(draft_context(setup), spec))

    @classmethod
    def of(cls, setup: ProposerSetup) -> EagleProposer:
        return cls(setup)

    def embed(self, params: Any, tokens: Tensor) -> Tensor:
        """[N, hidden]: by the drafter's embedding, or the target's."""
        if self.draft.table is None:
            embedded: Tensor = self._model.embed(params, tokens)
            return embedded
        found: Tensor = self.draft.table(params[KEY]["table"], tokens.clamp(max=self._spec.embedded - 1))
        return found


class Eagle3Proposer(EagleProposer):
    def join_taps(self, params: Any, taps: tuple[Tensor, ...]) -> Tensor:
        joined: Tensor = self.draft.join(params[KEY], taps)
        return joined

    def run(
        self, params: Any, batch: StepBatch, hidden: Tensor, kv: list[Array], rows: Tensor | None
    ) -> tuple[Tensor, Tensor, list[Array]]:
        """As `PairedProposer.run`. Further passes read the sum after the last layer, before or after the norm."""
        last = len(self._spec.layers) - 1
        taps: dict[int, Any] = {} if self._spec.feeds_normed else {last: None}
        entered = torch.stack([self.embed(params, batch.tokens), hidden])
        x, kv = self.draft.forward(params[KEY], batch, kv, rows, entered=entered, taps=taps)
        return x, taps.get(last, x), kv
