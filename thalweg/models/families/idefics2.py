"""Idefics 2: SigLIP encoder for any aspect ratio, a perceiver resampler, Mistral decoder."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from thalweg.checkpoint.config import Config, integer, real
from thalweg.errors import CheckpointError
from thalweg.models.families.common import hidden_size
from thalweg.models.families.multimodal import of_kind, seeing
from thalweg.models.families.towers.clip import encoder
from thalweg.models.families.towers.common import act, outer_config, size, vision_config, with_defaults
from thalweg.models.spec import ModelSpec, PerceiverSpec, VisionSpec
from thalweg.models.spec.vision import ProjectorSpec

VISION = {
    "hidden_size": 768, "intermediate_size": 3072, "num_hidden_layers": 12, "num_attention_heads": 12, "image_size": 224,
    "patch_size": 32, "hidden_act": "gelu_pytorch_tanh",
}  # fmt: skip
ROOT = "model.vision_model."
CONNECTOR = "model.connector."


def idefics2(config: Config) -> ModelSpec:
    spec = of_kind({"rms_norm_eps": 1e-5, **config}, "mistral", ("mistral",))
    return seeing(spec, config, tower, replace=(("model.text_model.", "model."),))


def tower(config: Config) -> tuple[VisionSpec, tuple[str, ...]]:
    """All layers, and the norm behind them."""
    config = with_defaults(config, **VISION, model_type="idefics2_vision")
    section = vision_config(config)
    result, _ = encoder(config, size(section, "num_hidden_layers", 12), ProjectorSpec(root="", steps=()), normed=True)
    return replace(result, root=ROOT, resampler=_perceiver(config, result.hidden)), ()


def _perceiver(config: Config, inputs: int) -> PerceiverSpec:
    """`hidden_size` of its settings counts only if it is the decoder's, as otherwise those settings are the defaults of another
    size. Then the decoder's norms are its own, too."""
    section: Any = outer_config(config).get("perceiver_config") or {}
    if not isinstance(section, dict):
        raise CheckpointError("config.json: perceiver_config: must be an object")
    hidden = hidden_size(config)
    same = size(section, "hidden_size", 4096) == hidden
    eps = real(section, "rms_norm_eps", default=1e-6) if same else real(config, "rms_norm_eps", default=1e-5)
    heads, kv_heads = size(section, "resampler_n_heads", 16), size(section, "num_key_value_heads", 4)
    if heads % kv_heads:
        raise CheckpointError(f"config.json: perceiver_config: num_key_value_heads: {kv_heads} must divide {heads} heads")
    return PerceiverSpec(
        root=CONNECTOR, queries=integer(section, "resampler_n_latents", high=1 << 12, default=64), inputs=inputs,
        inner=integer(config, "intermediate_size", high=1 << 20, default=14_336), act=act(config, "hidden_act", "silu"),
        hidden=hidden, layers=size(section, "resampler_depth", 3), heads=heads, kv_heads=kv_heads,
        head_dim=size(section, "resampler_head_dim", 96), layer_act=act(section, "hidden_act", "silu"), eps=eps,
    )  # fmt: skip
