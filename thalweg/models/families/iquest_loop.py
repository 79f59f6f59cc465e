"""IQuest-Coder Loop: Llama's layers twice. In the second loop a gate per head mixes attention to the first loop's keys and
values with attention within a window."""

from __future__ import annotations

from dataclasses import replace

from thalweg.checkpoint.config import Config, integer
from thalweg.errors import UnsupportedModelError
from thalweg.models.families.llama import llama
from thalweg.models.spec import Attention, Layer, LoopedAttention, LoopedHeads, ModelSpec


def iquest_loop(config: Config) -> ModelSpec:
    if integer(config, "loop_num", default=2) != 2:
        raise UnsupportedModelError("config.json: loop_num: 2 loops are supported")
    result = llama({"rope_theta": 500_000.0, **config})
    count, window = len(result.layers), integer(config, "loop_window_size", high=1 << 24, default=64)
    second = tuple(_loop(layer, i, window) for i, layer in enumerate(result.layers))
    return replace(result, layers=result.layers + second, numbers=tuple(range(count)) * 2)


def _loop(layer: Layer, i: int, window: int) -> Layer:
    assert isinstance(layer.mixer, Attention)
    far = LoopedHeads(first=layer.mixer, reads=i, gates=f"model.gate_projections.{i}")
    return replace(layer, mixer=(far, LoopedAttention(near=replace(layer.mixer, window=window))))
