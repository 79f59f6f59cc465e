"""`thalweg quantize --layout awq` and `gptq`: files by the definitions of AutoAWQ and GPTQModel, said again in numpy, and what
thalweg reads of them. The weights are those that were chosen, bit for bit."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest
import torch
from transformers import LlamaConfig
from zoo import ALL, load_reference, make_checkpoint

from thalweg import LLM, SamplingParams
from thalweg.checkpoint.config import read_config
from thalweg.checkpoint.safetensors import Checkpoint, open_checkpoint
from thalweg.cli import main
from thalweg.errors import ConfigError
from thalweg.hal.comm import Mesh
from thalweg.hal.discovery import load
from thalweg.hal.op import Binder
from thalweg.hal.ops.quantise import dequantise
from thalweg.hal.platform import Place
from thalweg.hal.weights import DENSE
from thalweg.models.build import build
from thalweg.models.files import Files
from thalweg.models.weights import walk
from thalweg.quantization import registry
from thalweg.quantize.formats import choose_format
from thalweg.quantize.grids import Grid, nearest
from thalweg.quantize.run import Options, quantize

DEVICE = load("reference").open(Place())
AWQ_ORDER = (0, 2, 4, 6, 1, 3, 5, 7)
"""The output whose code lies in each nibble of a word, from the lowest on."""
CASES = [
    ("awq", "W4A16", 16), ("awq", "W4A16_ASYM", 16), ("awq", "W4A16", 0),
    ("gptq", "W4A16", 16), ("gptq", "W4A16_ASYM", 16), ("gptq", "W8A16", 0),
]  # fmt: skip


def values(stored: Checkpoint, layer: str, layout: str, config: dict[str, Any]) -> np.ndarray:
    """[out, in], float32."""
    bits, word = config["bits"], np.uint32
    packed, zeros = (stored.read(f"{layer}.{n}").view(word) for n in ("qweight", "qzeros"))
    scales = stored.read(f"{layer}.scales").astype(np.float32)
    out = scales.shape[1]
    if layout == "awq":
        fan_in, columns = len(packed), [8 * (o // 8) + AWQ_ORDER.index(o % 8) for o in range(out)]
        codes = np.stack([packed[:, c // 8] >> (4 * (c % 8)) & 15 for c in columns], 1).astype(np.int64)
        points = np.stack([zeros[:, c // 8] >> (4 * (c % 8)) & 15 for c in columns], 1).astype(np.int64)
    else:
        fan_in, per, mask = len(packed) * 32 // bits, 32 // bits, (1 << bits) - 1
        codes = np.stack([packed[i // per] >> (bits * (i % per)) & mask for i in range(fan_in)]).astype(np.int64)
        points = np.stack([zeros[:, o // per] >> (bits * (o % per)) & mask for o in range(out)], 1).astype(np.int64)
        points += config["checkpoint_format"] == "gptq"
    groups = np.arange(fan_in) // (config["group_size"] if config["group_size"] > 0 else fan_in)
    if layout == "gptq":
        assert stored.read(f"{layer}.g_idx").tolist() == groups.tolist()
    return ((codes - points[groups]).astype(np.float32) * scales[groups]).T


@torch.inference_mode()
@pytest.mark.parametrize(("layout", "name", "group"), CASES)
@pytest.mark.sampled(2)
def test_files_hold_the_weights_that_were_chosen(layout, name, group, tmp_path, monkeypatch):
    monkeypatch.setattr("thalweg.quantize.formats.GROUPS", (0, 16))
    source = make_checkpoint("qwen3", tmp_path)
    form = choose_format(name, group, layout)
    report = quantize(source, tmp_path / "q", Options(form=form, name=name), progress=False)
    stored, dense = open_checkpoint(tmp_path / "q"), open_checkpoint(source)
    config = json.loads((tmp_path / "q" / "config.json").read_text())["quantization_config"]
    assert (config["quant_method"], config["bits"], config["group_size"]) == (layout, form.bits, group or -1)
    want = {}
    for lost in report.layers:
        weight = torch.from_numpy(np.array(dense.read(f"{lost.layer}.weight")))
        want[f"{lost.layer}.weight"] = nearest(weight, Grid(form, weight, torch.float32)).values
        got = values(stored, lost.layer, layout, config)
        np.testing.assert_array_equal(got, want[f"{lost.layer}.weight"].numpy())
        assert stored.entry(f"{lost.layer}.scales")[0] == "float16"
        assert lost.weights < (0.02 if form.bits == 8 else 0.2)
    read = read_config(tmp_path / "q", None, registry.check)
    model = build(
        read, binder=Binder(()), attention=DEVICE.attention, mesh=Mesh(), dtype="float32", max_len=64, block_tokens=4
    )  # fmt: skip
    files, seen = Files(model, stored, DEVICE), 0
    for _, spec in walk(model.specs):
        if spec.format != DENSE:
            made = dequantise(files.read(spec, 0).data, spec.format.group, torch.float32)
            assert torch.equal(made, torch.cat([want[s.name] for s in spec.sources]))
            seen += 1
    assert seen == 8


@pytest.mark.parametrize("layout", [pytest.param("awq", marks=pytest.mark.slow), "gptq"])
@pytest.mark.slow
def test_the_command_writes_what_is_served(layout, tmp_path):
    """Layers that stay dense are named as each reader expects it, and method and layout are two things."""
    source = make_checkpoint("mixtral", tmp_path)
    text = tmp_path / "text"
    text.write_text("What is it that they say? " * 30)
    words = ["--format", "w4a16", "--layout", layout, "--group-size", "0", "--method", "gptq", "--calibration", str(text),
             "--seq-len", "64", "--ignore", "lm_head", "re:.*0.self_attn.k_proj"]  # fmt: skip
    assert main(["quantize", str(source), str(tmp_path / "q"), *words]) == 0
    config = json.loads((tmp_path / "q" / "config.json").read_text())["quantization_config"]
    k, router = "model.layers.0.self_attn.k_proj", "model.layers.1.block_sparse_moe.gate"
    named = config["modules_to_not_convert"] if layout == "awq" else " ".join(config["dynamic"]).replace("\\", "")
    assert k in named
    assert router in named
    assert "o_proj" not in " ".join(named)
    llm = LLM(str(tmp_path / "q"), device="reference", dtype="float32", max_model_len=64)
    dense = LLM(str(source), device="reference", dtype="float32", max_model_len=64)
    asked = SamplingParams(temperature=0, max_tokens=1, prompt_logprobs=0)
    outs = [m.generate(["say it again"], asked, use_tqdm=False)[0] for m in (llm, dense)]
    told = [np.array([next(iter(t.values())).logprob for t in out.prompt_logprobs if t]) for out in outs]
    assert 0 < np.abs(told[0] - told[1]).mean() < 1


def test_what_a_layout_does_not_hold_is_refused(tmp_path, monkeypatch):
    with pytest.raises(ConfigError, match="--layout: awq holds W4A16, W4A16_ASYM, not W8A16"):
        choose_format("W8A16", None, "awq")
    with pytest.raises(ConfigError, match=r"--layout: gptq holds .*, not FP8_BLOCK"):
        choose_format("FP8_BLOCK", None, "gptq")
    with pytest.raises(ConfigError, match="--layout: unknown layout 'marlin'; supported: compressed-tensors, awq, gptq"):
        choose_format("W4A16", None, "marlin")
    monkeypatch.setitem(ALL, "odd", (LlamaConfig, {"intermediate_size": 84}))
    odd = make_checkpoint("odd", tmp_path)
    with pytest.raises(ConfigError, match=r"mlp.*_proj is \[.*84.*\], and awq keeps 8 codes to a word"):
        quantize(odd, tmp_path / "q", Options(form=choose_format("W4A16", 0, "awq"), name="W4A16"), progress=False)


@torch.inference_mode()
def test_experts_in_one_tensor_are_written_each(tmp_path):
    """As other readers expect them, and as the same model with a tensor for each expert is written."""
    apart = make_checkpoint("qwen3-moe", tmp_path / "apart")
    merged = tmp_path / "merged"
    load_reference(apart, torch.float32).save_pretrained(merged, save_original_format=False)
    for source, out in ((apart, "a"), (merged, "b")):
        quantize(source, tmp_path / out, Options(form=choose_format("W4A16", 0, "gptq"), name="W4A16"), progress=False)
    one, other = open_checkpoint(tmp_path / "a"), open_checkpoint(tmp_path / "b")
    assert one.names == other.names
    assert any(".experts.3.down_proj.qweight" in n for n in one.names)
    assert all(np.array_equal(one.read(n), other.read(n)) for n in one.names)


def test_scales_that_float16_has_no_number_for_are_its_smallest():
    """A column of nearly nothing: codes stay within their range, and values near 0."""
    form = choose_format("W4A16", 0, "gptq")
    weight = torch.full((2, 8), 1e-9)
    made = nearest(weight, Grid(form, weight, torch.float32))
    assert (made.held > 0).all()
    assert torch.isfinite(made.values).all()
    assert made.values.abs().max() < 1e-6
