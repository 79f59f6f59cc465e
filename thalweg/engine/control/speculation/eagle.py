"""Drafts of an EAGLE-1 checkpoint, inside the steps of the target (`models.eagle`)."""

from __future__ import annotations

from thalweg.engine.control.speculation.eagle3 import Eagle3Drafter


class EagleDrafter(Eagle3Drafter):
    declares = "thalweg.models.drafts.eagle:declare_eagle"
    proposer = "thalweg.models.eagle:Eagle1Proposer"
