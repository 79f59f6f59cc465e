"""Settings shared by encoders' configurations."""

from __future__ import annotations

from typing import Any

from thalweg.checkpoint.config import BESIDE, Config, flag, integer, text
from thalweg.errors import CheckpointError, UnsupportedModelError
from thalweg.models.families.common import UNGATED
from thalweg.models.spec import Attention, Rope
from thalweg.models.spec.vision import ProjectorLayer, ProjectorSpec

ACTS = {**UNGATED, "quick_gelu": "gelu_quick"}


def outer_config(config: Config) -> Config:
    """The file's settings outside the text part."""
    found = config.get(BESIDE)
    return found if isinstance(found, dict) else config


def vision_config(config: Config) -> Config:
    """`vision_config`. CheckpointError if there is none."""
    found = outer_config(config).get("vision_config")
    if not isinstance(found, dict):
        raise CheckpointError("config.json: vision_config: missing")
    return found


def act(config: Config, key: str, default: str) -> str:
    name = text(config, key, default)
    if name not in ACTS:
        raise UnsupportedModelError(f"config.json: {key}: unknown {name!r:.80}; supported: {', '.join(ACTS)}")
    return ACTS[name]


def size(config: Config, key: str, default: int) -> int:
    return integer(config, key, high=1 << 20, default=default)


def sees_all(heads: int, hidden: int, *, turned: bool = False, head_dim: int = 0, **more: Any) -> Attention:
    """Attention over whole images. turned: rotary positions, which come with the patches."""
    if hidden % heads and not head_dim:
        raise CheckpointError(f"config.json: vision_config: {heads} heads do not divide {hidden}")
    head_dim = head_dim or hidden // heads
    rope = Rope({"rope_type": "default", "rope_theta": 1e4}, head_dim, 1, given=True) if turned else None
    return Attention(heads=heads, kv_heads=heads, head_dim=head_dim, rope=rope, causal=False, **more)


def feature_layers(config: Config, layers: int, default: int) -> tuple[int, ...]:
    """Layers to read, counted from 1. `vision_feature_layer` counts hidden states, one more than layers."""
    section = outer_config(config).get("vision_feature_layer", default)
    found = section if isinstance(section, list) and section else [section]
    if any(isinstance(n, bool) or not isinstance(n, int) or not -layers <= n <= layers or n == 0 for n in found):
        raise UnsupportedModelError(
            f"config.json: vision_feature_layer: {section!r:.40} is not supported by this version: give layers from 1 to "
            f"{layers}, or negative ones from the last; --language-model-only serves the text part"
        )
    return tuple(n if n > 0 else layers + 1 + n for n in found)


def with_defaults(config: Config, **defaults: Any) -> Config:
    """The same with defaults for keys absent from `vision_config`."""
    return {**config, BESIDE: {**outer_config(config), "vision_config": {**defaults, **vision_config(config)}}}


def two_layers(
    config: Config, inputs: int, hidden: int, default_bias: bool, first: ProjectorLayer | None = None, **more: Any
) -> ProjectorSpec:
    """LLaVA's projector: linear_1, an activation, linear_2. first: a layer before them."""
    around = outer_config(config)
    bias = flag(around, "multimodal_projector_bias", default_bias)
    steps: tuple[ProjectorLayer, ...] = (
        ProjectorLayer("linear_1", inputs, hidden, bias, act(around, "projector_hidden_act", "gelu")),
        ProjectorLayer("linear_2", hidden, hidden, bias),
    )
    if first is not None:
        steps = (first, *steps)
    return ProjectorSpec(root="model.multi_modal_projector.", steps=steps, **more)
