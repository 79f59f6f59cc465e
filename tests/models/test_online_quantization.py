"""Rounding a checkpoint at load: every linear layer binds to its format, the model still answers, memory is planned for it."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoModelForCausalLM, LlamaConfig

from thalweg import LLM, SamplingParams
from thalweg.checkpoint.config import read_config
from thalweg.checkpoint.hub import resolve_model
from thalweg.config import EngineArgs
from thalweg.engine.planning.memory import plan
from thalweg.errors import ConfigError
from thalweg.hal.device import Device
from thalweg.hal.op import Binder
from thalweg.hal.ops import linear
from thalweg.hal.ops.quantise import dequantise, quantise
from thalweg.hal.weights import DENSE, QTensor
from thalweg.models import registry as families
from thalweg.models import sizes
from thalweg.models.build import gains
from thalweg.models.precision import model_scheme
from thalweg.models.weights import walk
from thalweg.options.weights import CHECKPOINT_FORMATS, QUANTIZATIONS, ROUNDINGS, SPELLINGS
from thalweg.quantization.online import METHODS, NARROW, Formats, round_weight


@pytest.mark.slow
def test_the_names_users_give_are_those_there_are() -> None:
    assert set(METHODS) == set(ROUNDINGS)
    assert set(SPELLINGS.values()) <= set(ROUNDINGS)
    assert not SPELLINGS.keys() & set(ROUNDINGS)
    assert set(QUANTIZATIONS) == {*ROUNDINGS, *SPELLINGS, *CHECKPOINT_FORMATS}
    with pytest.raises(ConfigError, match="quantization must be one of int8, int4"):
        LLM("thalweg-nano", device="reference", quantization="aqlm")
    with pytest.raises(ConfigError, match="'gptq' is a format of checkpoints, and this one's weights are dense: remove it"):
        LLM("thalweg-nano", device="reference", quantization="gptq")


def test_names_of_the_field_are_served_by_ours_and_the_log_says_so(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level("INFO"):
        llm = LLM("thalweg-nano", device="reference", quantization="fp8_per_tensor", max_model_len=64, max_num_seqs=2)
    assert llm.config.model.quantization == "fp8"
    assert any("fp8_per_tensor is served as fp8" in r.getMessage() for r in caplog.records)


HALF_OF_THE_LARGEST = {("int", 8): 0.5, ("int", 4): 1, ("float", 8): 16, ("float", 4): 1}
"""Steps between neighbours, times the scale; of 4-bit integers a whole one, because their zero points are rounded too."""


@pytest.mark.parametrize("method", METHODS)
def test_rounding_in_parts_is_rounding_at_once_and_stays_within_half_a_step(
    method: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    form = METHODS[method].layers
    weight = torch.randn(37, 200)
    whole = round_weight(QTensor(DENSE, (37, 200), {"weight": weight}), form)
    monkeypatch.setattr("thalweg.quantization.online.CHUNK", 600)
    parts = round_weight(QTensor(DENSE, (37, 200), {"weight": weight}), form)
    assert all(torch.equal(whole.data[name], parts.data[name]) for name in whole.data)
    back = dequantise(whole.data, form.group, torch.float32)
    scales = whole.data["scales"].float() * whole.data.get("scale", torch.ones(1))
    step = scales.repeat_interleave(form.group or 200, 1)[:, :200] * HALF_OF_THE_LARGEST[form.kind, form.bits]
    assert ((back - weight).abs() <= step * 1.001).all()
    held = sum(t.numel() * t.element_size() for n, t in whole.data.items() if n != "codes") + 37 * 200 * form.bits // 8
    assert form.bytes(37, 200) == pytest.approx(held, rel=0.1)


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.slow
def test_a_rounded_model_answers_and_its_plan_says_how(method: str) -> None:
    llm = LLM("thalweg-nano", device="cpu", quantization=method, max_model_len=64, max_num_seqs=2)
    out = llm.generate(["2 + 2 ="], SamplingParams(max_tokens=4, temperature=0))
    assert len(out[0].outputs[0].token_ids) >= 1
    lines = [line for line in llm.kernel_plan if line.startswith("linear(")]
    assert lines
    forms = _forms(method, llm.device)
    held = {line.partition("weight=")[2].partition(")")[0] for line in lines}
    assert held == {str(forms.layers), str(forms.head)}


def _forms(method: str, device: Device) -> Formats:
    """In what a model is held there, of as many inputs as thalweg-nano has."""
    found = METHODS[method].narrow()
    return found.choose(lambda form: gains(Binder(device.kernels), "float32", 256, form))


def test_no_choice_takes_more_bytes_than_the_first_so_that_memory_is_planned_without_a_device() -> None:
    for forms in (either for each in METHODS.values() for either in (each, each.narrow())):
        plain = forms.choose(lambda _: False)
        assert plain.layers.bytes(70, 200) <= forms.layers.bytes(70, 200)
        assert plain.head.bytes(70, 200) <= forms.head.bytes(70, 200) == forms.choose(lambda _: True).head.bytes(70, 200)


@pytest.mark.parametrize("method", ["int8", "w4a8"])
@pytest.mark.slow
def test_the_largest_inputs_keep_their_values_only_where_a_kernel_does_so(method: str) -> None:
    """Other devices round all inputs of layers, and none of the output matrix."""
    sizes = {"quantization": method, "max_model_len": 64, "max_num_seqs": 2}
    plain = LLM("thalweg-nano", device="reference", **sizes).kernel_plan
    assert any("weight=int8-row)" in line for line in plain)
    assert not any("keep4" in line for line in plain)
    llm = LLM("thalweg-nano", device="cpu", **sizes)
    kept = [x for x in llm.kernel_plan if x.startswith("linear(") and "weight=int8-row-int8_keep4)" in x]
    assert bool(kept) == ("compiled, avx" in llm.device.info.notes["kernels"])
    assert all("-> native-" in line for line in kept)


def test_a_few_outliers_of_a_row_cost_no_more_than_rows_without() -> None:
    g = torch.Generator().manual_seed(2)
    weight, x = torch.randn(64, 1024, generator=g), torch.randn(32, 1024, generator=g)
    made = quantise(weight, METHODS["int8"].layers)

    def lost(x: torch.Tensor, act: str) -> float:
        exact = linear(x, dict(made.data), None)
        return float((linear(x, dict(made.data), None, act=act) - exact).square().mean())

    wild = x.clone()
    wild[:, [3, 500, 900]] *= 40
    assert lost(wild, "int8") > 50 * lost(x, "int8")
    assert lost(wild, "int8_keep4") < lost(x, "int8")


@pytest.mark.parametrize(("device", "isa"), [("reference", None), ("cpu", ""), ("cpu", "portable"), ("cpu", "none")], ids=str)
@pytest.mark.sampled(2)
def test_int4_rounds_inputs_where_the_device_gains_by_that(device: str, isa: str | None) -> None:
    """Portable code has one for w4a8 that is slower than its other, and runs it for who asks by name."""
    options = {} if isa is None else {"additional_config": {"isa": isa}}
    sizes = {"max_model_len": 64, "max_num_seqs": 2}
    llm = LLM("thalweg-nano", device=device, quantization="int4", **sizes, **options)
    integers = device == "cpu" and "compiled, avx" in llm.device.info.notes["kernels"]
    held = {line.partition("weight=")[2].partition(")")[0] for line in llm.kernel_plan if line.startswith("linear(")}
    forms = _forms("int4", llm.device)
    assert (forms.layers.act == "int8_per_group") == integers
    assert held == {str(forms.layers), str(forms.head)}
    if isa == "portable":
        named = LLM("thalweg-nano", device=device, quantization="w4a8", **sizes, **options)
        (line, *_) = (line for line in named.kernel_plan if str(METHODS["w4a8"].layers) in line)
        assert "-> native-portable" in line


def test_rounding_inputs_too_adds_little_to_what_rounding_weights_does() -> None:
    """Of a product's error, in squares, on inputs of the kind that a norm gives."""
    g = torch.Generator().manual_seed(1)
    weight, x = torch.randn(64, 1024, generator=g), torch.randn(256, 1024, generator=g)
    want = x @ weight.T

    def lost(method: str) -> float:
        form = METHODS[method].layers
        made = quantise(weight, form)
        return float((linear(x, dict(made.data), None, act=form.act, group=form.group) - want).square().mean())

    more = lost("w4a8") / lost("w4a16") - 1
    assert 0 < more < 0.02, more


@pytest.mark.parametrize(("hidden", "layers"), [(256, {"int4-g32-zeros"}), (NARROW, {"int4-g64-zeros"})])
def test_narrow_models_have_more_bits_in_int4(hidden: int, layers: set[str]) -> None:
    """The projections of values, and those back from the MLP, are held like the output matrix. Experts are not. Keys have
    room too."""
    config = {
        "architectures": ["MixtralForCausalLM"], "model_type": "mixtral", "hidden_size": hidden, "intermediate_size": 512,
        "num_attention_heads": 4, "num_key_value_heads": 2, "num_hidden_layers": 1, "vocab_size": 300,
        "num_local_experts": 2, "num_experts_per_tok": 1, "max_position_embeddings": 128,
    }  # fmt: skip
    for architecture, model_type in (("MixtralForCausalLM", "mixtral"), ("LlamaForCausalLM", "llama")):
        config |= {"architectures": [architecture], "model_type": model_type}
        spec = families.family(config)(config)
        use = model_scheme(config, "int4", spec).choose(lambda form: not form.act)
        held: dict[str, set[str]] = {}
        for _, weight in walk(spec.weights()):
            if weight.role in ("linear", "experts", "head"):
                for source in weight.sources:
                    held.setdefault(str(use.of(weight.role, source.name)), set()).add(source.name.split(".")[-2])
        wide = held.pop("int8-row")
        assert set(held) == layers
        sensitive = {"v_proj", "k_proj"} | ({"down_proj"} if model_type == "llama" else set())
        assert wide == {"lm_head"} | (sensitive if hidden < NARROW else set())


NARROW_LLAMA = {
    "architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_size": 640, "intermediate_size": 2048,
    "num_attention_heads": 4, "num_key_value_heads": 1, "head_dim": 256, "num_hidden_layers": 6, "vocab_size": 100000,
    "max_position_embeddings": 128,
}  # fmt: skip


def _bits_of_tensors(config: dict[str, Any]) -> dict[str, int]:
    spec = families.family(config)(config)
    use = model_scheme(config, "int4", spec)
    linear = [weight for _, weight in walk(spec.weights()) if weight.role == "linear"]
    return {source.name: use.of("linear", source.name).bits for weight in linear for source in weight.sources}


def test_bytes_of_a_large_output_matrix_go_to_the_layers() -> None:
    """Q4_K_M has 8.5 bits there. Layers at both ends are the first of each kind, and kinds come in their order."""
    bits = _bits_of_tensors(NARROW_LLAMA)
    layers = {name: [n for n in range(6) if bits[f"model.layers.{n}.{name}.weight"] == 8] for name in (
        "self_attn.v_proj", "mlp.down_proj", "self_attn.k_proj", "mlp.up_proj", "mlp.gate_proj", "self_attn.q_proj",
        "self_attn.o_proj",
    )}  # fmt: skip
    whole = ("self_attn.v_proj", "mlp.down_proj", "self_attn.k_proj", "mlp.up_proj")
    assert all(layers[name] == list(range(6)) for name in whole)
    assert layers["mlp.gate_proj"] == [0, 1, 5]
    assert not any(layers[name] for name in ("self_attn.q_proj", "self_attn.o_proj"))
    with_less = _bits_of_tensors({**NARROW_LLAMA, "vocab_size": 300})
    assert [n for n in range(6) if with_less[f"model.layers.{n}.mlp.up_proj.weight"] == 8] == [0, 1, 5]


def test_less_memory_is_planned() -> None:
    def weights(method: str | None) -> int:
        return plan(EngineArgs(model=str(resolve_model("thalweg-nano")), device="cpu", quantization=method)).weights

    assert weights("int4") < weights("int8") < weights(None)


RIG = Path(__file__).with_name("loading_memory.py")
MIB = 1 << 20


@pytest.fixture(scope="module")
def checkpoints(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """The same model of two layers and of 40: 273 MB in bfloat16, more than what loading may hold beside rounded weights."""
    found = []
    for layers in (2, 40):
        size = {"hidden_size": 512, "intermediate_size": 1536, "num_attention_heads": 8, "num_key_value_heads": 8}
        config = LlamaConfig(**size, num_hidden_layers=layers, vocab_size=256, tie_word_embeddings=True)
        path = tmp_path_factory.mktemp("model") / str(layers)
        AutoModelForCausalLM.from_config(config, dtype=torch.bfloat16).save_pretrained(path)
        found.append(path)
    return found[0], found[1]


@pytest.mark.skipif(not Path("/proc/self/clear_refs").exists(), reason="reads what Linux counts of a process's memory")
@pytest.mark.parametrize("method", ["int8", pytest.param("nvfp4", marks=pytest.mark.nightly)])
@pytest.mark.slow
def test_loading_holds_the_rounded_weights_and_one_layer(method: str, checkpoints: tuple[Path, Path]) -> None:
    """Once loaded, the child holds the rounded weights. On the way it never held as much as the dense model would be, for all
    that rounding makes of a layer and the allocator gives back only now and then."""
    small, large = checkpoints
    said = subprocess.run(
        [sys.executable, str(RIG), str(small), str(large), method], capture_output=True, text=True, check=True
    ).stdout
    grew = json.loads(said)
    spec = families.family(config := read_config(large))(config)
    final = sizes.weight_bytes(spec, "bfloat16", 16, use=METHODS[method])
    assert final * 0.9 < grew["held"] < final + 16 * MIB, (final, grew)
    assert grew["held"] < grew["most"] < final + sizes.loading_bytes(spec, "bfloat16", use=METHODS[method]), (final, grew)
    assert grew["most"] < (large / "model.safetensors").stat().st_size, (final, grew)


HOSTED = "thalweg.backends.torch_gpu.testing:HostGpuPlatform"


@pytest.mark.parametrize(
    ("device", "options"),
    [
        ("cpu", {}),
        pytest.param(HOSTED, {}, marks=pytest.mark.slow),
        pytest.param("tpu", {"additional_config": {"jax_platform": "cpu"}}, marks=pytest.mark.slow),
    ],
    ids=["cpu", "hosted", "tpu"],
)
@pytest.mark.sampled(2, 3)
@pytest.mark.parametrize("method", [m for m in METHODS if m != "int4"])
@pytest.mark.slow
def test_every_platform_holds_the_same_rounded_weights(method: str, device: str, options: dict) -> None:
    """Weights are rounded where they are read, before any platform sees them: float32 tokens are the definition's. Those of
    int4 depend on the device."""

    def tokens(name: str, more: dict) -> list[list[int]]:
        sizes = {"max_model_len": 64, "max_num_seqs": 2, "max_num_batched_tokens": 64, "dtype": "float32"}
        llm = LLM("thalweg-nano", device=name, quantization=method, use_tqdm_on_load=False, **sizes, **more)
        try:
            asked = [[{"role": "user", "content": q}] for q in ("Sort: pear, apple, plum", "What is 3 plus 4?")]
            out = llm.chat(asked, SamplingParams(max_tokens=12, temperature=0), use_tqdm=False)
            return [list(o.outputs[0].token_ids) for o in out]
        finally:
            llm.shutdown()

    assert tokens(device, options) == tokens("reference", {})
