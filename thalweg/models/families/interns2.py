"""Intern-S2-Preview: Qwen3.5's mixtures with images and videos. Encoder and forecaster of time series are not loaded."""

from __future__ import annotations

from dataclasses import replace

from thalweg.checkpoint.config import Config
from thalweg.models.families.multimodal import qwen3_5_moe
from thalweg.models.spec import ModelSpec

SERIES = ("model.time_series.", "time_series.", "time_series_forecaster.")


def interns2(config: Config) -> ModelSpec:
    spec = qwen3_5_moe(config)
    return replace(spec, names=replace(spec.names, skip=(*spec.names.skip, *SERIES)))
