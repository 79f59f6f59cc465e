"""Drafts of a P-EAGLE checkpoint, inside the steps of the target (`models.peagle`)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

from thalweg.drafters import PARALLEL, DrafterOption
from thalweg.engine.control.speculation.trained import TrainedDrafter, first_architecture, trained_options


def _read_parallel(value: Any) -> bool:
    if value is not True:
        raise ValueError("must be true: drafts of this method come from one pass")
    return True


class PEagleDrafter(TrainedDrafter):
    options: ClassVar[Mapping[str, DrafterOption]] = {
        **trained_options(7), PARALLEL: DrafterOption(_read_parallel, default=True),
    }  # fmt: skip
    declares = "thalweg.models.drafts.eagle3:declare_peagle"
    proposer = "thalweg.models.peagle:PEagleProposer"

    @classmethod
    def recognises(cls, config: Mapping[str, Any]) -> bool:
        """Its authors call it an EAGLE-3 drafter with `parallel_drafting`."""
        name = first_architecture(config)
        return "PEagle" in name or bool(config.get("parallel_drafting") and "Eagle3" in name)
