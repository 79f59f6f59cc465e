"""Drafts of a second, smaller model. Its layers run inside the steps of the target (`models.draft_model`)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

from thalweg.drafters import MODEL, RANKS, REVISION, SAMPLING, DrafterOption, read_name, read_sampling, whole
from thalweg.engine.control.speculation.drafter import DeviceDrafter
from thalweg.engine.control.speculation.precision import PRECISION_OPTIONS


def read_model(value: Any) -> str:
    """A check of MODEL."""
    if not isinstance(value, str) or not value.strip():
        raise ValueError(f"must be a directory or a hub id of a draft model, not {value!r}")
    return value


class ModelDrafter(DeviceDrafter):
    options: ClassVar[Mapping[str, DrafterOption]] = {
        MODEL: DrafterOption(read_model), REVISION: DrafterOption(read_name),
        SAMPLING: DrafterOption(read_sampling, default="probabilistic"), RANKS: DrafterOption(whole(1, 1 << 16)),
        **PRECISION_OPTIONS,
    }  # fmt: skip
    divides = True
    declares = "thalweg.models.drafts.draft_model:declare_draft_model"
    proposer = "thalweg.models.draft_model:DraftModelProposer"

    @classmethod
    def settle(cls, options: dict[str, Any]) -> dict[str, Any]:
        if options[MODEL] is None:
            raise ValueError(f"{MODEL}: draft_model needs a directory or a hub id of a model with the target's tokenizer")
        return options
