"""Dense weights that hold 4-bit integers already are found, and `int4` keeps them. The grids are made by the gguf library."""

from __future__ import annotations

from pathlib import Path

import gguf
import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file
from zoo import make_causal

from thalweg import LLM, SamplingParams
from thalweg.backends.cpu import CpuPlatform
from thalweg.backends.cpu.native import open_library
from thalweg.backends.cpu.native.linear import NativeLinear
from thalweg.checkpoint.weights import open_weights
from thalweg.config import EngineArgs
from thalweg.engine.planning.checkpoint_config import read
from thalweg.engine.planning.memory import plan
from thalweg.hal.ops.quantise import dequantise, quantise
from thalweg.hal.weights import WeightFormat
from thalweg.models import registry
from thalweg.models.precision import model_scheme
from thalweg.quantization import grids
from thalweg.quantization.online import METHODS, fine_format, formats

SHAPE = {
    "hidden_size": 128,
    "intermediate_size": 192,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "num_hidden_layers": 2,
}


def round_to(values: torch.Tensor, kind: str) -> torch.Tensor:
    """The values nearest to these on the grid of a GGUF type, by the library of that format."""
    made = gguf.GGMLQuantizationType[kind]
    return torch.from_numpy(gguf.quants.dequantize(gguf.quants.quantize(values.float().numpy(), made), made).copy())


def make_checkpoint(path: Path, kind: str, layers: tuple[int, ...] = (0, 1)) -> Path:
    """A Llama with the matrices of these layers on a grid, in bfloat16."""
    made = make_causal("llama", path, **SHAPE)
    tensors = load_file(made / "model.safetensors")
    for name, values in tensors.items():
        if kind and values.ndim == 2 and any(f".layers.{i}." in name for i in layers):
            tensors[name] = round_to(values, kind)
    save_file({k: v.bfloat16() for k, v in tensors.items()}, made / "model.safetensors", {"format": "pt"})
    return made


@pytest.mark.parametrize("kind", ["Q4_0", "Q4_1"])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32])
def test_weights_on_a_grid_are_found_and_rounded_to_themselves(kind: str, dtype: torch.dtype) -> None:
    values = round_to(torch.randn(64, 128) * 0.02 + 0.004, kind).to(dtype).float()
    mine, ordinary = grids._compare_errors(values.numpy().reshape(-1, grids.GROUP))
    assert mine < 0.02 * ordinary
    made = quantise(values, WeightFormat("int", 4, grids.GROUP, symmetric=False, mins=True))
    lost = (dequantise(made.data, grids.GROUP, torch.float32) - values).square().mean()
    coarse = quantise(values, METHODS["w4a16"].layers)
    assert lost < 0.02 * (dequantise(coarse.data, 64, torch.float32) - values).square().mean()


def test_a_grid_of_eight_bits_or_none_is_not_one_of_four(tmp_path: Path) -> None:
    for values in (
        np.random.default_rng(0).normal(size=(64, grids.GROUP)).astype(np.float32),
        np.zeros((4, grids.GROUP), np.float32),
    ):
        mine, ordinary = grids._compare_errors(values)
        assert mine >= grids.MARGIN * ordinary
        assert grids._find_grid(values) is None
    for kind, layers, found in (("", (0, 1), 0), ("Q8_0", (0, 1), 0), ("Q4_0", (0,), 0), ("Q4_0", (0, 1), grids.GROUP)):
        files = make_checkpoint(tmp_path / f"{kind}{len(layers)}", kind, layers)
        assert grids.find_group(open_weights(files)) == found, kind


def make_fine(kind: str, rows: int, columns: int) -> torch.Tensor:
    """Values on the grid of a GGUF type with finer codes than 4 bits. The library writes no K types: their codes and scales are
    random here."""
    if kind != "Q6_K":
        return round_to(torch.randn(rows, columns) * 0.02, kind)
    blocks = np.random.default_rng(1).integers(0, 256, (rows * columns // 256, 210), np.uint8)
    blocks[:, 208:] = np.full((len(blocks), 1), 1e-4, np.float16).view(np.uint8)  # the scale of the block's scales
    values = gguf.quants.dequantize(blocks, gguf.GGMLQuantizationType.Q6_K)
    return torch.from_numpy(np.ascontiguousarray(values).reshape(rows, columns))


@pytest.mark.parametrize(("kind", "group"), [("Q5_0", 32), ("Q6_K", 16)])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32])
def test_weights_on_a_grid_of_five_or_six_bits_are_found_and_rounded_to_themselves(
    kind: str, group: int, dtype: torch.dtype
) -> None:
    values = make_fine(kind, 64, 256).to(dtype).float()
    assert grids._find_grid(values.numpy().reshape(-1, grids.GROUP)[: grids.ROWS * grids.GROUPS]) == (grids.FINE, group)
    made = quantise(values, fine_format(group))
    assert made.data["codes"].min() >= -32
    assert made.data["codes"].max() < 32
    assert torch.equal(made.data["scales"], made.data["scales"].half().float())
    lost = (dequantise(made.data, group, torch.float32) - values).square().mean()
    ordinary = quantise(values, WeightFormat("int", 8, group))
    assert lost < 0.3 * (dequantise(ordinary.data, group, torch.float32) - values).square().mean()


def test_six_bits_of_ordinary_weights_are_the_nearest_and_zeros_stay() -> None:
    values = torch.randn(16, 64)
    values[3, 32:] = 0
    made = quantise(values, fine_format(32))
    off = dequantise(made.data, 32, torch.float32) - values
    largest = values.unflatten(1, (2, 32)).abs().amax(-1)
    assert off.square().mean() < (largest / 32).square().mean() / 12
    assert (off[3, 32:] == 0).all()


def test_methods_of_four_bit_integers_keep_the_grid_and_others_ignore_it() -> None:
    for method in METHODS:
        kept = formats(method, grids.GROUP)
        if method in grids.METHODS:
            assert (kept.layers.group, kept.layers.mins, kept.layers.act) == (32, True, METHODS[method].layers.act)
        else:
            assert kept == METHODS[method]
    kept = formats("int4", grids.GROUP)
    assert kept.narrow(["v"]) == kept
    assert kept.plain_layers == formats("w4a16", grids.GROUP).layers


def log_probabilities(model: Path, **args: str) -> np.ndarray:
    llm = LLM(str(model), device="cpu", max_model_len=64, max_num_seqs=2, use_tqdm_on_load=False, **args)
    ids = list(range(5, 45))
    (out,) = llm.generate([{"prompt_token_ids": ids}], SamplingParams(max_tokens=1, prompt_logprobs=0), use_tqdm=False)
    llm.shutdown()
    return np.array([at[token].logprob for at, token in zip(out.prompt_logprobs[1:], ids[1:], strict=True)])


def test_int4_changes_a_model_on_a_grid_less_than_an_ordinary_one(tmp_path: Path) -> None:
    moved = {}
    for kind in ("", "Q4_1"):
        model = make_checkpoint(tmp_path / (kind or "ordinary"), kind)
        dense = log_probabilities(model, dtype="float32")
        moved[kind] = np.abs(log_probabilities(model, dtype="float32", quantization="w4a16") - dense).mean()
    assert moved["Q4_1"] < 0.2 * moved[""]


@pytest.mark.parametrize(("kind", "grid"), [("Q4_1", (4, 32)), ("Q5_0", (6, 32))])
def test_int4_keeps_the_matrices_on_a_grid_of_a_model_with_others(tmp_path: Path, kind: str, grid: tuple[int, int]) -> None:
    """Those of layer 0. They are held in 4 or 6 bits, with the values that the files have, and others get the freed bytes."""
    model = make_checkpoint(tmp_path / "mixed", kind, (0,))
    config = read(EngineArgs(model=str(model), quantization="int4"), model)
    tensors = load_file(model / "model.safetensors")
    names = sorted(n for n, values in tensors.items() if ".layers.0." in n and values.ndim == 2)
    assert config[grids.NAMES] == dict.fromkeys(names, grid)
    assert grids.NAMES not in read(EngineArgs(model=str(model), quantization="w4a8"), model)
    use = model_scheme(config, "int4", registry.family(config)(config))
    for name in names:
        form = use.of("linear", name)
        values = tensors[name].float()
        lost = (dequantise(quantise(values, form).data, form.group, torch.float32) - values).square().mean()
        assert (form.code_bits or form.bits) == grid[0]
        assert lost < 1e-4 * values.square().mean()
    assert use.of("linear", names[0].replace(".0.", ".1.")) != use.of("linear", names[0])
    moved = np.abs(log_probabilities(model, quantization="int4") - log_probabilities(model)).mean()
    ordinary = make_checkpoint(tmp_path / "ordinary", "")
    assert moved < np.abs(log_probabilities(ordinary, quantization="int4") - log_probabilities(ordinary)).mean()


def test_the_plan_counts_the_smaller_groups(tmp_path: Path) -> None:
    sizes = []
    for kind in ("", "Q4_0"):
        model = make_checkpoint(tmp_path / (kind or "ordinary"), kind)
        sizes.append(plan(EngineArgs(model=str(model), device="cpu", quantization="w4a16", max_model_len=64)).weights)
    assert sizes[0] < sizes[1]


@pytest.mark.parametrize("group", grids.FINE_GROUPS)
def test_the_plan_counts_the_bytes_of_six_bits(group: int) -> None:
    form, shape = fine_format(group), (256, 512)
    library = open_library(1)
    packed = NativeLinear(library).pack(quantise(torch.randn(shape), form))
    assert abs(packed.bytes - CpuPlatform().quantised_bytes(form, *shape)) < 1024
