"""Checkpoints of the package `speculators`: a drafter's layers, and a config.json that names the method and the target."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

KIND = "speculators_model_type"
"""The key of the method."""
SETTINGS = "speculators_config"
NESTED = "transformer_layer_config"
"""The key of the layers' settings."""


def read_target(config: Mapping[str, Any]) -> str | None:
    """The hub id or directory of the target. None: it is not said."""
    name = ((config.get(SETTINGS) or {}).get("verifier") or {}).get("name_or_path")
    return name if isinstance(name, str) and name else None


def read_tokens(config: Mapping[str, Any]) -> int | None:
    """The number of drafts that a checkpoint of `speculators` proposes. None: it is not said."""
    settings = config.get(SETTINGS) or {}
    kind, proposals = settings.get("default_proposal_method"), settings.get("proposal_methods") or []
    found = [p.get("speculative_tokens") for p in proposals if isinstance(p, dict) and p.get("proposal_type") == kind]
    return found[0] if found and isinstance(found[0], int) else None
