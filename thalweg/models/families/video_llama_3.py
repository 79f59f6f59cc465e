"""VideoLLaMA 3, for images: SigLIP with rotary positions, a vector per patch, Qwen2 decoder with positions of one axis."""

from __future__ import annotations

from thalweg.checkpoint.config import Config, real
from thalweg.models.families.common import hidden_size
from thalweg.models.families.multimodal import of_kind, seeing
from thalweg.models.families.towers.common import act, sees_all, size, vision_config
from thalweg.models.spec import Layer, LayerNorm, ModelSpec, Norms, UngatedMLP, VisionSpec
from thalweg.models.spec.vision import ProjectorLayer, ProjectorSpec

NAMES = (("model.vision_model.", "model.vision_tower."), ("model.projector.", "model.multi_modal_projector."))


def video_llama_3(config: Config) -> ModelSpec:
    return seeing(of_kind(config, "qwen2", ("qwen2",)), config, tower, replace=NAMES)


def tower(config: Config) -> tuple[VisionSpec, tuple[str, ...]]:
    section = vision_config(config)
    hidden, patch, e = (
        size(section, "hidden_size", 768),
        size(section, "patch_size", 16),
        real(section, "layer_norm_eps", default=1e-6),
    )
    heads = sees_all(
        size(section, "num_attention_heads", 12), hidden, turned=True, bias=True, out_bias=True, out="out_proj"
    )  # fmt: skip
    gelu = act(section, "hidden_act", "gelu_pytorch_tanh")
    each = Layer(
        heads, UngatedMLP(inner=size(section, "intermediate_size", 3072), bias=True, act=gelu),
        Norms(mixer=LayerNorm("layer_norm1", hidden, e), ffn=LayerNorm("layer_norm2", hidden, e)),
    )  # fmt: skip
    out = hidden_size(config)
    steps = (ProjectorLayer("readout.0", hidden, out, True, "gelu"), ProjectorLayer("readout.2", out, out, True))
    return VisionSpec(
        hidden=hidden, layers=(each,) * size(section, "num_hidden_layers", 12), patch="embeddings.patch_embedding",
        patch_bias=True, kernel=(size(section, "num_channels", 3), patch, patch), layer="encoder.layers.{}.",
        leave=LayerNorm("post_layernorm", hidden, e),
        projector=ProjectorSpec(root="model.multi_modal_projector.", steps=steps),
    ), ()  # fmt: skip
