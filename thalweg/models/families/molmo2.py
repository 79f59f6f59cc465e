"""Molmo 2: SigLIP encoder of overlapping tiles, a vector for each window of patches, Qwen 3 or OLMo 3 decoder. Tokens of an
image attend to each other in both directions (https://arxiv.org/abs/2601.10611)."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from thalweg.checkpoint.config import Config, flag, integer, real, section, text
from thalweg.checkpoint.spelling import HEAD_ROWS
from thalweg.errors import CheckpointError, UnsupportedModelError
from thalweg.media.processors.base import edge
from thalweg.models.families.common import attention, decoder, eps, head_size, hidden_size, layer_count, mlp, rope
from thalweg.models.families.multimodal import is_blind, seeing
from thalweg.models.families.towers.common import act, outer_config, sees_all, size, vision_config
from thalweg.models.spec import (
    HeadNorm,
    Layer,
    LayerNorm,
    ModelSpec,
    Norm,
    Norms,
    Rope,
    UngatedMLP,
    VisionSpec,
    WindowPoolSpec,
)
from thalweg.models.spec.vision import ProjectorSpec

ROOT = "model.transformer."
NAMES = (
    ("model.vision_backbone.image_vit.", f"{ROOT}vision_tower."), ("model.vision_backbone.", f"{ROOT}projector."),
)  # fmt: skip
INSIDE = (("wte.embedding", "wte.weight"), ("vision_tower.positional_embedding", "vision_tower.positional_embedding.weight"))


def molmo2(config: Config) -> ModelSpec:
    """`rope_scaling_layers`: those whose rotary positions are scaled; absent = all."""
    config = {"rms_norm_eps": config.get("layer_norm_eps", 1e-6), **config}
    hidden, e, whole = hidden_size(config), eps(config), text(config, "qk_norm_type", "qwen3")
    if whole not in ("qwen3", "olmo") or not flag(config, "use_qk_norm", True):
        raise UnsupportedModelError("config.json: text_config: only QK-norms of type qwen3 and olmo are supported")
    before, after = Norm("attn_norm", hidden, e), Norm("ff_norm", hidden, e)
    last = flag(config, "norm_after", False)
    norms = Norms(mixer_out=before, ffn_out=after) if last else Norms(mixer=before, ffn=after)
    bias = flag(config, "attention_bias", flag(config, "qkv_bias", False))
    scaled, plain = _ropes(config)
    layers = [
        Layer(
            attention(
                config, head_dim=head_size(config), rope=scaled if i in _scaled_layers(config) else plain, bias=bias,
                norm=HeadNorm(e, whole=whole == "olmo"), fused="att_proj", out="attn_out", spans=not is_blind(config),
            ),
            mlp(config, fused="ff_proj", swapped=True, down="ff_out"), norms,
        )
        for i in range(layer_count(config))
    ]  # fmt: skip
    total = integer(config, "vocab_size")
    rows = integer(config, HEAD_ROWS, default=total)
    spec = decoder(
        config, layers, root=ROOT, layer="blocks.{}.", embed="wte", norm=Norm("ln_f", hidden, e), tied=False,
        head_rows=rows if total > rows else 0, table_more=("wte.new_embedding", total - rows) if total > rows else None,
    )  # fmt: skip
    result = seeing(spec, config, tower, replace=NAMES, inside=INSIDE)
    if result.vision is None:
        skip = (*result.names.skip, "model.vision_backbone.", f"{ROOT}vision_tower.", f"{ROOT}projector.")
        return replace(result, names=replace(result.names, skip=skip))
    return replace(result, overlays_added=True)


def _ropes(config: Config) -> tuple[Rope, Rope]:
    """With the scaling of the file, and without it."""
    settings = section(config, "rope_scaling") or section(config, "rope_parameters")
    plain = {
        **config,
        "rope_scaling": None,
        "rope_parameters": {"rope_theta": settings.get("rope_theta", config.get("rope_theta"))},
    }
    return rope(config, head_size(config)), rope(plain, head_size(config))


def _scaled_layers(config: Config) -> frozenset[int]:
    found = config.get("rope_scaling_layers")
    if found is None:
        return frozenset(range(layer_count(config)))
    if not isinstance(found, list) or not all(type(i) is int for i in found):
        raise CheckpointError("config.json: text_config: rope_scaling_layers: must be a list of layers")
    return frozenset(found)


def tower(config: Config) -> tuple[VisionSpec, tuple[str, ...]]:
    """Layers up to the last that is read."""
    settings = spell_vision(vision_config(config))
    reads: Any = outer_config(config).get("adapter_config") or {}
    if not isinstance(reads, dict):
        raise CheckpointError("config.json: adapter_config: must be an object")
    hidden, depth = size(settings, "hidden_size", 1152), size(settings, "num_hidden_layers", 25)
    heads, head_dim = size(settings, "num_attention_heads", 16), size(settings, "head_dim", 72)
    for part in (settings, reads):
        if size(part, "num_key_value_heads", 16) != size(part, "num_attention_heads", 16):
            raise UnsupportedModelError("config.json: num_key_value_heads: the encoder requires as many as num_attention_heads")
    layers = reads.get("vit_layers", reads.get("vision_feature_layer"))
    layers = [24, 18] if layers is None else layers
    if not isinstance(layers, list) or not layers or not all(type(n) is int and -depth <= n < depth for n in layers):
        raise CheckpointError(f"config.json: adapter_config: vit_layers: must be layers of {depth}, not {layers!r:.60}")
    layers = [n % depth for n in layers]
    bias, e, patch = (
        flag(settings, "attention_bias", True),
        real(settings, "layer_norm_eps", default=1e-6),
        size(settings, "patch_size", 14),
    )
    each = Layer(
        sees_all(
            heads, hidden, head_dim=head_dim, bias=bias, out_bias=bias, name="attention", parts=("wq", "wk", "wv"), out="wo"
        ),
        UngatedMLP(
            inner=size(settings, "intermediate_size", 4304), bias=True, act=act(settings, "hidden_act", "gelu_pytorch_tanh"),
            name="feed_forward", up="w1", down="w2",
        ),
        Norms(mixer=LayerNorm("attention_norm", hidden, e), ffn=LayerNorm("ffn_norm", hidden, e)),
    )  # fmt: skip
    run = max(layers) + 1
    unread = tuple(f"{ROOT}vision_tower.transformer.resblocks.{i}." for i in range(run, depth))
    return VisionSpec(
        hidden=hidden, layers=(each,) * run, projector=ProjectorSpec(root="", steps=()), patch="patch_embedding",
        kernel=(size(settings, "num_channels", 3) * patch**2,), patch_bias=True, root=f"{ROOT}vision_tower.",
        layer="transformer.resblocks.{}.", places="positional_embedding",
        rows=size(settings, "num_position_embeddings", (edge(settings, "image_size", 378) // patch) ** 2), reads=tuple(layers),
        resampler=_pool(reads, hidden * len(layers)),
    ), unread  # fmt: skip


def spell_vision(settings: Config) -> Config:
    """`vit_config` with the keys of transformers."""
    names = {
        "image_default_input_size": "image_size", "image_patch_size": "patch_size", "image_num_pos": "num_position_embeddings",
    }  # fmt: skip
    return {names.get(key, key): value for key, value in settings.items() if value is not None}


def _pool(settings: Config, inputs: int) -> WindowPoolSpec:
    return WindowPoolSpec(
        root=f"{ROOT}projector.", inputs=inputs, hidden=size(settings, "hidden_size", 1152),
        heads=size(settings, "num_attention_heads", 16), head_dim=size(settings, "head_dim", 72),
        bias=flag(settings, "attention_bias", True), inner=size(settings, "intermediate_size", 18_944),
        act=act(settings, "hidden_act", "silu"), inner_bias=flag(settings, "mlp_bias", False),
    )  # fmt: skip
