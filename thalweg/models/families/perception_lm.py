"""PerceptionLM: Perception Encoder with two-axis RoPE, two linear layers, the mean of four vectors, Llama decoder
(https://arxiv.org/abs/2504.13180)."""

from __future__ import annotations

from dataclasses import replace

from thalweg.checkpoint.config import Config
from thalweg.media.processors.perception_lm import read_encoder
from thalweg.models.families.common import hidden_size
from thalweg.models.families.multimodal import of_kind, seeing
from thalweg.models.families.towers.common import sees_all
from thalweg.models.spec import Layer, LayerNorm, ModelSpec, Norms, Scale, UngatedMLP, VisionSpec
from thalweg.models.spec.vision import ProjectorLayer, ProjectorSpec

NAMES = (("model.vision_tower.timm_model.", "model.vision_tower."),)
EPS = 1e-5


def perception_lm(config: Config) -> ModelSpec:
    return seeing(of_kind(config, "llama", ("llama",)), config, tower, replace=NAMES)


def tower(config: Config) -> tuple[VisionSpec, tuple[str, ...]]:
    """Without a norm behind the layers."""
    eye, out = read_encoder(config), hidden_size(config)
    hidden, patch = eye.hidden, eye.patch
    mixer = sees_all(eye.heads, hidden, turned=True, name="attn", fused="qkv", out="proj", bias=True, out_bias=True)
    assert mixer.rope is not None
    scales = {"mixer_out": Scale("gamma_1", hidden), "ffn_out": Scale("gamma_2", hidden)} if eye.scaled else {}
    each = Layer(
        replace(mixer, rope=replace(mixer.rope, interleaved=True)), UngatedMLP(inner=eye.inner, bias=True, act="gelu"),
        Norms(mixer=LayerNorm("norm1", hidden, EPS), ffn=LayerNorm("norm2", hidden, EPS), **scales),
    )  # fmt: skip
    steps = (ProjectorLayer("linear_1", hidden, out, True, "gelu"), ProjectorLayer("linear_2", out, out, True))
    return VisionSpec(
        hidden=hidden, layers=(each,) * eye.layers, patch="patch_embed.proj", kernel=(3, patch, patch), layer="blocks.{}.",
        whole="cls_token" if eye.whole else "", places="pos_embed", rows=(eye.side // patch) ** 2 + eye.whole, stacks=1,
        enter=LayerNorm("norm_pre", hidden, EPS),
        projector=ProjectorSpec(root="model.multi_modal_projector.", steps=steps),
    ), ()  # fmt: skip
