"""EmbeddingGemma 2: Gemma 4 with bidirectional attention, inputs of layers without a table, and a projection of the mean
vector. Texts, and images where the checkpoint has a vision encoder."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from thalweg.checkpoint.config import Config, integer
from thalweg.errors import UnsupportedModelError
from thalweg.models.families import gemma4
from thalweg.models.families.common import eps, hidden_size, layer_count, layer_types, pooling
from thalweg.models.families.multimodal import is_blind
from thalweg.models.families.tails import attach_tail, bidirectional
from thalweg.models.families.towers.gemma4 import INSIDE
from thalweg.models.families.towers.gemma4 import gemma4 as tower
from thalweg.models.spec import Attention, Layer, LayerEnding, LayerInputs, ModelSpec
from thalweg.models.tail import Dense

ROPES = {
    gemma4.LOCAL: {"rope_type": "default", "rope_theta": 10_000.0},
    gemma4.GLOBAL: {"rope_type": "default", "rope_theta": 1_000_000.0},
}
READ = ("vision_tower.", "embed_vision.")
"""Prefixes of tensors that the text part does not read."""
BARE = (("language_model.", "model."), *((each, f"model.{each}") for each in READ))
"""Prefixes of a model without a head -> those of one with a head."""


def embedding_gemma2(config: Config) -> ModelSpec:
    config = _complete(config)
    spec = bidirectional(gemma4.gemma4(config))
    spec = replace(spec, layers=tuple(map(_change, spec.layers)), inputs=_inputs(config))
    tail, sizes = pooling(config, default="mean"), (hidden_size(config), integer(config, "embedding_dim", default=768))
    if tail.mode != "mean":
        raise UnsupportedModelError(f"config.json: pooling: this family was trained on mean, not on {tail.mode}")
    projection = Dense("", *sizes, False, "none", "model.embedding_projection")
    spec = attach_tail(spec, replace(tail, dense=(projection, *tail.dense)))
    names = replace(spec.names, replace=(*spec.names.replace, *BARE))
    if is_blind(config):
        return replace(spec, names=names)
    skip = tuple(each for each in names.skip if not each.endswith(READ))
    names = replace(names, inside=(*names.inside, *INSIDE), skip=skip)
    return replace(spec, names=names, vision=tower(config))


def _complete(config: Config) -> Config:
    """With the family's defaults, and with the sizes of heads of layers that attend to everything."""
    section: dict[str, Any] = {
        "sliding_window": 512, "hidden_size_per_layer_input": 512, "rope_parameters": ROPES, "num_key_value_heads": 2,
        "intermediate_size": 2048, "vocab_size_per_layer_input": 1, **config, "num_kv_shared_layers": 0,
        "enable_moe_block": False, "use_double_wide_mlp": False, "attention_k_eq_v": False, "tie_word_embeddings": True,
    }  # fmt: skip
    if section.get("per_layer_config") is None:
        count = layer_count(config)
        types = layer_types(section, [gemma4.LOCAL if (i + 1) % 6 else gemma4.GLOBAL for i in range(count)])
        wide = {
            "head_dim": integer(section, "global_head_dim", default=512),
            "num_key_value_heads": integer(section, "num_global_key_value_heads", default=1),
        }
        section["per_layer_config"] = {
            str(i): wide for i, kind in enumerate(types) if kind == gemma4.GLOBAL or i == count - 1
        }  # fmt: skip
    return section


def _change(layer: Layer) -> Layer:
    """A window counts the token itself, and the file's is the distance to the farthest one on either side."""
    assert isinstance(layer.mixer, Attention)
    assert isinstance(layer.around, LayerEnding)
    assert layer.around.input is not None
    names: dict[str, Any] = {part: f"ple_block.{getattr(layer.around.input, part)}" for part in ("gate", "up", "norm")}
    around = replace(layer.around, input=replace(layer.around.input, **names))
    mixer = replace(layer.mixer, window=layer.mixer.window + 1) if layer.mixer.window else layer.mixer
    return replace(layer, mixer=mixer, around=around)


def _inputs(config: Config) -> LayerInputs:
    return LayerInputs(
        rows=0, layers=layer_count(config), width=integer(config, "hidden_size_per_layer_input", high=1 << 16),
        eps=eps(config), projection="ple.per_layer_model_projection", norm="ple.per_layer_projection_norm",
    )  # fmt: skip
