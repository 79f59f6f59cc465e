"""HunYuan-VL (HunyuanOCR): SigLIP's layers, a merging convolution, HunYuan decoder. Positions have four axes (XD-RoPE)."""

from __future__ import annotations

from dataclasses import replace

from thalweg.checkpoint.config import Config, rope_parameters
from thalweg.media.processors.hunyuan import rope_sections
from thalweg.models.families import hunyuan
from thalweg.models.families.multimodal import is_blind, seeing
from thalweg.models.families.towers.common import outer_config
from thalweg.models.families.towers.hunyuan import ROOT
from thalweg.models.families.towers.hunyuan import hunyuan_vl as tower
from thalweg.models.spec import Attention, ModelSpec, Rope

NAMES = (("vit.", ROOT), ("model.vit.", ROOT))
KEYS = ("alpha", "xdrope_section")


def hunyuan_vl(config: Config) -> ModelSpec:
    section = rope_parameters(config)
    kind = "dynamic" if section["rope_type"] == "xdrope" else section["rope_type"]
    one_axis = {key: value for key, value in section.items() if key not in ("mrope_section", "xdrope_section")}
    text = {**config, "rope_scaling": None, "rope_parameters": {**one_axis, "rope_type": kind}}
    tied = outer_config(config).get("tie_word_embeddings", True)
    spec = hunyuan.hunyuan({**text, "tie_word_embeddings": tied})
    sections = () if is_blind(config) else rope_sections(config)
    layers = []
    for layer in spec.layers:
        assert isinstance(layer.mixer, Attention)
        assert layer.mixer.rope is not None
        layers.append(replace(layer, mixer=replace(layer.mixer, rope=set_axes(layer.mixer.rope, sections))))
    return seeing(replace(spec, layers=tuple(layers)), config, tower, replace=NAMES, skip=(ROOT,) if is_blind(config) else ())


def set_axes(rope: Rope, sections: tuple[int, ...]) -> Rope:
    """Each section is of twice as many values of a head, in turn. A frequency turns a value of either half, so the halves turn
    by different axes."""
    values = [axis for axis, n in enumerate(sections) for _ in range(2 * n)]
    half = len(values) // 2
    first, second = tuple(values[:half]), tuple(values[half:])
    return replace(rope, keys=KEYS, sections=sections, order=first, second=second if second != first else ())
