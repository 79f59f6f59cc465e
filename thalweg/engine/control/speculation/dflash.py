"""Drafts of a DFlash checkpoint, inside the steps of the target (`models.dflash`)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

from thalweg.drafters import MOST_DRAFTS, TOKENS, DrafterOption, whole
from thalweg.engine.control.speculation.eagle3 import Eagle3Drafter


class DFlashDrafter(Eagle3Drafter):
    options: ClassVar[Mapping[str, DrafterOption]] = {
        **Eagle3Drafter.options, TOKENS: DrafterOption(whole(1, MOST_DRAFTS), default=7),
    }  # fmt: skip
    declares = "thalweg.models.drafts.dflash:declare_dflash"
    proposer = "thalweg.models.dflash:DFlashProposer"

    @classmethod
    def recognises(cls, config: Mapping[str, Any]) -> bool:
        names = config.get("architectures") or [""]
        return "dflash_config" in config or "DFlash" in str(names[0])

    @property
    def reach(self) -> int:
        """The block: the newest token and the masks."""
        return self.most + 1
