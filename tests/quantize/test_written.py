"""What `thalweg quantize` writes, read by transformers with compressed-tensors, and by thalweg: the weights that were chosen,
and the text that they make. Calibration loses less than rounding to nearest."""

from __future__ import annotations

import itertools
import json
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import torch
from transformers import AutoModelForCausalLM, CompressedTensorsConfig
from zoo import make_checkpoint

from thalweg import LLM, SamplingParams
from thalweg.checkpoint.config import read_config
from thalweg.checkpoint.hub import resolve_model
from thalweg.checkpoint.safetensors import INDEX, open_checkpoint
from thalweg.cli import main
from thalweg.errors import ConfigError
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
from thalweg.models.weights import walk
from thalweg.nano.tasks import TASKS, generate
from thalweg.quantization import registry
from thalweg.quantize.formats import FORMATS, choose_format
from thalweg.quantize.grids import Grid, nearest
from thalweg.quantize.run import REPORT, Options, QuantizeReport, quantize

DEVICE = load("reference").open(Place())
DRAFT = resolve_model("thalweg-nano-draft")
WEIGHTS_ALONE = [n for n, form in FORMATS.items() if not form.inputs and n != "NVFP4A16"]
"""But for one whose weights transformers rounds to bfloat16."""
PROMPTS = ([5, 6, 7, 8, 9], list(range(300, 317)))


@pytest.fixture(autouse=True)
def _uncompiled() -> Iterator[None]:
    """Some of the library's functions are compiled at their first call, which takes longer than all tests here."""
    with torch.compiler.set_stance("force_eager"):
        yield


@pytest.fixture(scope="module")
def wide(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The same model in float32 files: then scales are float32, and no reader rounds their products."""
    path = tmp_path_factory.mktemp("model") / "wide"
    AutoModelForCausalLM.from_pretrained(DRAFT, dtype=torch.float32).save_pretrained(path)
    for name in ("tokenizer.json", "tokenizer_config.json"):
        (path / name).write_bytes((DRAFT / name).read_bytes())
    return path


def written(out: Path, name: str, group: int | None = None, source: Path = DRAFT, **more) -> QuantizeReport:
    return quantize(source, out, Options(form=choose_format(name, group), name=name, **more), progress=False)


def oracle(path: Path, compressed: bool = False) -> torch.nn.Module:
    how = CompressedTensorsConfig(run_compressed=compressed)
    return AutoModelForCausalLM.from_pretrained(path, dtype=torch.float32, quantization_config=how).eval()


def layers_of(path: Path):
    read = read_config(path, None, registry.check)
    made = build(
        read, binder=Binder(()), attention=DEVICE.attention, mesh=Mesh(), dtype="float32", max_len=64, block_tokens=4
    )  # fmt: skip
    return made, read


@torch.inference_mode()
@pytest.mark.parametrize(("name", "group"), [*((n, None) for n in FORMATS), ("W4A16", 64), ("W4A16_ASYM", 32), ("W8A16", 0)])
@pytest.mark.sampled(1)
def test_readers_find_the_weights_that_were_chosen(name: str, group: int | None, wide: Path, tmp_path: Path) -> None:
    report = written(tmp_path / "q", name, group, wide)
    form, dense = choose_format(name, group), open_checkpoint(wide)
    found = dict(oracle(tmp_path / "q").named_parameters())
    assert len(report.layers) == 7 * json.loads((DRAFT / "config.json").read_text())["num_hidden_layers"]
    values = {}
    for lost in report.layers:
        weight = torch.from_numpy(np.array(dense.read(f"{lost.layer}.weight")))
        made = nearest(weight, Grid(form, weight, torch.float32))
        values[f"{lost.layer}.weight"] = made.values
        told = made.values.bfloat16().float() if name == "NVFP4A16" else made.values  # that decoder computes in bfloat16
        assert torch.equal(found[f"{lost.layer}.weight"], told), lost.layer
        assert 0 < lost.weights < (0.2 if form.bits == 4 else 0.05)
    model, read = layers_of(tmp_path / "q")
    files, seen = Files(model, open_checkpoint(tmp_path / "q"), DEVICE), 0
    for _, spec in walk(model.specs):
        if spec.format != DENSE:
            got = dequantise(files.read(spec, 0).data, spec.format.group, torch.float32)
            want = torch.cat([values[s.name] for s in spec.sources])
            # The outer scale of NVFP4 divides in files, and is turned over where it is read: one rounding.
            torch.testing.assert_close(got, want, rtol=3e-7 if name == "NVFP4A16" else 0, atol=0)
            seen += 1
    assert seen == 4 * len(model.blocks)
    params = load_params(model, tmp_path / "q", DEVICE, progress=False)
    held = {t.data_ptr(): t.nbytes for _, t in walk(params)}
    spec = families.family(read)(read)
    assert sizes.weight_bytes(spec, "float32", 64, use=registry.scheme(read, None)) == sum(held.values())


@torch.inference_mode()
@pytest.mark.parametrize("name", WEIGHTS_ALONE)
@pytest.mark.sampled(1)
def test_the_text_is_that_of_transformers(name: str, wide: Path, tmp_path: Path) -> None:
    written(tmp_path / "q", name, source=wide)
    llm = LLM(str(tmp_path / "q"), device="reference", dtype="float32", max_model_len=64, max_num_seqs=2)
    model = oracle(tmp_path / "q")
    for prompt in PROMPTS:
        asked = SamplingParams(temperature=0, max_tokens=8, ignore_eos=True)
        (out,) = llm.generate([{"prompt_token_ids": prompt}], asked, use_tqdm=False)
        told = list(out.outputs[0].token_ids)
        logits = model(torch.tensor([[*prompt, *told[:-1]]])).logits[0, len(prompt) - 1 :]
        assert logits.argmax(-1).tolist() == told


@torch.inference_mode()
@pytest.mark.parametrize("name", ["W4A16", "W4A16_ASYM", "W8A8", "FP8_BLOCK"])
@pytest.mark.sampled(2)
def test_scales_of_a_bfloat16_model_are_bfloat16(name: str, tmp_path: Path) -> None:
    """transformers then rounds their products to bfloat16 too, which are else what was chosen."""
    report = written(tmp_path / "q", name)
    found, stored = dict(oracle(tmp_path / "q").named_parameters()), open_checkpoint(tmp_path / "q")
    dense = open_checkpoint(DRAFT)
    for lost in report.layers:
        weight = torch.from_numpy(dense.read(f"{lost.layer}.weight").astype(np.int32) << 16).view(torch.float32)
        made = nearest(weight, Grid(choose_format(name, None), weight, torch.bfloat16))
        assert stored.entry(f"{lost.layer}.weight_scale")[0] == "bfloat16"
        assert torch.equal(found[f"{lost.layer}.weight"], made.values.bfloat16().float())


def text(split: str, seed: int) -> str:
    examples = (e for task in TASKS for e in itertools.islice(generate(task, split, seed), 4))
    return "\n".join(f"{m['content']}" for e in examples for m in (*e.messages, {"content": e.answer}))


@torch.inference_mode()
@pytest.mark.slow
def test_calibration_loses_less_than_rounding_on_its_text_and_on_another(tmp_path: Path) -> None:
    (tmp_path / "text").write_text(text("train", 1))
    lost: dict[str, float] = {}
    apart: dict[str, float] = {}
    ids = LLM(str(DRAFT), device="reference", max_model_len=64, max_num_seqs=1).get_tokenizer().encode(text("test", 2))[:400]
    want = AutoModelForCausalLM.from_pretrained(DRAFT, dtype=torch.float32)(torch.tensor([ids])).logits.log_softmax(-1)
    for method in ("rtn", "awq", "gptq"):
        more = {"calibration": tmp_path / "text", "samples": 24, "length": 128, "method": method}
        report = written(tmp_path / method, "W4A16", **more)
        lost[method] = float(np.mean([e.outputs for e in report.layers]))
        got = oracle(tmp_path / method)(torch.tensor([ids])).logits.log_softmax(-1)
        apart[method] = float((want.exp() * (want - got)).sum(-1).mean())
        assert report.tokens == 24 * 128
        assert {e.method for e in report.layers} == {method}
        assert json.loads((tmp_path / method / REPORT).read_text())["layers"][0]["outputs"] == report.layers[0].outputs
    assert lost["gptq"] < 0.7 * lost["rtn"], lost
    assert lost["awq"] < 0.97 * lost["rtn"], lost
    assert apart["gptq"] < 0.8 * apart["rtn"], apart
    assert apart["awq"] < apart["rtn"], apart


@pytest.mark.parametrize("family", ["llama-biased", "llama", "gemma3", "glm4", "qwen2"])
@pytest.mark.sampled(2)
def test_folded_scales_leave_a_model_as_it_was(family: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """AWQ with a format that rounds nothing: what norms and rows are divided by, weights are multiplied by."""
    from thalweg.quantize import awq, run

    monkeypatch.setattr(awq, "RATIOS", (0.5,))
    source = make_checkpoint(family, tmp_path)
    (tmp_path / "text").write_text("the quick brown fox jumps over the lazy dog " * 8)
    folded: dict[str, torch.Tensor] = {}
    rounded = run._Run._round

    def kept(self, name, weight, seen):
        made, how = rounded(self, name, weight, seen)
        made.values = weight
        folded[name] = weight
        return made, how

    monkeypatch.setattr(run._Run, "_round", kept)
    options = Options(
        form=choose_format("W8A8", None), name="W8A8", method="awq", calibration=tmp_path / "text", samples=2, length=32
    )
    quantize(source, tmp_path / "q", options, progress=False)
    model = AutoModelForCausalLM.from_pretrained(source, dtype=torch.float32).eval()
    ids = torch.tensor([PROMPTS[0] + list(range(30, 50))])
    with torch.inference_mode():
        want = model(ids).logits
        held = dict(model.named_parameters())
        stored = open_checkpoint(tmp_path / "q")
        changed = 0
        for name in stored.names:
            if name in held and name not in folded and stored.entry(name)[0] == "float32":
                new = torch.from_numpy(np.array(stored.read(name)))
                changed += not torch.equal(new, held[name])
                held[name].copy_(new)
        for name, weight in folded.items():
            changed += not torch.equal(weight, held[name])
            held[name].copy_(weight)
        got = model(ids).logits
    assert changed > len(folded) // 2
    torch.testing.assert_close(got, want, atol=2e-4, rtol=1e-3)


def test_experts_are_rounded_and_their_routers_stay(tmp_path: Path) -> None:
    source = make_checkpoint("qwen3-moe", tmp_path, tokenizer=False)
    report = quantize(
        source, tmp_path / "q", Options(form=choose_format("FP8_DYNAMIC", None), name="FP8_DYNAMIC"), progress=False
    )
    assert sum(".experts." in e.layer for e in report.layers) == 2 * 6 * 3
    model, read = layers_of(tmp_path / "q")
    assert "model.layers.0.mlp.gate" in read["quantization_config"]["ignore"]
    files = Files(model, open_checkpoint(tmp_path / "q"), DEVICE)
    dense = open_checkpoint(source)
    for _, spec in walk(model.specs):
        if spec.format != DENSE:
            parts = [torch.from_numpy(np.array(dense.read(s.name))) for s in spec.sources]
            want = torch.cat([nearest(w, Grid(choose_format("FP8_DYNAMIC", None), w, torch.float32)).values for w in parts])
            assert torch.equal(dequantise(files.read(spec, 0).data, 0, torch.float32), want)


def test_shards_and_what_lies_beside_the_weights(tmp_path: Path) -> None:
    written(tmp_path / "one", "W8A8")
    written(tmp_path / "many", "W8A8", shard_bytes=200_000)
    index = json.loads((tmp_path / "many" / INDEX).read_text())
    one, many = open_checkpoint(tmp_path / "one"), open_checkpoint(tmp_path / "many")
    assert len(set(index["weight_map"].values())) > 2
    assert one.names == many.names == sorted(index["weight_map"])
    assert all(np.array_equal(one.read(n), many.read(n)) for n in one.names)
    beside = {"tokenizer.json", "tokenizer_config.json", "chat_template.jinja", "generation_config.json", REPORT, "config.json"}
    assert beside <= {f.name for f in (tmp_path / "one").iterdir()}
    assert not (tmp_path / "one" / INDEX).exists()


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--format", "W5A16"], "--format: unknown format 'W5A16'; supported: W4A16"),
        (["--format", "W8A8", "--group-size", "64"], "--group-size: the groups of W8A8 are fixed"),
        (["--format", "W4A16", "--group-size", "48"], "--group-size: must be one of 0, 32, 64, 128"),
        (["--format", "W4A16", "--method", "gptq"], "--calibration: --method gptq needs text"),
        (["--format", "W4A16", "--damp", "2"], "--damp: must be between 0 and 1"),
        (["--format", "W4A16", "--ignore", "re:.*"], "--ignore: leaves nothing to quantise"),
        (["--format", "W4A16", "--calibration", "/nowhere/text"], "--calibration: /nowhere/text cannot be read"),
    ],
)
def test_what_cannot_be_done_is_refused_by_flag(words, said, tmp_path, capsys) -> None:
    assert main(["quantize", str(DRAFT), str(tmp_path / "q"), *words]) == 2
    assert said in capsys.readouterr().err
    assert not list(tmp_path.iterdir())


def test_models_that_do_not_fit_are_refused(tmp_path: Path, capsys) -> None:
    source = make_checkpoint("llama", tmp_path, tokenizer=False)
    with pytest.raises(
        ConfigError, match=r"q_proj has 48 inputs, which groups of 128 do not divide: another --group-size \(0\)"
    ):
        quantize(source, tmp_path / "q", Options(form=choose_format("W4A16", None), name="W4A16"), progress=False)
    assert main(["quantize", str(DRAFT), str(tmp_path / "q"), "--format", "fp8-dynamic"]) == 0
    assert "| mean " in capsys.readouterr().out
    assert main(["quantize", str(tmp_path / "q"), str(tmp_path / "again"), "--format", "W8A8"]) == 2
    assert "is quantised already (compressed-tensors)" in capsys.readouterr().err
    assert main(["quantize", str(DRAFT), str(tmp_path / "q"), "--format", "W8A8"]) == 2
    assert "q exists already" in capsys.readouterr().err
