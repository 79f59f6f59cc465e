"""DeepSeek-VL and Janus as their authors publish them: SigLIP encoder of timm's names, linear layers, Llama decoder. Images as
output are not supported."""

from __future__ import annotations

from thalweg.checkpoint.config import Config
from thalweg.errors import CheckpointError
from thalweg.media.processors.deepseek_vl import read_aligner, read_tower
from thalweg.models.families.common import hidden_size
from thalweg.models.families.multimodal import is_blind, of_kind, seeing
from thalweg.models.families.towers.common import sees_all
from thalweg.models.spec import Layer, LayerNorm, ModelSpec, Norms, UngatedMLP, VisionSpec
from thalweg.models.spec.vision import ProjectorLayer, ProjectorSpec

TOWER, ALIGNER = "model.vision_tower.", "model.aligner."
NAMES = (("vision_model.vision_tower.", TOWER), ("aligner.", ALIGNER))
DRAWS = ("gen_vision_model.", "gen_aligner.", "gen_head.", "gen_embed.")
"""Tensors for images as output."""
EPS = 1e-6


def multi_modality(config: Config) -> ModelSpec:
    spec = of_kind({"tie_word_embeddings": False, **config}, "llama", ("llama",))
    unread = (*DRAWS, *((TOWER, ALIGNER) if is_blind(config) else ()))
    return seeing(spec, config, tower, replace=NAMES, skip=unread)


def tower(config: Config) -> tuple[VisionSpec, tuple[str, ...]]:
    """The layers up to the selected one, and the norm behind them."""
    section, (depth, inputs, out) = read_tower(config), read_aligner(config)
    hidden = section.hidden
    if (inputs, out) != (hidden, hidden_size(config)):
        raise CheckpointError(
            f"config.json: aligner_config: input_dim and n_embed: {inputs} and {out} must be {hidden} and {hidden_size(config)}"
        )
    each = Layer(
        sees_all(section.heads, hidden, name="attn", fused="qkv", out="proj", bias=True, out_bias=True),
        UngatedMLP(inner=section.inner, bias=True, act="gelu"),
        Norms(mixer=LayerNorm("norm1", hidden, EPS), ffn=LayerNorm("norm2", hidden, EPS)),
    )  # fmt: skip
    steps = tuple(
        ProjectorLayer(f"layers.{2 * i}", hidden if i == 0 else out, out, True, "gelu" if i < depth - 1 else "")
        for i in range(depth)
    )
    return VisionSpec(
        hidden=hidden, layers=(each,) * section.layers, patch="patch_embed.proj", patch_bias=True, root=TOWER,
        kernel=(3, section.patch, section.patch), layer="blocks.{}.", places="pos_embed", stacks=1,
        rows=(section.side // section.patch) ** 2, leave=LayerNorm("norm", hidden, EPS),
        projector=ProjectorSpec(root=ALIGNER, steps=steps),
    ), (f"{TOWER}attn_pool.", *(f"{TOWER}blocks.{i}." for i in range(section.layers, section.stored)))  # fmt: skip
