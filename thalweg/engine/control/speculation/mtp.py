"""Drafts of the target's own module for multi-token prediction, inside its steps (`models.mtp`)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar

from thalweg.drafters import SAMPLING, TOKENS, DrafterOption, read_sampling, whole
from thalweg.engine.control.speculation.drafter import DeviceDrafter
from thalweg.engine.control.speculation.precision import CACHE_OPTIONS

MOST = 16
"""Drafts of one module, at most: each runs it again over its own output."""


class MTPDrafter(DeviceDrafter):
    options: ClassVar[Mapping[str, DrafterOption]] = {
        TOKENS: DrafterOption(whole(1, MOST), default=1), SAMPLING: DrafterOption(read_sampling, default="probabilistic"),
        **CACHE_OPTIONS,
    }  # fmt: skip
    divides = True
    declares = "thalweg.models.drafts.mtp:declare_module"
    proposer = "thalweg.models.mtp:MTPProposer"
