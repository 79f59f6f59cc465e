"""Step 3.7's encoder: layers with rotary positions and scaled outputs, two convolutions that halve the edges of a square."""

from __future__ import annotations

from dataclasses import replace

from thalweg.checkpoint.config import Config, flag, real
from thalweg.models.families.common import hidden_size
from thalweg.models.families.towers.common import act, outer_config, sees_all, size, vision_config
from thalweg.models.spec import Layer, LayerNorm, Norms, Scale, UngatedMLP, VisionSpec
from thalweg.models.spec.vision import ProjectorLayer, ProjectorSpec

TOWER = "model.vision_tower."
NAMES = (("vision_model.", TOWER), ("vit_large_projector.", "model.vit_large_projector."))
INSIDE = (
    (".attn.in_proj_", ".attn.in_proj."), (f"{TOWER}positional_embedding", f"{TOWER}positional_embedding.weight"),
)  # fmt: skip


def step3(config: Config) -> tuple[VisionSpec, tuple[str, ...]]:
    section = vision_config(config)
    section = {**section, **{new: section[old] for old, new in SHORT.items() if old in section}}
    hidden, patch, e = (
        size(section, "hidden_size", 1536),
        size(section, "patch_size", 14),
        real(section, "layer_norm_eps", default=1e-5),
    )
    mixer = sees_all(
        size(section, "num_attention_heads", 16), hidden, turned=True, name="attn", fused="in_proj", out="out_proj", bias=True,
        out_bias=True,
    )  # fmt: skip
    assert mixer.rope is not None
    each = Layer(
        replace(mixer, rope=replace(mixer.rope, interleaved=True)),
        UngatedMLP(
            inner=int(hidden * real(section, "mlp_ratio", 0.01, 100, default=8960 / 1536)), bias=True,
            act=act(section, "hidden_act", "quick_gelu"), up="c_fc", down="c_proj",
        ),
        Norms(
            mixer=LayerNorm("ln_1", hidden, e), mixer_out=Scale("ls_1.gamma", hidden), ffn=LayerNorm("ln_2", hidden, e),
            ffn_out=Scale("ls_2.gamma", hidden),
        ),
    )  # fmt: skip
    bias = flag(outer_config(config), "projector_bias", False)
    steps = (
        ProjectorLayer("vision_tower.vit_downsampler1", 9 * hidden, 2 * hidden, True, kernel=(hidden, 3, 3), parts=9),
        ProjectorLayer("vision_tower.vit_downsampler2", 18 * hidden, 4 * hidden, True, kernel=(2 * hidden, 3, 3)),
        ProjectorLayer("vit_large_projector", 4 * hidden, hidden_size(config), bias),
    )  # fmt: skip
    return VisionSpec(
        hidden=hidden, layers=(each,) * size(section, "num_hidden_layers", 47), patch="conv1", root=TOWER,
        kernel=(size(section, "num_channels", 3), patch, patch), layer="transformer.resblocks.{}.",
        places="positional_embedding",
        rows=(size(section, "image_size", 728) // patch) ** 2, enter=LayerNorm("ln_pre", hidden, e),
        projector=ProjectorSpec(root="model.", group=81, padded=True, join="channels", steps=steps),
    ), ()  # fmt: skip


SHORT = {"width": "hidden_size", "layers": "num_hidden_layers", "heads": "num_attention_heads"}
"""Keys of the authors -> those of transformers."""
