"""SAM's encoder, as the configurations of models for documents declare it."""

from __future__ import annotations

from typing import Any

from thalweg.checkpoint.config import Config, flag, integer, real
from thalweg.errors import CheckpointError
from thalweg.media.processors.base import edge
from thalweg.models.families.towers.common import act, size
from thalweg.models.spec import SamSpec

WIDE = [2, 5, 8, 11]
"""Layers that see a whole view, unless the file names others."""


def sam(section: Config, *, tile: int = 0, **more: Any) -> SamSpec:
    """section: the encoder's part of the configuration. tile: pixels of an edge of all views but the last; 0 = as of the last.
    more: fields of `SamSpec` that the family decides."""
    hidden, heads, patch = (
        size(section, "hidden_size", 768),
        size(section, "num_attention_heads", 12),
        edge(section, "patch_size", 16),
    )
    layers, side = size(section, "num_hidden_layers", 12), edge(section, "image_size", 1024)
    wide = section.get("global_attn_indexes", WIDE)
    if not isinstance(wide, list) or not all(type(i) is int and i >= 0 for i in wide):
        raise CheckpointError(f"config.json: global_attn_indexes: must be a list of layers, not {wide!r:.80}")
    if hidden % heads:
        raise CheckpointError(f"config.json: vision_config: {heads} heads do not divide {hidden}")
    ratio = real(section, "mlp_ratio", 0.01, 100, default=4.0)
    return SamSpec(
        hidden=hidden, layers=layers, heads=heads, patch=patch, window=integer(section, "window_size", default=14),
        inner=int(hidden * ratio) if section.get("mlp_dim") is None else size(section, "mlp_dim", 3072),
        act=act(section, "hidden_act", "gelu"), eps=real(section, "layer_norm_eps", default=1e-6), wide=frozenset(wide),
        grid=side // patch, tile=(tile or side) // patch, channels=size(section, "output_channels", 256),
        bias=flag(section, "qkv_bias", True), places=flag(section, "use_abs_pos", True),
        distances=flag(section, "use_rel_pos", True), **more,
    )  # fmt: skip
