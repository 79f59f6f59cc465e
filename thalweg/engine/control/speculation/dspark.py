"""Drafts of a DSpark checkpoint, inside the steps of the target (`models.dspark`)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from thalweg.engine.control.speculation.dflash import DFlashDrafter
from thalweg.engine.control.speculation.trained import first_architecture


class DSparkDrafter(DFlashDrafter):
    declares = "thalweg.models.drafts.dflash:declare_dspark"
    proposer = "thalweg.models.dspark:DSparkProposer"

    @classmethod
    def recognises(cls, config: Mapping[str, Any]) -> bool:
        return "DSpark" in first_architecture(config)
