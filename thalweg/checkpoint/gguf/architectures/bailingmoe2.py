"""Ling 2 and Ring 2: the computation of GLM-4.5, in a file with q, k and v in one tensor. MTP layers are not read."""

from __future__ import annotations

from typing import Any

from thalweg.checkpoint.gguf.architectures.common import Architecture
from thalweg.checkpoint.gguf.architectures.glm4moe import GLM4MOE
from thalweg.checkpoint.gguf.files import GGUFFiles
from thalweg.checkpoint.gguf.keys import Keys
from thalweg.errors import UnsupportedModelError


def _config(keys: Keys, files: GGUFFiles) -> dict[str, Any]:
    found = GLM4MOE.config(keys, files)
    name, usual = "expert_shared_feed_forward_length", found["n_shared_experts"] * found["moe_intermediate_size"]
    if keys.integer(name, default=usual) != usual:
        raise UnsupportedModelError(f"{files.path}: {keys.prefix}{name}: shared experts of another width are not read")
    return {**found, "num_nextn_predict_layers": 0}


BAILINGMOE2 = Architecture(
    config=_config,
    layer={**GLM4MOE.layer, "ffn_norm": "post_attention_layernorm"},
    experts=GLM4MOE.experts,
    dense=GLM4MOE.dense,
    bare=GLM4MOE.bare,
)
