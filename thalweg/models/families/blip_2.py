"""BLIP-2: a vision transformer, a Q-Former whose queries become the vectors of an image, OPT decoder or T5 (Li et al. 2023,
https://arxiv.org/abs/2301.12597)."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from thalweg.checkpoint.config import BESIDE, Config, flag, integer, real
from thalweg.errors import CheckpointError, UnsupportedModelError
from thalweg.media.processors.base import edge
from thalweg.models.families.common import hidden_size
from thalweg.models.families.multimodal import is_blind, seeing
from thalweg.models.families.opt import opt
from thalweg.models.families.t5 import t5
from thalweg.models.families.towers.clip import encoder
from thalweg.models.families.towers.common import act, outer_config, size, vision_config
from thalweg.models.spec import Attention, Layer, LayerNorm, ModelSpec, QFormerSpec, QueryImageSpec, VisionSpec
from thalweg.models.spec.vision import ProjectorSpec

VISION = {
    "hidden_size": 1408, "intermediate_size": 6144, "num_hidden_layers": 39, "num_attention_heads": 16, "image_size": 224,
    "patch_size": 14, "hidden_act": "gelu", "layer_norm_eps": 1e-6,
}  # fmt: skip
ROOT = "model.decoder."
"""Of OPT's names."""
UNSEEN = ("query_tokens", "qformer.", "language_projection.", "vision_model.")


def _names(root: str) -> tuple[tuple[str, str], ...]:
    """root: of the names of the decoder."""
    known = {"vision_model.": "vision_tower.", "query_tokens": "projector.query", "qformer.": "projector.qformer."}
    return tuple((old, root + new) for old, new in {**known, "language_projection.": "projector.linear."}.items())


def blip_2(config: Config) -> ModelSpec:
    kind = config.get("model_type", "opt")
    if kind not in ("opt", "t5"):
        raise UnsupportedModelError(f"config.json: text_config: model_type {kind!r:.40} is not supported; opt and t5 are")
    if kind == "t5":
        return _with_t5(config)
    spec = seeing(opt(config), config, tower, replace=_names(ROOT))
    skip = (*spec.names.skip, *(UNSEEN if spec.vision is None else ()))
    own = (f"{ROOT}projector.", f"{ROOT}vision_tower.") if spec.vision is None else ()
    return replace(spec, names=replace(spec.names, skip=(*skip, *own)))


def _with_t5(config: Config) -> ModelSpec:
    """The text encoder reads the vectors, so the image is encoded within it."""
    spec = t5(config)
    assert spec.text is not None
    names = (("language_model.", ""), *_names(""))
    if is_blind(config):
        return replace(spec, names=replace(spec.names, replace=names, skip=(*spec.names.skip, *UNSEEN)))
    made, _ = tower(config)
    said, reads = vision_config(config), made.resampler
    assert isinstance(reads, QFormerSpec)
    assert isinstance(made.leave, LayerNorm)
    image = QueryImageSpec(
        token=integer(outer_config(config), "image_token_index", low=0),
        kernel=(made.kernel[0], made.kernel[1], made.kernel[2]), side=edge(said, "image_size", 224) // made.kernel[1],
        hidden=made.hidden, layers=made.layers, norm=LayerNorm("post_layernorm", made.hidden, made.leave.eps),
        reads=replace(reads, root="projector."), outputs=hidden_size(config),
    )  # fmt: skip
    return replace(spec, text=replace(spec.text, vision=image), names=replace(spec.names, replace=names))


def tower(config: Config) -> tuple[VisionSpec, tuple[str, ...]]:
    """All layers, and the norm behind them."""
    said = {**VISION, **vision_config(config)}
    bias, patches = flag(said, "qkv_bias", True), edge(said, "image_size", 224) // edge(said, "patch_size", 14)
    clip = {**said, "model_type": "clip_vision_model"}
    around = {**config, BESIDE: {**outer_config(config), "vision_config": clip}}
    made, unread = encoder(around, size(said, "num_hidden_layers", 39), ProjectorSpec(root="", steps=()), normed=True)
    return replace(
        made, layers=tuple(_rename(layer, bias) for layer in made.layers), root=f"{ROOT}vision_tower.", patch_bias=True,
        stacks=1, enter=None,
        resampler=_qformer(config, made.hidden, patches**2 + 1),
    ), unread  # fmt: skip


def _rename(layer: Layer, bias: bool) -> Layer:
    assert isinstance(layer.mixer, Attention)
    return replace(layer, mixer=replace(layer.mixer, fused="qkv", out="projection", bias=bias))


def _qformer(config: Config, source: int, window: int) -> QFormerSpec:
    around = outer_config(config)
    said: Any = around.get("qformer_config") or {}
    if not isinstance(said, dict):
        raise CheckpointError("config.json: qformer_config: must be an object")
    if said.get("use_qformer_text_input"):
        raise UnsupportedModelError("config.json: qformer_config: use_qformer_text_input: true is not supported")
    return QFormerSpec(
        queries=integer(around, "num_query_tokens", high=1 << 12, default=32), window=window, source=source,
        hidden=size(said, "hidden_size", 768), heads=size(said, "num_attention_heads", 12),
        inner=size(said, "intermediate_size", 3072), layers=size(said, "num_hidden_layers", 12),
        every=size(said, "cross_attention_frequency", 2), act=act(said, "hidden_act", "gelu"),
        eps=real(said, "layer_norm_eps", default=1e-12),
        root=f"{ROOT}projector.",
    )  # fmt: skip
