"""BLIP-2: a vision transformer, a Q-Former with queries that become the vectors of an image, OPT decoder or T5 (Li et al. 2023,
https://arxiv.org/abs/2301.12597)."""

from __future__ import annotations

from collections.abc import Callable, Mapping
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


Reader = Callable[[Config, str, int, int], QFormerSpec]
"""(configuration, root of the decoder's names, size of the encoder's vectors, vectors of an image) -> the Q-Former."""


def blip_2(config: Config) -> ModelSpec:
    return build(config, {"opt": opt, "t5": t5}, ROOT, _qformer)


def build(config: Config, texts: Mapping[str, Callable[[Config], ModelSpec]], root: str, reader: Reader) -> ModelSpec:
    """texts: families of the text part, by `model_type`. root: of the names of decoders."""
    kind = str(config.get("model_type", next(iter(texts))))
    if kind not in texts:
        raise UnsupportedModelError(
            f"config.json: text_config: model_type {kind!r:.40} is not supported; {' and '.join(texts)} are"
        )
    spec = texts[kind](config)
    if spec.text is not None:
        return _with_source(spec, config, reader)
    spec = seeing(spec, config, lambda c: tower(c, root, reader), replace=_names(root))
    skip = (*spec.names.skip, *(UNSEEN if spec.vision is None else ()))
    own = (f"{root}projector.", f"{root}vision_tower.") if spec.vision is None else ()
    return replace(spec, names=replace(spec.names, skip=(*skip, *own)))


def _with_source(spec: ModelSpec, config: Config, reader: Reader) -> ModelSpec:
    """The text encoder reads the vectors, so the image is encoded within it."""
    assert spec.text is not None
    names = (("language_model.", ""), *_names(""))
    if is_blind(config):
        return replace(spec, names=replace(spec.names, replace=names, skip=(*spec.names.skip, *UNSEEN)))
    result, _ = tower(config, "", reader)
    section, reads = vision_config(config), result.resampler
    assert isinstance(reads, QFormerSpec)
    assert isinstance(result.leave, LayerNorm)
    image = QueryImageSpec(
        token=integer(outer_config(config), "image_token_index", low=0),
        kernel=(result.kernel[0], result.kernel[1], result.kernel[2]),
        side=edge(section, "image_size", 224) // result.kernel[1],
        hidden=result.hidden, layers=result.layers, norm=LayerNorm("post_layernorm", result.hidden, result.leave.eps),
        reads=reads, outputs=hidden_size(config),
    )  # fmt: skip
    return replace(spec, text=replace(spec.text, vision=image), names=replace(spec.names, replace=names))


def tower(config: Config, root: str, reader: Reader) -> tuple[VisionSpec, tuple[str, ...]]:
    """All layers, and the norm behind them."""
    section = {**VISION, **vision_config(config)}
    bias, patches = flag(section, "qkv_bias", True), edge(section, "image_size", 224) // edge(section, "patch_size", 14)
    clip = {**section, "model_type": "clip_vision_model"}
    around = {**config, BESIDE: {**outer_config(config), "vision_config": clip}}
    result, unread = encoder(around, size(section, "num_hidden_layers", 39), ProjectorSpec(root="", steps=()), normed=True)
    return replace(
        result, layers=tuple(_rename(layer, bias) for layer in result.layers), root=f"{root}vision_tower.", patch_bias=True,
        stacks=1, enter=None,
        resampler=reader(config, root, result.hidden, patches**2 + 1),
    ), unread  # fmt: skip


def _rename(layer: Layer, bias: bool) -> Layer:
    assert isinstance(layer.mixer, Attention)
    return replace(layer, mixer=replace(layer.mixer, fused="qkv", out="projection", bias=bias))


def _qformer(config: Config, root: str, source: int, window: int) -> QFormerSpec:
    if read_settings(config).get("use_qformer_text_input"):
        raise UnsupportedModelError("config.json: qformer_config: use_qformer_text_input: true is not supported")
    return read_qformer(config, root, source, window)


def read_settings(config: Config) -> Config:
    """`qformer_config`. CheckpointError."""
    section: Any = outer_config(config).get("qformer_config") or {}
    if not isinstance(section, dict):
        raise CheckpointError("config.json: qformer_config: must be an object")
    return section


def read_qformer(config: Config, root: str, source: int, window: int) -> QFormerSpec:
    section = read_settings(config)
    return QFormerSpec(
        queries=integer(outer_config(config), "num_query_tokens", high=1 << 12, default=32), window=window, source=source,
        hidden=size(section, "hidden_size", 768), heads=size(section, "num_attention_heads", 12),
        inner=size(section, "intermediate_size", 3072), layers=size(section, "num_hidden_layers", 12),
        every=size(section, "cross_attention_frequency", 2), act=act(section, "hidden_act", "gelu"),
        eps=real(section, "layer_norm_eps", default=1e-12),
        root=f"{root}projector.",
    )  # fmt: skip
