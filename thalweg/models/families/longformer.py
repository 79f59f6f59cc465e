"""Longformer: RoBERTa with bidirectional windows. No token attends to all, as in transformers without a
`global_attention_mask`. So its classifiers, whose first token attends to all, have no family."""

from __future__ import annotations

from dataclasses import replace

from thalweg.checkpoint.config import Config
from thalweg.errors import CheckpointError, UnsupportedModelError
from thalweg.models.families.roberta import roberta
from thalweg.models.spec import Attention, ModelSpec


def longformer(config: Config) -> ModelSpec:
    spec = roberta(config, "longformer.")
    windows = widths(config.get("attention_window", 512), len(spec.layers))
    if config.get("onnx_export"):
        raise UnsupportedModelError("config.json: onnx_export: only false is supported")
    layers = []
    for layer, width in zip(spec.layers, windows, strict=True):
        assert isinstance(layer.mixer, Attention)
        layers.append(replace(layer, mixer=replace(layer.mixer, window=width // 2 + 1)))
    unread = tuple(
        f"{prefix}encoder.layer.{i}.attention.self.{part}_global."
        for prefix in ("", "longformer.") for i in range(len(layers)) for part in ("query", "key", "value")
    )  # fmt: skip
    return replace(spec, layers=tuple(layers), names=replace(spec.names, skip=(*spec.names.skip, *unread)))


def widths(value: object, count: int) -> list[int]:
    """`attention_window`: tokens of each layer's window, both sides of a token together."""
    each = value if isinstance(value, list) else [value] * count
    windows = [n for n in each if type(n) is int and n > 0 and n % 2 == 0]
    if len(each) != count or len(windows) != count:
        raise CheckpointError(f"config.json: attention_window: must be an even number, or {count} of them, one for each layer")
    return windows
