"""Drafts of an EAGLE-3 checkpoint, inside the steps of the target (`models.eagle3`)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

from thalweg.drafters import MODEL, REVISION, SAMPLING, TOKENS, DrafterOption, read_name, read_sampling, whole
from thalweg.engine.control.speculation.draft_model import read_model
from thalweg.engine.control.speculation.drafter import DeviceDrafter

MOST = 16
"""Drafts of a sequence, at most: for each further one the layers run again over their own output."""


class Eagle3Drafter(DeviceDrafter):
    options: ClassVar[Mapping[str, DrafterOption]] = {
        TOKENS: DrafterOption(whole(1, MOST), default=3), MODEL: DrafterOption(read_model),
        REVISION: DrafterOption(read_name), SAMPLING: DrafterOption(read_sampling, default="probabilistic"),
    }  # fmt: skip
    divides = True
    declares = "thalweg.models.drafts.eagle3:declare_eagle3"
    proposer = "thalweg.models.eagle3:Eagle3Proposer"

    @classmethod
    def recognises(cls, config: Mapping[str, Any]) -> bool:
        names = config.get("architectures") or [""]
        return "Eagle3" in str(names[0]) or "draft_vocab_size" in config

    @classmethod
    def settle(cls, options: dict[str, Any]) -> dict[str, Any]:
        if options[MODEL] is None:
            raise ValueError(f"{MODEL}: this method needs a directory or a hub id of a checkpoint trained for the target")
        return options
