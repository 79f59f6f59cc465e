"""The layers of a module for multi-token prediction."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch

from thalweg.hal.step import Array
from thalweg.models.context import Context
from thalweg.models.decoder import Decoder
from thalweg.models.layers.linear import Linear
from thalweg.models.layers.norm import build_norm
from thalweg.models.proposer import ProposerSetup
from thalweg.models.spec import MTPSpec


class MTPModule(Decoder):
    """Its layers, with the input of the first made from embeddings and hidden states."""

    @classmethod
    def of(cls, setup: ProposerSetup, kv_dtype: str) -> MTPModule:
        """The module of the target. kv_dtype: of its cache, as `Context.kv_dtype`."""
        model = setup.model
        ctx = Context(
            setup.binder, setup.attention, setup.mesh, model.dtype, setup.max_len, setup.block_tokens, model.formats,
            kv_dtype,
        )  # fmt: skip
        return cls(ctx, model.spec.mtp)

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
