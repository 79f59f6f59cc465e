"""Apertus, and the text part of Apertus 1.5: QK-norm, an ungated MLP with a learned activation (xIELU)."""

from __future__ import annotations

from dataclasses import replace

from thalweg.checkpoint.config import Config, flag, integer, text
from thalweg.checkpoint.spelling import ROWS
from thalweg.errors import UnsupportedModelError
from thalweg.models.families.common import attention, decoder, eps, hidden_size, layer_count
from thalweg.models.families.multimodal import blind
from thalweg.models.spec import HeadNorm, Layer, ModelSpec, Names, Norm, Norms, XieluMLP

LLAMA3 = {
    "rope_type": "llama3", "rope_theta": 12_000_000.0, "factor": 8.0, "original_max_position_embeddings": 8192,
    "low_freq_factor": 1.0, "high_freq_factor": 4.0,
}  # fmt: skip


def apertus(config: Config) -> ModelSpec:
    if text(config, "hidden_act", "xielu") != "xielu":
        raise UnsupportedModelError(
            f"config.json: hidden_act: {config['hidden_act']!r:.80} is not xielu, which this family has"
        )
    config = {"rope_theta": 12_000_000.0, **config, "rms_norm_eps": eps(config, default=1e-5)}
    if not (config.get("rope_parameters") or config.get("rope_scaling")):
        config = {**config, "rope_parameters": LLAMA3}
    hidden, e, bias = hidden_size(config), eps(config), flag(config, "attention_bias", False)
    layer = Layer(
        attention(config, bias=bias, out_bias=bias, norm=HeadNorm(e)),
        XieluMLP(inner=integer(config, "intermediate_size")),
        Norms(mixer=Norm("attention_layernorm", hidden, e), ffn=Norm("feedforward_layernorm", hidden, e)),
    )
    old = tuple(f"model.layers.{i}.mlp.act_fn.{b}" for i in range(layer_count(config)) for b in ("beta", "eps"))
    return decoder(config, [layer] * layer_count(config), names=Names(skip=old))


def apertus1p5(config: Config) -> ModelSpec:
    """The text part of 1.5. Its output matrix may have fewer rows than its embedding, those of text. Codes of images and audio
    are then no tokens here."""
    rows = integer(config, ROWS, low=0, high=1 << 30, default=0)
    return blind(replace(apertus(config), table_rows=rows), "vision_tokenizer.", "audio_tokenizer.")
