"""LongT5: T5 with an encoder of windows, and of summaries of 16 tokens each (transient-global attention)."""

from __future__ import annotations

from thalweg.checkpoint.config import Config, integer, real, text
from thalweg.errors import UnsupportedModelError
from thalweg.models.families.common import hidden_size
from thalweg.models.families.t5 import attention, build
from thalweg.models.spec import Mixer, ModelSpec, Norm, SummaryAttention

NAMES = {"local": "LocalSelfAttention", "transient-global": "TransientGlobalSelfAttention"}


def longt5(config: Config) -> ModelSpec:
    return build(config, each=False, reader=_reader)


def _reader(config: Config, layer: int) -> Mixer:
    kind = text(config, "encoder_attention_type", "local")
    if kind not in NAMES:
        raise UnsupportedModelError(f"config.json: encoder_attention_type: unknown {kind!r:.80}; supported: {', '.join(NAMES)}")
    window = integer(config, "local_radius", high=1 << 16, default=127) + 1
    near = attention(config, "encoder", 0, False, NAMES[kind], window=window)
    if kind == "local":
        return near
    assert near.relative is not None
    return SummaryAttention(
        heads=near.heads, head_dim=near.head_dim, window=window, run=integer(config, "global_block_size", default=16),
        norm=Norm("global_input_layer_norm", hidden_size(config), real(config, "rms_norm_eps", default=1e-6)),
        relative=near.relative, name=near.name,
        summary_bias=near.relative.name.replace("relative_attention_bias", "global_relative_attention_bias"),
    )  # fmt: skip
