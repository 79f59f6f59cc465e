"""Descriptions in which a value is of another type than it must be: refused by key, or read, never a crash."""

from __future__ import annotations

import copy
import json
from pathlib import Path

import pytest
from test_quark import plain, said
from written import scheme

from thalweg.errors import UnsupportedModelError
from thalweg.quantization import registry

MODELOPT = Path(__file__).parent / "modelopt"


def compressed() -> dict:
    from compressed_tensors.quantization import QuantizationConfig

    groups = {"a": scheme("FP8_BLOCK", ["Linear"]), "b": scheme("W4AFP8", ["re:.*q_proj"])}
    made = json.loads(QuantizationConfig(config_groups=groups, format="float-quantized", ignore=["lm_head"]).model_dump_json())
    made["config_groups"]["b"]["format"] = "int-quantized"
    return made | {"quant_method": "compressed-tensors"}


def descriptions() -> dict[str, dict]:
    micro = plain("fp4", "per_group", group_size=32, scale_format="e8m0")
    layers = {"*k_proj": {"weight": plain("int8", "per_channel"), "output_tensors": None}}
    return {
        "fp8": {
            "quant_method": "fp8",
            "weight_block_size": [128, 128],
            "ignored_layers": ["lm_head"],
            "activation_scheme": "dynamic",
        },
        "fbgemm": {"quant_method": "fbgemm_fp8", "activation_scale_ub": 1200.0, "modules_to_not_convert": ["lm_head"]},
        "mxfp8": {"quant_method": "mxfp8", "ignored_layers": ["lm_head"]},
        "mxfp4": {"quant_method": "mxfp4", "modules_to_not_convert": ["lm_head"]},
        "compressed-tensors": compressed(),
        "modelopt": {"quant_method": "modelopt"} | json.loads((MODELOPT / "nvfp4_mlp_kv" / "hf_quant_config.json").read_text()),
        "modelopt-config": json.loads((MODELOPT / "w4a16_awq" / "config.json").read_text())["quantization_config"],
        "quark": said(micro, plain("fp8_e4m3", "per_tensor"), layer_quant_config=layers),
        "quark-nvfp4": said([plain("fp4", "per_group", group_size=16), plain("fp8_e4m3", "per_tensor")]),
    }


def places(tree: object, at: tuple = ()) -> list[tuple]:
    """Every place in nested objects and lists."""
    if isinstance(tree, dict | list):
        pairs = tree.items() if isinstance(tree, dict) else enumerate(tree)
        return [p for k, v in pairs for p in ((*at, k), *places(v, (*at, k)))]
    return []


@pytest.mark.parametrize("name", descriptions())
def test_a_value_of_another_type_is_refused_or_read(name):
    whole, refused = descriptions()[name], []
    for place in places(whole):
        if place == ("quant_method",):
            continue
        for value in (5, -1, 0.5, "x", True, None, [], [1], [None, None], {}, {"a": 1}, {"a": {}}):
            changed = copy.deepcopy(whole)
            node = changed
            for key in place[:-1]:
                node = node[key]
            node[place[-1]] = value
            try:
                made = registry.of_checkpoint({"quantization_config": changed})
                for layer in ("model.layers.0.mlp.up_proj", "model.layers.0.self_attn.q_proj", "lm_head"):
                    made.of("linear", f"{layer}.weight")
            except UnsupportedModelError as e:
                refused.append(str(e))
    assert refused
    assert all(message.startswith("quantization_config") for message in refused)
