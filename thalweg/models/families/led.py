"""LED (Longformer): BART with an encoder of windows. No token attends to all, as in transformers without a
`global_attention_mask`."""

from __future__ import annotations

from dataclasses import replace

from thalweg.checkpoint.config import Config, integer
from thalweg.models.families.bart import attention, build
from thalweg.models.families.common import hidden_size
from thalweg.models.families.longformer import widths
from thalweg.models.spec import LearnedEmbedding, Mixer, ModelSpec, Names

NAME = "self_attn.longformer_self_attn."


def led_conditional(config: Config) -> ModelSpec:
    hidden, count = hidden_size(config), integer(config, "encoder_layers", high=1000)
    windows = widths(config.get("attention_window", 512), count)
    rows = integer(config, "max_encoder_position_embeddings", high=1 << 16, default=16_384)
    positions = LearnedEmbedding("embed_positions", integer(config, "max_position_embeddings", high=1 << 16))

    def reader(layer: int) -> Mixer:
        parts = tuple(f"longformer_self_attn.{part}" for part in ("query", "key", "value"))
        return attention(
            config, "encoder_attention_heads", hidden, False, window=windows[layer] // 2 + 1, parts=parts, out="output"
        )

    sources = integer(config, "max_source_positions", high=rows, default=rows)
    result = build(config, positions, pre=False, embed_norm=True, reader=reader, sources=sources, root="led.")
    assert result.text is not None
    text = replace(result.text, learned=(replace(positions, rows=rows),))
    unread = (f"led.encoder.layers.{i}.{NAME}{part}_global." for i in range(count) for part in ("query", "key", "value"))
    return replace(result, text=text, names=Names(skip=(*result.names.skip, *unread)))
