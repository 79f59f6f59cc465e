"""InstructBLIP: BLIP-2 with a Q-Former that reads the prompt too, Vicuna or T5 (Dai et al. 2023, https://arxiv.org/abs/2305.06500)."""

from __future__ import annotations

from dataclasses import fields, replace

from thalweg.checkpoint.config import Config, integer
from thalweg.models.families.blip_2 import build, read_qformer, read_settings
from thalweg.models.families.llama import llama
from thalweg.models.families.t5 import t5
from thalweg.models.spec import ModelSpec, QFormerSpec, TextQFormerSpec

ROOT = "model."
"""Of Llama's names."""


def instructblip(config: Config) -> ModelSpec:
    spec = build(config, {"llama": llama, "t5": t5}, ROOT, _qformer)
    reads = spec.text.vision.reads if spec.text is not None and spec.text.vision is not None else None  # type: ignore[union-attr]
    reads = spec.vision.resampler if spec.vision is not None else reads  # type: ignore[union-attr]
    if not isinstance(reads, TextQFormerSpec):
        return spec
    return replace(spec, names=replace(spec.names, skip=(*spec.names.skip, *reads.unread)))


def _qformer(config: Config, root: str, source: int, window: int) -> QFormerSpec:
    section, result = read_settings(config), read_qformer(config, root, source, window)
    return TextQFormerSpec(
        **{each.name: getattr(result, each.name) for each in fields(result)},
        vocab=integer(section, "vocab_size", high=1 << 24, default=30_522),
        places=integer(section, "max_position_embeddings", high=1 << 16, default=512),
    )
