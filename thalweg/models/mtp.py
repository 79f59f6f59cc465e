"""A module for multi-token prediction (MTP) as the tail of the target's step.

It reads pairs of a last hidden state of the target and the next token, then its own output (`paired_proposer`).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from thalweg.hal.step import Array, StepBatch
from thalweg.models.context import Context
from thalweg.models.decoder import Decoder
from thalweg.models.drafts.taps import FINAL
from thalweg.models.layers.linear import Linear
from thalweg.models.layers.norm import build_norm
from thalweg.models.paired_proposer import PairedProposer
from thalweg.models.proposer import KEY, ProposerSetup
from thalweg.models.spec import MTPSpec


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


class MTPProposer(PairedProposer):
    @classmethod
    def of(cls, setup: ProposerSetup) -> MTPProposer:
        return cls(setup)

    def __init__(self, setup: ProposerSetup) -> None:
        assert setup.draft is not None, "planning has read it"
        model = self._model = setup.model
        self.width, self._last = model.hidden, len(model.spec.mtp.layers) - 1
        self._raw: bool = model.spec.mtp.raw
        self.taps = (len(model.spec.layers) - 1,) if self._raw else (FINAL,)
        ctx = Context(
            setup.binder, setup.attention, setup.mesh, model.dtype, setup.max_len, setup.block_tokens, model.formats,
            setup.draft.kv_dtype,
        )  # fmt: skip
        super().__init__(setup, MTPModule(ctx, model.spec.mtp), model)

    def run(
        self, params: Any, batch: StepBatch, hidden: Tensor, kv: list[Array], rows: Tensor | None
    ) -> tuple[Tensor, Tensor, list[Array]]:
        """As `PairedProposer.run`. Further passes read the output after the last norm, or before it if they are `raw`."""
        weights = params[KEY]
        entered = self.draft.join(weights, self._model.embed(params, batch.tokens), hidden)
        taps: dict[int, Any] = {self._last: None} if self._raw else {}
        x, kv = self.draft.forward(weights, batch, kv, rows, entered=entered[None], taps=taps)
        return x, taps.get(self._last, x), kv
