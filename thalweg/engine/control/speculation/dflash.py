"""Drafts of a DFlash checkpoint, inside the steps of the target (`models.dflash`)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

from thalweg.drafters import MOST_DRAFTS, DrafterOption
from thalweg.engine.control.speculation.trained import TrainedDrafter, first_architecture, trained_options


class DFlashDrafter(TrainedDrafter):
    options: ClassVar[Mapping[str, DrafterOption]] = trained_options(7, MOST_DRAFTS)
    declares = "thalweg.models.drafts.dflash:declare_dflash"
    proposer = "thalweg.models.dflash:DFlashProposer"

    @classmethod
    def recognises(cls, config: Mapping[str, Any]) -> bool:
        return "dflash_config" in config or "DFlash" in first_architecture(config)

    @property
    def reach(self) -> int:
        """The block: the newest token and the masks."""
        return self.most + 1
