"""The target's module for multi-token prediction."""

from __future__ import annotations

from pathlib import Path

from thalweg.checkpoint.config import architecture
from thalweg.errors import ConfigError
from thalweg.models.drafts.declared import DraftModel, DraftTarget


def declare_module(path: Path, target: DraftTarget) -> DraftModel:
    """path: the target's. ConfigError: it has no module."""
    if target.spec.mtp is None:
        raise ConfigError(
            f"speculative_config: mtp: {architecture(target.hf)} has no module for multi-token prediction that this version "
            "runs (docs/speculative-decoding.md lists the models with one); use method ngram or suffix"
        )
    return DraftModel(path, dict(target.hf), target.spec.mtp, target.quantization)
