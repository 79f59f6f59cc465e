"""No quantised checkpoint passes for a dense one: not planned, not loaded, refused by what says so."""

from __future__ import annotations

import json
import pickle
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file
from test_config import GOOD, save

from thalweg.checkpoint.config import facts, read_config
from thalweg.checkpoint.weights import TensorHeaders
from thalweg.config import EngineArgs
from thalweg.errors import UnsupportedModelError

AWAY = "use the model's bfloat16 or float16 checkpoint, and --quantization int8 or int4"


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"quantization_config": {"quant_method": "gptq", "bits": 4}}, r"config.json: quantization_config: .*\(gptq\)"),
        ({"quantization_config": {"format": "pack-quantized", "config_groups": {}}}, r"\(pack-quantized\)"),
        ({"quantization_config": ["?"]}, "quantization_config"),
        ({"compression_config": {"format": "float-quantized"}}, r"config.json: compression_config: .*\(float-quantized\)"),
        ({"quantization": {"group_size": 64, "bits": 4}}, r"config.json: quantization: .*\(mlx\)"),
        ({"text_config": {"quantization_config": {"quant_method": "fp8"}}}, r"quantization_config: .*\(fp8\)"),
    ],
)
def test_a_configuration_that_says_so(change, said, tmp_path):
    with pytest.raises(UnsupportedModelError, match=said) as e:
        read_config(save(tmp_path, {**GOOD, **change}))
    assert AWAY in str(e.value)


@pytest.mark.parametrize(
    ("name", "content", "said"),
    [
        ("hf_quant_config.json", {"producer": {}, "quantization": {"quant_algo": "NVFP4"}}, "modelopt"),
        ("hf_quant_config.json", {"quantization": {"quant_algo": None, "kv_cache_quant_algo": "FP8"}}, "modelopt"),
        ("quantize_config.json", {"bits": 4, "group_size": 128, "desc_act": False}, "gptq"),
        ("quant_config.json", {"w_bit": 4, "zero_point": True, "q_group_size": 128}, "awq"),
        ("quantization_config.json", {"quant_method": "auto-round"}, "auto-round"),
    ],
)
def test_a_file_beside_that_says_so(name, content, said, tmp_path):
    save(tmp_path, GOOD)
    (tmp_path / name).write_text(json.dumps(content))
    with pytest.raises(UnsupportedModelError, match=rf"{name}: quantised checkpoints \({said}\)"):
        read_config(tmp_path)


def test_files_and_keys_that_say_nothing_of_weights_are_no_obstacle(tmp_path):
    save(tmp_path, {**GOOD, "quantization_config": None, "compression_config": {}})
    (tmp_path / "quantize_config.json").write_text('{"per_channel": true, "per_model_config": {"model": {"op_types": []}}}')
    (tmp_path / "hf_quant_config.json").write_text('{"quantization": {"quant_algo": null, "kv_cache_quant_algo": null}}')
    read_config(tmp_path)


@pytest.mark.parametrize(
    ("name", "tensor"),
    [
        ("model.layers.0.mlp.up_proj.weight", torch.zeros(4, 4, dtype=torch.float8_e4m3fn)),
        ("model.layers.0.mlp.up_proj.weight", torch.zeros(4, 4, dtype=torch.int8)),
        ("model.layers.0.mlp.up_proj.weight", torch.zeros(4, 1, dtype=torch.uint8)),
        ("model.layers.0.mlp.up_proj.qweight", torch.zeros(4, 4, dtype=torch.int32)),
        ("model.layers.0.mlp.up_proj.weight_scale", torch.zeros(4, 1)),
        ("model.layers.0.mlp.up_proj.weight.quant_state.bitsandbytes__nf4", torch.zeros(9, dtype=torch.uint8)),
        ("model.layers.0.mlp.experts.gate_up_proj_blocks", torch.zeros(2, 4, 1, 16, dtype=torch.uint8)),
    ],
)
def test_weights_that_say_so_where_nothing_else_does(name, tensor, tmp_path):
    save_file({name: tensor, "lm_head.weight": torch.zeros(4, 4)}, tmp_path / "model.safetensors")
    with pytest.raises(UnsupportedModelError, match=r"model\.safetensors: tensor model\.layers\.0\.mlp") as e:
        facts(read_config(save(tmp_path, GOOD)), tmp_path)
    assert AWAY in str(e.value)


def test_buffers_of_integers_are_no_obstacle(tmp_path):
    ids = torch.arange(4)
    save_file({"embeddings.position_ids": ids, "h.0.attn.bias": ids.to(torch.uint8)}, tmp_path / "model.safetensors")
    facts(read_config(save(tmp_path, GOOD)), tmp_path)


def test_the_files_of_compressed_tensors_are_refused_when_planned_and_when_loaded(tmp_path):
    """As the library writes its configuration, under both names it has used for it."""
    from compressed_tensors.quantization import QuantizationConfig, preset_name_to_scheme

    from thalweg.engine.client.frontend import locate
    from thalweg.engine.planning.memory import plan

    groups = {"group_0": preset_name_to_scheme("W4A16", ["Linear"])}
    written = QuantizationConfig(config_groups=groups, format="marlin-24").model_dump(mode="json")
    for key in ("quantization_config", "compression_config"):
        save(tmp_path, {**GOOD, key: written})
        for start in (locate, plan):
            with pytest.raises(UnsupportedModelError, match=r"sparsity_config.*marlin-24"):
                start(EngineArgs(model=str(tmp_path), device="reference"))


def test_the_marks_of_every_file_are_read_before_weights(tmp_path: Path):
    """A dummy load asks for no weights, and would invent dense ones."""
    save(tmp_path, {**GOOD, "compression_config": {"format": "marlin-24"}})
    from thalweg.engine.client.frontend import locate

    with pytest.raises(UnsupportedModelError, match="compression_config"):
        locate(EngineArgs(model=str(tmp_path), load_format="dummy"))


def test_headers_travel_to_another_process_with_the_small_tensors(tmp_path):
    save_file({"model.a.g_idx": torch.arange(5, dtype=torch.int32)}, tmp_path / "model.safetensors")
    there = pickle.loads(pickle.dumps(TensorHeaders(tmp_path)))
    assert dict(there) == {"model.a.g_idx": ("int32", (5,))}
    assert there.read("model.a.g_idx").tolist() == [0, 1, 2, 3, 4]
