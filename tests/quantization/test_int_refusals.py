"""What readers of integer and table formats refuse, in words, before any weight is read: by key, or by name with what to do."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from test_ints import DATA, weights
from zoo import edit_config

from thalweg import LLM
from thalweg.checkpoint.config import read_config
from thalweg.checkpoint.quantised import QuantizationConfig
from thalweg.errors import CheckpointError, ConfigError, UnsupportedModelError
from thalweg.hal.weights import WeightFormat
from thalweg.quantization import others, registry
from thalweg.quantization.formats.auto_round import AutoRound
from thalweg.quantization.formats.awq import Awq
from thalweg.quantization.formats.bitsandbytes import FP4, NF4, BitsAndBytes
from thalweg.quantization.formats.gptq import Gptq
from thalweg.quantization.formats.torchao import TorchAo

AO = {"_type": "Int8WeightOnlyConfig", "_version": 2, "_data": {}}


def ao(kind: str, version: int = 2, **data: object) -> dict:
    return {"quant_type": {"default": {"_type": kind, "_version": version, "_data": data}}}


@pytest.mark.parametrize(
    ("method", "said", "words"),
    [
        ("awq", {"version": "gemv"}, "version: .*gemm packing, not 'gemv'"),
        ("awq", {"bits": 3}, "bits: AWQ's packing is of 4 bits, not 3"),
        ("awq", {"bits": 4, "group_size": 0}, "group_size: must be"),
        ("gptq", {"bits": 5}, "bits: this version reads GPTQ in 2, 3, 4 and 8, not 5"),
        ("gptq", {"bits": 4, "checkpoint_format": "marlin"}, "checkpoint_format: .*not 'marlin'.*save it as gptq"),
        ("gptq", {"bits": 4, "meta": {"checkpoint_format": "bitblas"}}, "checkpoint_format: .*not 'bitblas'"),
        ("gptq", {"bits": 4, "pack_dtype": "int8"}, "pack_dtype: 'int8'"),
        ("gptq", {"bits": 4, "dynamic": {"+:.*up_proj": {"bits": 6}}}, r"dynamic: \+:.*up_proj: bits: .*not 6"),
        ("auto-round", {"bits": 4, "packing_format": "auto_round:mlx"}, "packing_format: 'auto_round:mlx': .*llm_compressor"),
        ("auto-round", {"bits": 4, "extra_config": {"lm_head": {"bits": 9}}}, "extra_config: lm_head: bits: 9"),
        ("auto-round", {"bits": 4, "data_type": "mx_fp"}, "bits: 4 of 'mx_fp'"),
        ("bitsandbytes", {}, "one of load_in_4bit and load_in_8bit"),
        ("bitsandbytes", {"load_in_4bit": True, "bnb_4bit_quant_type": "af4"}, "bnb_4bit_quant_type: .*nf4, fp4, not 'af4'"),
        ("hqq", {}, "quant_config: must say"),
        ("hqq", {"quant_config": {"weight_quant_params": {"nbits": 4, "group_size": 64, "axis": 0}}}, "axis: 0: .*with axis=1"),
        ("hqq", {"quant_config": {"weight_quant_params": {"nbits": 5}}}, "nbits: .*not 5"),
        ("hqq", {"quant_config": {"weight_quant_params": {"nbits": 4, "view_as_float": True}}}, "view_as_float"),
        ("bitnet", {"linear_class": "autobitlinear", "quantization_mode": "online"}, "quantization_mode: .*offline"),
        ("bitnet", {"use_rms_norm": True}, "use_rms_norm"),
        ("mlx", {"bits": 7, "group_size": 64}, "quantization: bits: MLX's affine has 2, 3, 4, 5, 6, 8, not 7"),
        ("mlx", {"bits": 4, "lm_head": {"mode": "nvfp4", "group_size": 32}}, "lm_head: group_size: .*16, not 32"),
        ("mlx", {"mode": "nf4"}, "mode: .*affine, mxfp4, mxfp8, nvfp4, not 'nf4'"),
        ("mlx", {"mode": "nvfp4", "quantize_input": True}, "quantize_input"),
        ("torchao", {"quant_type": "int8_weight_only"}, "quant_type: must be .*0.15.*'int8_weight_only'"),
        ("torchao", ao("Int4WeightOnlyConfig"), "Int4WeightOnlyConfig: this version reads Int8WeightOnlyConfig"),
        ("torchao", ao("Int8WeightOnlyConfig", 1), "version 1, which is a pickle"),
        ("torchao", ao(registry_type := "Float8DynamicActivationFloat8WeightConfig", granularity=[{"_type": "PerTensor"}] * 2),
         f"{registry_type}: .*PerRow"),
        ("torchao", ao("Float8WeightOnlyConfig", weight_dtype={"_type": "torch.dtype", "_data": "float8_e5m2"}), "float8_e5m2"),
    ],
)  # fmt: skip
def test_settings_that_are_not_read_are_refused_by_key(method, said, words):
    with pytest.raises(UnsupportedModelError, match=words):
        registry.check(QuantizationConfig("config.json: quantization_config", method, said))


@pytest.mark.parametrize("name", sorted({**others.FORMATS, **others.FLAGS}))
def test_names_of_other_formats_say_what_to_do(name):
    with pytest.raises(UnsupportedModelError, match=rf"config.json: .*\({name}\) are not read by this version: .{{20}}") as e:
        registry.check(QuantizationConfig("config.json: quantization_config", name, {}))
    assert any(word in str(e.value) for word in ("--quantization", "save it", "quant_method"))


BASES = {
    "mlx": {"bits": 4, "group_size": 64, "mode": "affine", "lm_head": {"bits": 8, "group_size": 32}, "model.norm": False},
    "awq": {"bits": 4, "group_size": 32, "zero_point": True, "version": "gemm", "modules_to_not_convert": ["a"]},
    "gptq": {"bits": 4, "group_size": 32, "sym": True, "desc_act": True, "checkpoint_format": "gptq",
             "meta": {"static_groups": 1},
             "dynamic": {"+:.*up_proj": {"bits": 8}}, "modules_in_block_to_quantize": [["mlp.up_proj"]]},
    "auto-round": {"bits": 4, "group_size": 32, "sym": True, "packing_format": "auto_round",
                   "extra_config": {"up_proj": {"bits": 8}},
                   "block_name_to_quantize": "model.layers"},
    "bitsandbytes": {"load_in_4bit": True, "bnb_4bit_quant_type": "nf4", "llm_int8_skip_modules": ["a"]},
    "hqq": {"quant_config": {"weight_quant_params": {"nbits": 4, "group_size": 32, "axis": 1}}, "skip_modules": ["a"]},
    "bitnet": {"linear_class": "bitlinear", "modules_to_not_convert": ["a"]},
    "torchao": ao("Int8WeightOnlyConfig", granularity={"_type": "PerRow"}, group_size=None),
}  # fmt: skip
JUNK = (
    None,
    True,
    0,
    -1,
    2**70,
    1.5,
    "",
    "(",
    "x",
    [],
    ["("],
    [1],
    [[]],
    [None],
    {},
    {"(": {}},
    {"a": 1},
    {"a": None},
    {"a": []},
)


def broken(said: dict) -> Iterator[dict]:
    """The description with one value, at any depth, that makes no sense."""
    for key, value in said.items():
        yield from ({**said, key: junk} for junk in JUNK)
        if isinstance(value, dict):
            yield from ({**said, key: inner} for inner in broken(value))


@pytest.mark.parametrize("method", BASES)
def test_descriptions_that_make_no_sense_are_refused_or_do_no_harm(method):
    for said in broken(BASES[method]):
        try:
            form = registry.of_checkpoint({"quantization_config": said | {"quant_method": method}})
            assert form is not None
            held = form.scheme("model.layers.0.mlp.up_proj")
        except UnsupportedModelError:
            continue
        assert held is None or (held.bits in (4, 8) and held.group >= 0)


def test_no_name_is_both_read_and_refused():
    assert not registry.FORMATS.keys() & {**others.FORMATS, **others.FLAGS}.keys()


def test_another_engines_name_of_the_files_own_format_is_taken_and_one_of_another_refused():
    path, more = str(DATA / "gptq-4-sym"), {"device": "reference", "skip_tokenizer_init": True}
    LLM(path, quantization="gptq_marlin", **more).shutdown()
    with pytest.raises(ConfigError, match=r"quantization: 'awq_marlin'.*gptq"):
        LLM(path, quantization="awq_marlin", **more)


def test_a_writers_name_may_come_before_the_format():
    registry.check(QuantizationConfig("config.json: quantization_config", "intel/auto-round", {"bits": 4}))


def test_rules_for_layers():
    auto = AutoRound({
        "bits": 4, "group_size": 32, "sym": True, "packing_format": "auto_round",
        "block_name_to_quantize": "model.layers,other",
        "extra_config": {
            "down_proj": {"bits": 8}, "model.layers.1.mlp.down_proj": {"bits": 2}, r".*layers\.2.*": {"bits": 16},
            "lm_head": {"bits": 8, "group_size": 64}, "up_proj": {},
        },
    })  # fmt: skip
    names = ("0.mlp.down_proj", "1.mlp.down_proj", "0.mlp.up_proj", "2.mlp.up_proj")
    got = [auto.scheme(n) for n in (*(f"model.layers.{n}" for n in names), "lm_head", "visual.blocks.0.mlp")]
    four, eight = WeightFormat("int", 4, 32), WeightFormat("int", 8, 32)
    assert got == [eight, four, four, None, WeightFormat("int", 8, 64), None]
    inside = Gptq({"bits": 4, "modules_in_block_to_quantize": [["self_attn.k_proj", "self_attn.v_proj"], ["mlp.up_proj"]]})
    names = ("self_attn.k_proj", "self_attn.q_proj", "mlp.up_proj", "mlp.gate_proj")
    assert [inside.scheme(f"model.layers.0.{n}") is not None for n in names] == [True, False, True, False]
    assert inside.scheme("lm_head") is None
    assert Gptq({"bits": 4, "desc_act": True, "group_size": 32}).scheme("a") == WeightFormat("int", 4, 32, reordered=True)
    for more in ({"group_size": -1}, {"group_size": 32, "static_groups": True}):
        form = Gptq({"bits": 4, "desc_act": True, **more}).scheme("a")
        assert form is not None
        assert not form.reordered
    awq = Awq({"modules_to_not_convert": ["mlp.gate", "visual"]})
    assert [awq.scheme(f"model.layers.0.mlp.{n}") is None for n in ("gate", "gate_proj", "up_proj")] == [True, True, False]
    some = ao("FqnToConfig", fqn_to_config={"re:.*q_proj": None, "_default": AO})
    assert [TorchAo(some).scheme(f"a.{n}_proj") for n in "qk"] == [None, WeightFormat("int", 8)]


def test_blocks_of_bitsandbytes_over_rows():
    """64 values share a maximum. Rows of 96 inputs begin in the middle of a block: 32 is what divides both."""

    def form(inputs: int, block: int) -> WeightFormat:
        made = BitsAndBytes({"load_in_4bit": True, "bnb_4bit_quant_type": "nf4"})
        made._settings["a"] = {"blocksize": block, "shape": [64, inputs]}
        found = made.scheme("a")
        assert found is not None
        return found

    assert [form(*x).group for x in ((128, 64), (96, 64), (64, 256), (4096, 64), (200, 64))] == [64, 32, 64, 64, 8]
    with pytest.raises(UnsupportedModelError, match=r"a: blocks of 64 run over rows of 100 inputs.* --quantization int4"):
        form(100, 64)
    assert sorted(NF4) == list(NF4)
    assert {round(x * 12, 6) for x in FP4} == {s * x for s in (1, -1) for x in (0, 0.0625, 2, 3, 4, 6, 8, 12)}


def changed(name: str, tmp_path: Path, **tensors: torch.Tensor) -> Path:
    out = tmp_path / "q"
    out.mkdir()
    held = load_file(DATA / name / "model.safetensors")
    save_file(held | tensors, out / "model.safetensors")
    (out / "config.json").write_bytes((DATA / name / "config.json").read_bytes())
    return out


def test_damaged_files_are_named(tmp_path):
    layer = "model.layers.0.mlp.up_proj"
    levels = torch.linspace(-1, 1, 16)
    path = changed("bnb-nf4", tmp_path, **{f"{layer}.weight.quant_map": levels})
    with pytest.raises(CheckpointError, match=rf"{layer}.weight.quant_map: not the table of nf4"):
        weights(path)
    state = torch.tensor(list(b'{"blocksize": 0, "shape": [96, 64]}'), dtype=torch.uint8)
    held = load_file(path / "model.safetensors") | {f"{layer}.weight.quant_state.bitsandbytes__nf4": state}
    save_file(held, path / "model.safetensors")
    with pytest.raises(CheckpointError, match=rf"{layer}.weight.quant_state.bitsandbytes__nf4: does not describe a matrix"):
        weights(path)
    held[f"{layer}.weight.quant_state.bitsandbytes__nf4"] = torch.zeros(5, dtype=torch.uint8)
    save_file(held, path / "model.safetensors")
    with pytest.raises(CheckpointError, match=r"nf4: not a description of blocks"):
        weights(path)


def test_a_torchao_zero_point_is_not_ignored(tmp_path):
    layer = "model.layers.0.mlp.up_proj"
    path = changed("torchao-int8", tmp_path, **{f"{layer}._weight_zero_point": torch.full((96, 1), 3, dtype=torch.int8)})
    with pytest.raises(CheckpointError, match=rf"{layer}._weight_zero_point: .*only reads symmetric int8"):
        weights(path)


def test_rules_that_the_files_contradict_are_refused(tmp_path):
    path = changed("awq-asym", tmp_path)
    said = json.loads((path / "config.json").read_text())["quantization_config"]
    edit_config(path, quantization_config=said | {"modules_to_not_convert": ["mlp"]})
    with pytest.raises(UnsupportedModelError, match=r"leave model.layers.0.mlp.gate_proj dense.*gate_proj.qweight"):
        weights(path)


def test_pickles_are_refused_with_what_to_do(tmp_path):
    path = changed("torchao-int8", tmp_path)
    (path / "model.safetensors").rename(path / "pytorch_model.bin")
    read_config(path, None, registry.check)
    with pytest.raises(CheckpointError, match=r"holds only pickled weights .*convert them to safetensors"):
        LLM(str(path), device="reference", skip_tokenizer_init=True)
