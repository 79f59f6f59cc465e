"""Ovis 2 in the format of its authors: AIMv2 encoder, probabilities over a visual vocabulary, Qwen2, Llama or Gemma 2."""

from __future__ import annotations

from dataclasses import replace

from thalweg.checkpoint.config import Config, flag, text
from thalweg.errors import UnsupportedModelError
from thalweg.models.families import ovis2
from thalweg.models.families.multimodal import of_kind, seeing
from thalweg.models.families.towers.common import vision_config
from thalweg.models.spec import MLP, Attention, ModelSpec, Norm, Norms, VisionSpec

ROOT = ovis2.ROOT
NAMES = (
    ("visual_tokenizer.head.0.", f"{ROOT}head_linear."), ("visual_tokenizer.head.1.", f"{ROOT}head_norm."),
    ("visual_tokenizer.backbone.", ROOT), ("vte.", f"model.{ovis2.TABLE}."), ("llm.model.", "model."),
    ("llm.lm_head.", "lm_head."),
)  # fmt: skip


def ovis(config: Config) -> ModelSpec:
    return seeing(of_kind(config, "qwen2", ("gemma2", "llama", "qwen2")), config, tower, replace=NAMES)


def tower(config: Config) -> tuple[VisionSpec, tuple[str, ...]]:
    """The last layer's output is not normalised, though files contain the norm."""
    section = vision_config(config)
    if (kind := text(section, "model_type", "aimv2")) != "aimv2":
        raise UnsupportedModelError(
            f"config.json: visual_tokenizer_config: backbone_config: model_type: {kind!r:.40}: only aimv2 is supported; "
            "--language-model-only serves the text part"
        )
    result, unread = ovis2.tower(config)
    each, bias = result.layers[0], flag(section, "use_bias", False)
    assert isinstance(each.mixer, Attention)
    assert isinstance(each.ffn, MLP)
    first, second, embedded = each.norms.mixer, each.norms.ffn, result.embedded
    assert isinstance(first, Norm)
    assert isinstance(second, Norm)
    assert isinstance(embedded, Norm)
    each = replace(
        each, mixer=replace(each.mixer, name="attn", fused="qkv", out="proj", out_bias=bias),
        ffn=replace(each.ffn, name="mlp", gate="fc1", up="fc3", down="fc2", bias=bias),
        norms=Norms(mixer=replace(first, name="norm_1"), ffn=replace(second, name="norm_2")),
    )  # fmt: skip
    result = replace(
        result, layers=(each,) * len(result.layers), patch="preprocessor.patchifier.proj", layer="trunk.blocks.{}.", leave=None,
        places="preprocessor.pos_embed", stacks=1, embedded=replace(embedded, name="preprocessor.patchifier.norm"),
    )  # fmt: skip
    return result, (*unread, f"{ROOT}trunk.post_trunk_norm.")
