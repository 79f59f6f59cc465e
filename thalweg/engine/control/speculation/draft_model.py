"""Drafts of a second, smaller model. Its layers run inside the steps of the target (`models.draft_model`)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

from thalweg.drafters import MODEL, DrafterOption
from thalweg.engine.control.speculation.drafter import DeviceDrafter

SAMPLING = "draft_sample_method"
SAMPLINGS = ("probabilistic", "greedy")


def _model(value: Any) -> str:
    if not isinstance(value, str) or not value.strip():
        raise ValueError(f"must be a directory or a hub id of a draft model, not {value!r}")
    return value


def _sampling(value: Any) -> str:
    if value not in SAMPLINGS:
        raise ValueError(f"must be one of {', '.join(SAMPLINGS)}, not {value!r}")
    return str(value)


class ModelDrafter(DeviceDrafter):
    options: ClassVar[Mapping[str, DrafterOption]] = {
        MODEL: DrafterOption(_model), SAMPLING: DrafterOption(_sampling, default=SAMPLINGS[0]),
    }  # fmt: skip
    runs_model = True
    proposer = "thalweg.models.draft_model:DraftModelProposer"

    @classmethod
    def settle(cls, options: dict[str, Any]) -> dict[str, Any]:
        if options[MODEL] is None:
            raise ValueError(f"{MODEL}: draft_model needs a directory or a hub id of a model with the target's tokenizer")
        return options
