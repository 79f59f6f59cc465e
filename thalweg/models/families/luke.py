"""LUKE and mLUKE, for texts without entities: RoBERTa, whose attention among words is the plain one."""

from __future__ import annotations

from dataclasses import replace

from thalweg.checkpoint.config import Config
from thalweg.models.families.roberta import roberta
from thalweg.models.spec import ModelSpec


def luke(config: Config) -> ModelSpec:
    spec = roberta(config, "luke.")
    unread = [
        "entity_embeddings.", "entity_predictions.", "lm_head.", "embeddings.position_ids",
        *(f"encoder.layer.{i}.attention.self.{part}_query." for i in range(len(spec.layers)) for part in ("w2e", "e2w", "e2e")),
    ]  # fmt: skip
    skip = (*spec.names.skip, *unread, *(f"luke.{name}" for name in unread))
    return replace(spec, names=replace(spec.names, skip=tuple(dict.fromkeys(skip))))
