"""A model run layer by layer computes what transformers does, whatever its layers are, and calibration takes all of them."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from transformers import AutoModelForCausalLM
from zoo import load_reference, make_checkpoint

from thalweg.checkpoint.config import read_config
from thalweg.checkpoint.safetensors import open_checkpoint
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
from thalweg.quantize.layers import Layers
from thalweg.quantize.run import Options, quantize

FAMILIES = ("qwen3", "llama-biased", "gemma3", "glm4", "qwen3-moe", "qwen3.5", "qwen3-next", "jamba", "deepseek-v3")
SAMPLES = [np.arange(3, 43, dtype=np.int32), np.arange(200, 230, dtype=np.int32)]


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.sampled(2)
def test_hidden_states_are_those_of_transformers(family: str, tmp_path: Path) -> None:
    path = make_checkpoint(family, tmp_path, tokenizer=False)
    config, checkpoint = read_config(path), open_checkpoint(path)
    layers = Layers(config, SAMPLES)
    known = layers.model.spec.rename
    weights = {known(n): torch.from_numpy(np.array(checkpoint.read(n))) for n in checkpoint.names}
    layers.begin(weights)
    last = len(layers.model.blocks) - 1
    for i in range(last):
        layers.advance(i, weights)
    seen = layers.gather(last, weights)
    assert all(stats.rows == 70 for stats in seen.values())
    assert ("mixer", "out", "weight") in seen
    model = load_reference(path, torch.float32)
    with torch.inference_mode():
        for sample, (x, residual) in zip(SAMPLES, layers._flowing, strict=True):
            want = model.model(torch.tensor(sample[None]).long(), output_hidden_states=True).hidden_states[last][0]
            got = x if residual is None else x + residual
            torch.testing.assert_close(got, want, atol=2e-4, rtol=2e-4)


@pytest.mark.parametrize(
    ("family", "method"),
    [("qwen3-moe", "awq"), ("qwen3.5", "gptq"),
     *(pytest.param(*case, marks=pytest.mark.slow) for case in (
         ("qwen3-moe", "gptq"), ("qwen3.5", "awq"), ("gemma3n", "awq"), ("deepseek-v3", "awq"), ("deepseek-v3", "gptq"),
     ))],
)  # fmt: skip
def test_every_kind_of_layer_is_calibrated_but_experts(family: str, method: str, tmp_path: Path) -> None:
    source = make_checkpoint(family, tmp_path)
    (tmp_path / "text").write_text("pack my box with five dozen liquor jugs " * 20)
    options = Options(
        form=choose_format("W8A16", 0), name="W8A16", method=method, calibration=tmp_path / "text", samples=3, length=32
    )
    report = quantize(source, tmp_path / "q", options, progress=False)
    for lost in report.layers:
        rounded = ".experts." in lost.layer or ".layers." not in lost.layer  # what comes before layers meets no samples
        assert lost.method == ("rtn" if rounded else method)
        assert (lost.outputs is None) == rounded
        assert lost.outputs is None or lost.outputs < 0.02, lost


@torch.inference_mode()
def test_the_output_matrix_is_quantised_where_nothing_leaves_it_dense(tmp_path: Path) -> None:
    source = make_checkpoint("llama", tmp_path, tokenizer=False)
    options = Options(form=choose_format("FP8_DYNAMIC", None), name="FP8_DYNAMIC", ignore=["re:.*o_proj"])
    report = quantize(source, tmp_path / "q", options, progress=False)
    assert "lm_head" in {e.layer for e in report.layers}
    assert not any(e.layer.endswith("o_proj") for e in report.layers)
    device = load("reference").open(Place())
    made = build(
        read_config(tmp_path / "q", None, registry.check), binder=Binder(()), attention=device.attention, mesh=Mesh(),
        dtype="float32", max_len=64, block_tokens=4,
    )  # fmt: skip
    files = Files(made, open_checkpoint(tmp_path / "q"), device)
    assert made.specs["head"]["weight"].format.bits == 8
    with torch.compiler.set_stance("force_eager"):
        from transformers import CompressedTensorsConfig

        how = CompressedTensorsConfig(run_compressed=False)
        found = dict(AutoModelForCausalLM.from_pretrained(tmp_path / "q", quantization_config=how).named_parameters())
    for _, spec in walk(made.specs):
        if spec.sources:
            got = files.read(spec, 0)
            got = got if spec.format == DENSE else dequantise(got.data, 0, torch.float32)
            assert torch.equal(got, torch.cat([found[s.name] for s in spec.sources])), spec.sources[0].name
