"""Drafters with quantised weights and caches: drafts are those of the dequantised weights, and no text depends on them."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from draft_rounds import record_rounds
from packers import awq
from safetensors.torch import load_file, save_file
from test_eagle import Eagle3, Target
from test_eagle import make as make_eagle
from test_mtp import MOST, PROMPTS, Published, serve, texts
from torch import Tensor

from thalweg import SamplingParams
from thalweg.config import EngineArgs
from thalweg.engine.control.speculation.gain import Gain
from thalweg.engine.planning.memory import plan
from thalweg.errors import ThalwegError

Codes = tuple[dict[str, Tensor], Tensor]
"""The tensors of a layer by suffix, and the weight that they mean."""
FP8 = {
    "quant_method": "compressed-tensors", "format": "float-quantized", "ignore": ["lm_head"],
    "config_groups": {"group_0": {"targets": ["Linear"], "input_activations": None, "weights": {
        "num_bits": 8, "type": "float", "strategy": "channel", "symmetric": True, "dynamic": False,
    }}},
}  # fmt: skip
AWQ = {"quant_method": "awq", "bits": 4, "group_size": 8, "zero_point": True, "version": "gemm"}
CACHES = (
    ("int8_per_token_head", "fp8"), ("fp8", "auto"), ("fp8", "int8_per_token_head"), ("int8_per_token_head", "auto"),
    ("auto", "fp8_e5m2"),
)  # fmt: skip
"""Of a target and its drafter."""


def write_fp8(weight: Tensor) -> Codes:
    scale = weight.abs().amax(1, keepdim=True) / 448
    codes = (weight / scale).to(torch.float8_e4m3fn)
    return {"weight": codes, "weight_scale": scale}, codes.float() * scale


def write_awq(weight: Tensor) -> Codes:
    tensors, dense = awq(torch.where(weight == 0, 1e-4, weight).numpy())  # a group of zeros has no scale
    return {name: torch.from_numpy(t.copy()) for name, t in tensors.items()}, torch.from_numpy(dense)


FORMATS: dict[str, tuple[dict[str, Any], Callable[[Tensor], Codes]]] = {"fp8": (FP8, write_fp8), "awq": (AWQ, write_awq)}


def quantise(source: Path, out: Path, form: str, part: str = "") -> dict[str, Tensor]:
    """Writes the checkpoint with quantised projections, and returns its weights dequantised. part: begins the names of
    layers; others stay dense."""
    description, write = FORMATS[form]
    shutil.copytree(source, out)
    held: dict[str, Tensor] = {}
    dense: dict[str, Tensor] = {}
    for name, t in load_file(source / "model.safetensors").items():
        if not name.endswith("_proj.weight") or not name.startswith(part) or "input_proj" in name:
            held[name] = dense[name] = t
            continue
        tensors, dense[name] = write(t)
        held |= {f"{name.removesuffix('weight')}{suffix}": v.contiguous() for suffix, v in tensors.items()}
    save_file(held, out / "model.safetensors", {"format": "pt"})
    config = json.loads((source / "config.json").read_text())
    (out / "config.json").write_text(json.dumps({**config, "quantization_config": description}))
    return dense


@pytest.fixture(autouse=True)
def always(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Gain, "allows", lambda self, streams: True)  # whatever this machine's clock says


@pytest.fixture(scope="module")
def target(tmp_path_factory: pytest.TempPathFactory) -> tuple[Target, Path]:
    path = tmp_path_factory.mktemp("quantised") / "target"
    path.mkdir()
    made = Target()
    made.save(path)
    return made, path


def check_rounds(path: Path, drafter: Any, expected: Callable[[list[int]], list[int]], monkeypatch: Any) -> None:
    """Almost all drafts are the expected ones (sums differ in their last bits), and many of them are right."""
    seen = record_rounds(monkeypatch)
    llm = serve(path, drafter, max_num_batched_tokens=24)
    params = SamplingParams(max_tokens=12, temperature=0, ignore_eos=True)
    llm.generate([{"prompt_token_ids": p} for p in PROMPTS], params, use_tqdm=False)
    stats = llm.stats()
    llm.shutdown()
    assert stats.accepted_per_position[0] > 3
    assert len(seen) > 15
    assert sum(expected(known) == drafts for known, drafts in seen) >= 0.95 * len(seen)


@pytest.mark.slow
@pytest.mark.parametrize("form", ["awq", "fp8"])
def test_drafts_of_a_quantised_draft_model_are_those_of_its_dequantised_weights(
    target: tuple[Target, Path], form: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    oracle = Target()
    oracle.model.load_state_dict(quantise(target[1], tmp_path / form, form))

    def expect(known: list[int]) -> list[int]:
        ids = list(known)
        for _ in range(MOST):
            ids.append(int(oracle.model(torch.tensor([ids])).logits[0, -1].argmax()))
        return ids[len(known) :]

    drafter = {"method": "draft_model", "model": str(tmp_path / form), "num_speculative_tokens": MOST}
    check_rounds(target[1], drafter, expect, monkeypatch)


@pytest.mark.parametrize("form", [pytest.param("awq", marks=pytest.mark.slow), "fp8"])
def test_drafts_of_a_quantised_eagle3_are_those_of_its_dequantised_weights(
    target: tuple[Target, Path], form: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its first layer has another name in the files, and its configuration describes the weights."""
    model, config = make_eagle(target, "authors")
    assert isinstance(model, Eagle3)
    dense = quantise(Path(config["model"]), tmp_path / form, form)
    known = {n.replace("midlayer.", "layers.0."): t for n, t in dense.items() if n not in ("d2t", "t2d")}
    assert any(not torch.equal(t, model.state_dict()[n]) for n, t in known.items())
    model.load_state_dict(known)
    check_rounds(target[1], {**config, "model": str(tmp_path / form)}, lambda ids: model.drafts(ids, MOST)[0], monkeypatch)


@pytest.mark.slow
@pytest.mark.parametrize("part", ["", "model.layers."])
def test_drafts_of_the_module_of_a_quantised_checkpoint_are_those_of_its_dequantised_weights(
    part: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The module is quantised like the target, or dense next to it."""
    model = Published("mimo")
    (tmp_path / "dense").mkdir()
    model.save(tmp_path / "dense")
    dense = quantise(tmp_path / "dense", tmp_path / "fp8", "fp8", part)
    at = model.family.at
    model.target.load_state_dict({n: t for n, t in dense.items() if not n.startswith(at)})
    inside = {n.removeprefix(at): t for n, t in dense.items() if n.startswith(at)}
    held = model.layers[0].state_dict()
    model.layers[0].load_state_dict({n: inside[n] for n in held})
    drafter = {"method": "mtp", "num_speculative_tokens": MOST}
    check_rounds(tmp_path / "fp8", drafter, lambda ids: model.drafts(ids, MOST)[0], monkeypatch)


@pytest.mark.parametrize(("cache", "own"), CACHES)
@pytest.mark.sampled(0, 1)
def test_text_is_the_same_with_caches_of_any_dtype(target: tuple[Target, Path], cache: str, own: str) -> None:
    tight = {"num_gpu_blocks_override": 14, "max_num_batched_tokens": 24, "kv_cache_dtype": cache}
    without, _ = texts(target[1], None, **tight)
    with_drafts, stats = texts(target[1], {**make_eagle(target, "authors")[1], "kv_cache_dtype": own}, **tight)
    assert with_drafts == without
    assert stats.accepted_tokens > 10


@pytest.mark.nightly
@pytest.mark.parametrize("method", ["int8", "fp8"])
@pytest.mark.parametrize("kind", ["draft_model", "eagle3"])
def test_dense_drafters_are_rounded_while_they_are_loaded(target: tuple[Target, Path], kind: str, method: str) -> None:
    drafter = {"method": kind, "model": str(target[1]), "num_speculative_tokens": MOST}
    drafter = make_eagle(target, "authors")[1] if kind == "eagle3" else drafter
    without, _ = texts(target[1], None)
    dense, before = texts(target[1], drafter)
    rounded, after = texts(target[1], {**drafter, "quantization": method})
    assert without == dense == rounded
    assert after.accepted_tokens > 0.5 * before.accepted_tokens


def test_the_plan_counts_the_precision_of_a_drafter(target: tuple[Target, Path], tmp_path: Path) -> None:
    quantise(target[1], tmp_path / "fp8", "fp8")
    args: dict[str, Any] = {"device": "cpu", "max_model_len": 96, "dtype": "float32"}
    drafter = {"method": "draft_model", "num_speculative_tokens": MOST}
    only, quantised = (plan(EngineArgs(model=str(p), **args)) for p in (target[1], tmp_path / "fp8"))
    smaller = plan(EngineArgs(model=str(target[1]), kv_cache_dtype="fp8", **args))
    both = plan(EngineArgs(model=str(target[1]), speculative_config={**drafter, "model": str(tmp_path / "fp8")}, **args))
    assert both.weights == only.weights + quantised.weights < 2 * only.weights
    drafter |= {"model": str(target[1]), "kv_cache_dtype": "fp8", "quantization": "int8"}
    both, rounded = (
        plan(EngineArgs(model=str(target[1]), **more, **args))
        for more in ({"speculative_config": drafter}, {"quantization": "int8"})
    )
    assert both.weights == only.weights + rounded.weights
    assert both.kv_per_token == only.kv_per_token + smaller.kv_per_token


def test_precisions_that_a_drafter_cannot_have_are_refused_in_words(target: tuple[Target, Path], tmp_path: Path) -> None:
    quantise(target[1], tmp_path / "awq", "awq")
    drafter = {"method": "draft_model", "model": str(target[1]), "num_speculative_tokens": MOST}
    mtp = {"method": "mtp"}
    for config, words in (
        ({**drafter, "quantization": "awq"}, "speculative_config: quantization: 'awq' is a format of checkpoints, and this"),
        ({**drafter, "model": str(tmp_path / "awq"), "quantization": "fp8"}, "speculative_config: quantization: 'fp8' rounds"),
        ({**drafter, "quantization": "int3"}, "speculative_config: quantization: must be one of int8, int4"),
        ({**drafter, "kv_cache_dtype": "int3"}, "speculative_config: kv_cache_dtype: must be one of auto, float32"),
        ({**mtp, "quantization": "fp8"}, "quantization: only methods with a checkpoint .* read it"),
    ):
        with pytest.raises(ThalwegError, match=words):
            serve(target[1], config)
    with pytest.raises(ThalwegError, match="kv_cache_dtype: the module of this model has no cache, and reads that of layer"):
        serve(Path("thalweg-nano"), {**mtp, "kv_cache_dtype": "fp8"})
