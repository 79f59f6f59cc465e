"""The host's side of the drafter `successor`: its options, and where its proposer is. Imports no tensor framework."""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar

from thalweg.drafters import DrafterOption, whole
from thalweg.engine.control.speculation.drafter import DeviceDrafter

BUCKETS = "successor_buckets"


class SuccessorDrafter(DeviceDrafter):
    options: ClassVar[Mapping[str, DrafterOption]] = {BUCKETS: DrafterOption(whole(16, 1 << 20), default=4096)}
    proposer = "thalweg_drafter.proposer:SuccessorProposer"
