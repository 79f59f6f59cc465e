"""Drafts of an EAGLE-3 checkpoint, inside the steps of the target (`models.eagle3`)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from thalweg.engine.control.speculation.trained import TrainedDrafter, first_architecture


class Eagle3Drafter(TrainedDrafter):
    declares = "thalweg.models.drafts.eagle3:declare_eagle3"
    proposer = "thalweg.models.eagle3:Eagle3Proposer"

    @classmethod
    def recognises(cls, config: Mapping[str, Any]) -> bool:
        return not config.get("parallel_drafting") and (
            "Eagle3" in first_architecture(config) or "draft_vocab_size" in config
        )  # fmt: skip
