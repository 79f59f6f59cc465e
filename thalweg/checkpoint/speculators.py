"""Checkpoints of the package `speculators`: a drafter's layers, and a config.json that names the method and the target."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from thalweg.errors import CheckpointError

KIND = "speculators_model_type"
"""The key of the method."""
SETTINGS = "speculators_config"
NESTED = "transformer_layer_config"
"""The key of the layers' settings."""


def read_target(config: Mapping[str, Any]) -> str | None:
    """The hub id or directory of the target. None: it is not said."""
    name = _read_object(_read_object(config, SETTINGS), "verifier").get("name_or_path")
    return name if isinstance(name, str) and name else None


def read_tokens(config: Mapping[str, Any]) -> int | None:
    """The number of drafts that a checkpoint of `speculators` proposes. None: it is not said."""
    settings = _read_object(config, SETTINGS)
    kind, proposals = settings.get("default_proposal_method"), settings.get("proposal_methods") or []
    if not isinstance(proposals, list):
        raise CheckpointError(f"config.json: {SETTINGS}.proposal_methods: must be a list, not {proposals!r:.40}")
    found = [p.get("speculative_tokens") for p in proposals if isinstance(p, dict) and p.get("proposal_type") == kind]
    return found[0] if found and isinstance(found[0], int) else None


def _read_object(config: Mapping[str, Any], key: str) -> Mapping[str, Any]:
    """The object of a key. {} if it is absent or null. CheckpointError if it is no object."""
    value = config.get(key)
    if value is not None and not isinstance(value, dict):
        raise CheckpointError(f"config.json: {key}: must be an object, not {value!r:.40}")
    return value or {}
