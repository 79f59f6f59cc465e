"""MiMo (7B): Qwen 2 with multi-token-prediction layers, which this version does not run."""

from __future__ import annotations

from dataclasses import replace

from thalweg.checkpoint.config import Config
from thalweg.models.families.qwen2 import qwen2
from thalweg.models.spec import ModelSpec, Names


def mimo(config: Config) -> ModelSpec:
    return replace(qwen2(config), names=Names(skip=("model.mtp_layers.",)))
