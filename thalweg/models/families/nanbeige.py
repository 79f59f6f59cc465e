"""Nanbeige: Llama, in version 4.2 with looped layers, one KV cache per loop, and the final norm after each loop."""

from __future__ import annotations

from dataclasses import replace

from thalweg.checkpoint.config import Config, flag, integer
from thalweg.errors import UnsupportedModelError
from thalweg.models.families.llama import llama
from thalweg.models.spec import ModelSpec, Norm

OFF = (
    "qk_layernorm", "emb_neighbor_num", "insert_ngram_layer_idx", "ngram_insert_all_layers", "enable_double_loop_split",
    "loop_middle_layers", "loop_share_kv", "enable_hyper_connection", "enable_mhc", "enable_depth_attention",
)  # fmt: skip
"""Keys of features that no published model has."""


def nanbeige(config: Config) -> ModelSpec:
    if found := [key for key in OFF if config.get(key)]:
        raise UnsupportedModelError(f"config.json: {found[0]}: this version serves Nanbeige without it")
    result, loops = llama(config), integer(config, "num_loops", 1, 64, default=1)
    if loops == 1:
        return result
    layers, count = list(result.layers), len(result.layers)
    if not flag(config, "skip_loop_final_norm", False):
        assert isinstance(result.norm, Norm)
        layers[-1] = replace(layers[-1], norms=replace(layers[-1].norms, ffn_sum=replace(result.norm, name="/model.norm")))
    return replace(result, layers=(*layers * (loops - 1), *result.layers), numbers=tuple(range(count)) * loops)
