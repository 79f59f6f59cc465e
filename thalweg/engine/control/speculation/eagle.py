"""Drafts of an EAGLE-1 checkpoint, inside the steps of the target (`models.eagle`)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from thalweg.engine.control.speculation.eagle3 import Eagle3Drafter


class EagleDrafter(Eagle3Drafter):
    @classmethod
    def recognises(cls, config: Mapping[str, Any]) -> bool:
        """Only by the name that vLLM gives: its authors call it a Llama."""
        return str((config.get("architectures") or [""])[0]).startswith("EagleLlama")

    declares = "thalweg.models.drafts.eagle:declare_eagle"
    proposer = "thalweg.models.eagle:Eagle1Proposer"
