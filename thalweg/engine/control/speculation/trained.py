"""Drafters with a checkpoint of layers that were trained for one target."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

from thalweg.drafters import MODEL, REVISION, SAMPLING, TOKENS, DrafterOption, read_name, read_sampling, whole
from thalweg.engine.control.speculation.draft_model import read_model
from thalweg.engine.control.speculation.drafter import DeviceDrafter
from thalweg.engine.control.speculation.precision import PRECISION_OPTIONS

MOST = 16
"""Drafts of a sequence, at most, where layers run again over their own output for each further one."""


def trained_options(tokens: int, most: int = MOST) -> Mapping[str, DrafterOption]:
    """tokens: the default number of drafts."""
    return {
        TOKENS: DrafterOption(whole(1, most), default=tokens), MODEL: DrafterOption(read_model),
        REVISION: DrafterOption(read_name), SAMPLING: DrafterOption(read_sampling, default="probabilistic"),
        **PRECISION_OPTIONS,
    }  # fmt: skip


class TrainedDrafter(DeviceDrafter):
    """Subclasses name the declaration of their layers and their proposer."""

    options: ClassVar[Mapping[str, DrafterOption]] = trained_options(3)
    divides = True

    @classmethod
    def settle(cls, options: dict[str, Any]) -> dict[str, Any]:
        if options[MODEL] is None:
            raise ValueError(f"{MODEL}: this method needs a directory or a hub id of a checkpoint trained for the target")
        return options


def first_architecture(config: Mapping[str, Any]) -> str:
    """ "": a config.json names none."""
    return str((config.get("architectures") or [""])[0])
