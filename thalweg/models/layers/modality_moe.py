"""An MoE for tokens of text, and one for those of images."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch

from thalweg.hal.step import Array
from thalweg.models.context import Context
from thalweg.models.flow import Flow
from thalweg.models.layers.mlp import GatedMLP
from thalweg.models.layers.moe import Experts
from thalweg.models.spec import ModalityMoE


class ModalityExperts:
    """x [T, hidden] -> [T, hidden]."""

    def __init__(self, ctx: Context, spec: ModalityMoE, weights: Mapping[str, Any]) -> None:
        self._text, self._image = Experts(ctx, spec.text, weights["text"]), Experts(ctx, spec.image, weights["image"])
        self._shared = None if spec.shared is None else GatedMLP(ctx, spec.shared, weights["shared"])
        self._ids = spec.ids
        self.specs: dict[str, Any] = {"text": self._text.specs, "image": self._image.specs}
        if self._shared is not None:
            self.specs["shared"] = self._shared.specs

    def __call__(self, p: Mapping[str, Any], x: Array, flow: Flow) -> Array:
        tokens = flow.cut(flow.batch.tokens)
        shown = torch.zeros_like(tokens, dtype=torch.bool)
        for id in self._ids:
            shown = shown | (tokens == id)
        out = torch.where(shown.unsqueeze(1), self._image(p["image"], x, flow), self._text(p["text"], x, flow))
        return out if self._shared is None else out + self._shared(p["shared"], x, flow)
