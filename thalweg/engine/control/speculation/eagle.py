"""Drafts of an EAGLE-1 checkpoint, inside the steps of the target (`models.eagle`)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from thalweg.engine.control.speculation.trained import TrainedDrafter, first_architecture


class EagleDrafter(TrainedDrafter):
    declares = "thalweg.models.drafts.eagle:declare_eagle"
    proposer = "thalweg.models.eagle:Eagle1Proposer"

    @classmethod
    def recognises(cls, config: Mapping[str, Any]) -> bool:
        """Only by the name that vLLM gives: its authors call it a Llama."""
        return first_architecture(config).startswith("EagleLlama")
