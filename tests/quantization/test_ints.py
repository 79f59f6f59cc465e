"""Checkpoints whose codes are integers or places in a table, as their own libraries wrote them (data/, by write_ints.py): equal
weights, equal text, and the bytes that `thalweg plan` counts."""

from __future__ import annotations

import hashlib
import json
import shutil
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from written import as_dense
from zoo import load_reference

from thalweg import LLM, SamplingParams
from thalweg.checkpoint.config import read_config
from thalweg.checkpoint.weights import open_weights
from thalweg.hal.comm import Mesh
from thalweg.hal.discovery import load
from thalweg.hal.op import Binder
from thalweg.hal.ops.quantise import dequantise
from thalweg.hal.platform import Place
from thalweg.hal.weights import DENSE
from thalweg.models import registry as families
from thalweg.models import sizes
from thalweg.models.build import build
from thalweg.models.files import Files
from thalweg.models.load import load_params
from thalweg.models.weights import ParamSpec, Weight, walk
from thalweg.quantization import registry

DEVICE = load("reference").open(Place())
DATA = Path(__file__).parent / "data"
EVERY = sorted(p.parent.name for p in DATA.glob("*/oracle.json"))
ROUNDS_INPUTS = {"bitlinear": 0.1, "autobitlinear": 0.1, "torchao-int8-dynamic": 0.1, "auto-round-fp8": 0.5}
"""Formats that round inputs, which transformers does not with dense weights: by how much log-probabilities may differ."""
ULPS = {"bnb-int8": 2, **{n: 8 for n in EVERY if n.startswith("hqq")}}
"""Formats whose library computes by another formula: largest difference, in float32's distance of the largest term."""


def model(path: Path):
    read = read_config(path, None, registry.check)
    said = {"binder": Binder(()), "attention": DEVICE.attention, "mesh": Mesh(), "dtype": "float32", "max_len": 64}
    return build(read, **said, block_tokens=4), read


def weights(path: Path) -> dict[str, torch.Tensor]:
    """Every matrix by its own name, dequantised."""
    made, _ = model(path)
    files = Files(made, open_weights(path), DEVICE)
    return dict(_each(made, files))


def _each(made, files: Files) -> Iterator[tuple[str, torch.Tensor]]:
    for _, spec in walk(made.specs):
        for source in spec.sources if spec.sources else ():
            one = ParamSpec(Weight((source,), spec.shard, spec.weight.role), spec.dtype, spec.pack, spec.format)
            got = files.read(one, 0)
            if spec.format == DENSE:
                yield source.name, got
                continue
            dense = dequantise(got.data, spec.format.group, torch.float32)
            if "perm" in got.data:  # back into the layer's order
                order = got.data["perm"].reshape(-1).long()
                dense = torch.empty_like(dense).index_copy_(1, order, dense)
            yield source.name, dense


@pytest.mark.parametrize("name", EVERY)
@pytest.mark.sampled(10)
def test_the_weights_are_those_that_the_library_reads(name):
    got, said = weights(DATA / name), json.loads((DATA / name / "oracle.json").read_text())
    if said["near"]:
        want = load_file(DATA / name / "oracle.safetensors")
        for weight, values in want.items():
            term = 255 * 2 * values.abs().max()  # of code * scale and zero * scale, whose difference a weight is
            bound = ULPS[name] * torch.finfo(torch.float32).eps * (values.abs() if name == "bnb-int8" else term)
            assert bool(((got[weight] - values).abs() <= bound).all()), weight
        assert len(want) == 3
        return
    sums = {w: hashlib.sha256((got[w] + 0.0).contiguous().numpy().tobytes()).hexdigest() for w in said["sha256"]}
    assert sums == said["sha256"]
    assert len(sums) == (17 if name == "mlx-experts" else 7)


@torch.inference_mode()
@pytest.mark.parametrize("device", ["reference", "cpu"])
@pytest.mark.parametrize("name", EVERY)
@pytest.mark.slow
def test_text_is_that_of_transformers_with_these_weights(device, name, tmp_path):
    plain = tmp_path / "plain"
    shutil.copytree(DATA / name, plain)
    config = json.loads((plain / "config.json").read_text())
    for key in ("quantization_config", "quantization"):
        config.pop(key, None)
    (plain / "config.json").write_text(json.dumps(config))
    oracle = load_reference(as_dense(tmp_path / "dense", plain, weights(DATA / name)), torch.float32)
    llm = LLM(str(DATA / name), device=device, dtype="float32", skip_tokenizer_init=True, max_model_len=64, block_size=4)
    rng = np.random.default_rng(2)
    for prompt in (rng.integers(3, 60, n).tolist() for n in (5, 17)):
        params = SamplingParams(temperature=0, max_tokens=8, ignore_eos=True, logprobs=0, detokenize=False)
        (out,) = llm.generate([{"prompt_token_ids": prompt}], params, use_tqdm=False)
        told = list(out.outputs[0].token_ids)
        rows = oracle(torch.tensor([[*prompt, *told[:-1]]])).logits[0, len(prompt) - 1 :].float().log_softmax(-1)
        mine = [step[t].logprob for step, t in zip(out.outputs[0].logprobs, told, strict=True)]
        if name in ROUNDS_INPUTS:
            np.testing.assert_allclose(mine, rows[range(8), told], atol=ROUNDS_INPUTS[name])
            continue
        assert rows.argmax(-1).tolist() == told
        np.testing.assert_allclose(mine, rows.amax(-1), atol=2e-3 if device == "cpu" else 1e-4)


@pytest.mark.parametrize("name", EVERY)
@pytest.mark.sampled(10)
def test_the_bytes_counted_are_the_bytes_held(name):
    made, read = model(DATA / name)
    held = {t.data_ptr(): t.nbytes for _, t in walk(load_params(made, DATA / name, DEVICE, progress=False))}
    spec, form = families.family(read)(read), registry.scheme(read, None)
    assert sizes.weight_bytes(spec, "float32", 64, use=form) == sum(held.values())


def test_every_reader_has_its_files():
    methods = {read_config(DATA / n, None, registry.check)["quantization_config"]["quant_method"] for n in EVERY}
    assert methods == {"auto-round", "awq", "bitnet", "bitsandbytes", "gptq", "hqq", "mlx", "torchao"}
