"""Phi-4-multimodal: SigLIP encoder of tiles with filled parts, merged patches with learned vectors between rows, Phi-4-mini
decoder, a conformer for audio. Its answers about images and audio need the adapters that are published with it."""

from __future__ import annotations

from dataclasses import replace

from thalweg.checkpoint.config import Config, flag, integer, real, text
from thalweg.errors import UnsupportedModelError
from thalweg.media.processors.base import edge
from thalweg.models.families import phi3
from thalweg.models.families.common import hidden_size
from thalweg.models.families.multimodal import is_blind
from thalweg.models.families.towers.common import act, sees_all, size, vision_config
from thalweg.models.families.towers.phi4_audio import read_audio
from thalweg.models.spec import Layer, LayerNorm, ModelSpec, Names, Norms, UngatedMLP, VisionSpec
from thalweg.models.spec.vision import ProjectorLayer, ProjectorSpec

PARTS = "model.embed_tokens_extend."
IMAGES = f"{PARTS}image_embed."
ROOT = f"{IMAGES}img_processor."
NAMES = (
    (f"{IMAGES}img_projection.0.", f"{IMAGES}img_projection_up."),
    (f"{IMAGES}img_projection.2.", f"{IMAGES}img_projection_down."),
    (f"{IMAGES}glb_GN", f"{IMAGES}global_img_feature_extensor"),
    (f"{IMAGES}sub_GN", f"{IMAGES}sub_img_feature_extensor"),
)
AUDIO = f"{PARTS}audio_embed."
AUDIO_NAMES = tuple(
    (f"{AUDIO}audio_projection.{theirs}.{place}.", f"{AUDIO}{way}_proj_for_{ours}.")
    for theirs, ours in (("speech", "speech"), ("vision", "vision_speech"))
    for place, way in ((0, "up"), (2, "down"))
)
INSIDE = (
    (".base_layer.", "."), (".net.0.linear.", ".gate_up_proj."), (".net.2.", ".down_proj."), (".linear_out.", ".o_proj."),
    *((f".linear_{part}.", f".{part}_proj.") for part in "qkv"),
)  # fmt: skip
ADAPTED = ("self_attn.qkv_proj", "self_attn.o_proj", "mlp.gate_up_proj", "mlp.down_proj")
GROUP = 4
"""Patches of one vector."""


def phi4_multimodal(config: Config) -> ModelSpec:
    spec = phi3.phi3(config)
    if is_blind(config):
        return replace(spec, names=Names(skip=(PARTS,)))
    vision, unread = _encoder(config)
    heard = read_audio(config) if isinstance(config.get("audio_config"), dict) else None
    skip = (*unread, *(() if heard is not None else (AUDIO,)))
    return replace(spec, vision=vision, audio=heard, names=Names(skip=skip))


def phi4mm(config: Config) -> ModelSpec:
    """The authors' format, whose files have two adapters among the matrices. Neither is applied here: the same are in separate
    folders."""
    images = vision_config(config).get("image_embd_layer") if not is_blind(config) else {}
    section = images if isinstance(images, dict) else {}
    merged = flag(section, "use_hd_transform", True) and flag(section, "with_learnable_separator", True)
    if text(section, "hd_transform_order", "sub_glb") != "sub_glb" or not merged:
        raise UnsupportedModelError(
            "config.json: embd_layer: only use_hd_transform and with_learnable_separator in the order sub_glb are supported"
        )
    spec = phi4_multimodal(config)
    adapters = (f"model.layers.{i}.{name}.lora_" for i in range(len(spec.layers)) for name in ADAPTED)
    names = Names(replace=(*NAMES, *AUDIO_NAMES), inside=INSIDE, skip=(*spec.names.skip, *adapters))
    return replace(spec, names=names)


def _encoder(config: Config) -> tuple[VisionSpec, tuple[str, ...]]:
    section = vision_config(config)
    hidden, layers, e = (
        size(section, "hidden_size", 1152), size(section, "num_hidden_layers", 27),
        real(section, "layer_norm_eps", default=1e-6)
    )  # fmt: skip
    side, patch, out = edge(section, "image_size", 448), edge(section, "patch_size", 14), hidden_size(config)
    last = integer(section, "feature_layer", low=-layers - 1, high=layers, default=-2)
    run = last if last >= 0 else layers + 1 + last
    if not run or side // patch % 2:
        raise UnsupportedModelError("config.json: vision_config: feature_layer 0 and odd numbers of patches are not supported")
    each = Layer(
        sees_all(size(section, "num_attention_heads", 16), hidden, bias=True, out_bias=True, out="out_proj"),
        UngatedMLP(
            inner=size(section, "intermediate_size", 4304), bias=True, act=act(section, "hidden_act", "gelu_pytorch_tanh")
        ),
        Norms(mixer=LayerNorm("layer_norm1", hidden, e), ffn=LayerNorm("layer_norm2", hidden, e)),
    )  # fmt: skip
    projector = ProjectorSpec(
        root=IMAGES, group=GROUP, join="mean",
        learned=(("sub_img_feature_extensor", (1, 1, 1, hidden)), ("global_img_feature_extensor", (1, 1, hidden))),
        steps=(
            ProjectorLayer("img_projection_up", hidden, out, True, "gelu"),
            ProjectorLayer("img_projection_down", out, out, True),
        ),
    )  # fmt: skip
    result = VisionSpec(
        hidden=hidden, layers=(each,) * run, projector=projector, patch="embeddings.patch_embedding", patch_bias=True,
        kernel=(size(section, "num_channels", 3), patch, patch), root=ROOT, layer="encoder.layers.{}.",
        places="embeddings.position_embedding", rows=(side // patch) ** 2, masked=True,
    )  # fmt: skip
    unread = (f"{ROOT}post_layernorm.", f"{ROOT}head.", *(f"{ROOT}encoder.layers.{i}." for i in range(run, layers)))
    return result, unread
