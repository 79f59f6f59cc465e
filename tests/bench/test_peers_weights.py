"""Weights made for peers: what is written, read back by the format's description, is the weight rounded to nearest."""

from __future__ import annotations

import json
import os
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file

from benchmarks.peers import compressed, models


def drawn(rows: int, columns: int, seed: int = 0) -> torch.Tensor:
    rng = np.random.default_rng(seed)
    return torch.from_numpy(rng.standard_normal((rows, columns), np.float32)).to(torch.bfloat16)


def nibbles(packed: np.ndarray) -> np.ndarray:
    """Codes of int32 words, lowest four bits first, 8 taken off."""
    words = packed.view(np.uint32)
    return np.stack([(words >> (4 * i)) & 15 for i in range(8)], -1).reshape(len(words), -1).astype(int) - 8


def test_int8_rows_are_rounded_to_the_nearest_of_their_own_scale() -> None:
    weight = drawn(24, 64)
    weight[3] = 0
    made = compressed.int8(weight)
    codes, scale = made[""].numpy(), made["_scale"].float().numpy()
    assert codes.dtype == np.int8
    assert scale.shape == (24, 1)
    assert np.abs(codes).max() <= 127
    error = np.abs(codes * scale - weight.float().numpy())
    assert (error <= scale / 2 * 1.01 + np.abs(weight.float().numpy()).max(1, keepdims=True) * 2**-8).all()
    assert not codes[3].any()


def test_int4_groups_pack_eight_to_a_word_lowest_first() -> None:
    weight = drawn(6, 256)
    made = compressed.int4(weight)
    assert made["_packed"].shape == (6, 32)
    assert made["_packed"].dtype == torch.int32
    assert made["_scale"].shape == (6, 2)
    assert made["_shape"].tolist() == [6, 256]
    codes = nibbles(made["_packed"].numpy())
    scale = made["_scale"].float().numpy().repeat(compressed.GROUP, 1)
    wanted = np.clip(np.round(weight.float().numpy() / scale), -8, 7)
    np.testing.assert_array_equal(codes, wanted)
    assert codes.min() < 0 < codes.max()


@pytest.mark.parametrize("kind", ["w8a8", "w4a16"])
def test_a_checkpoint_rounds_layers_and_nothing_else(kind: str, tmp_path: Path) -> None:
    source, folder = tmp_path / "model", tmp_path / "made"
    source.mkdir()
    layer = "model.layers.0.self_attn.q_proj.weight"
    tensors = {"model.embed_tokens.weight": drawn(10, 128), layer: drawn(8, 128), "model.norm.weight": torch.ones(128)}
    save_file(tensors, source / "model.safetensors")
    (source / "config.json").write_text('{"model_type": "qwen3"}')
    for name in models.TEXT:
        (source / name).write_text(name)
    out = models.prepared(kind, source, folder, tmp_path)
    read = load_file(out / "model.safetensors")
    assert torch.equal(read["model.embed_tokens.weight"], tensors["model.embed_tokens.weight"])
    assert torch.equal(read["model.norm.weight"], tensors["model.norm.weight"])
    assert (layer in read) == (kind == "w8a8")
    assert f"{layer}_scale" in read
    config = json.loads((out / "config.json").read_text())
    assert config["model_type"] == "qwen3"
    assert config["quantization_config"]["quant_method"] == "compressed-tensors"
    assert config["quantization_config"]["ignore"] == ["lm_head"]
    assert all((out / name).read_text() == name for name in models.TEXT)

    before = (out / "model.safetensors").stat().st_mtime_ns
    assert models.prepared(kind, source, folder, tmp_path) == out  # kept
    assert (out / "model.safetensors").stat().st_mtime_ns == before
    os.utime(source / "model.safetensors", ns=(1, 1))
    assert models.prepared(kind, source, folder, tmp_path) != out  # of other weights


def test_what_a_broken_off_run_left_is_not_taken_for_weights(tmp_path: Path) -> None:
    left = tmp_path / "partial-thing"
    left.mkdir()
    (left / "model.safetensors").write_text("half")
    assert models._fresh(tmp_path / "thing") == left
    assert not left.exists()


def test_a_checkpoint_is_known_by_its_shape() -> None:
    shape = models._maker().SHAPES["qwen3-0.6b"]
    assert models.shape_of({**shape, "eos_token_id": 7}) == "qwen3-0.6b"
    assert models.shape_of({**shape, "num_hidden_layers": 2}) == "unpublished"
