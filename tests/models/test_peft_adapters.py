"""Variants of adapters as peft writes them: served as peft itself computes them."""

from __future__ import annotations

import json
import re
import warnings
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest
import torch
from peft import LoraConfig, PeftModel, get_peft_model
from safetensors.torch import load_file, save_file
from transformers import AutoModelForSequenceClassification
from zoo import load_reference, make_checkpoint, make_classifier, make_tokenizer

from thalweg import LLM, LoRARequest, SamplingParams
from thalweg.checkpoint.gguf.architectures.common import LAYER
from thalweg.engine.planning.memory import plan
from thalweg.errors import CheckpointError, UnsupportedModelError
from thalweg.hal.ops.quantise import dequantise
from thalweg.hal.weights import DENSE, QTensor
from thalweg.options.engine import EngineArgs
from thalweg.quantization.online import METHODS, round_weight

NEW = 6
GREEDY = SamplingParams(max_tokens=NEW, logprobs=0, ignore_eos=True, temperature=0)
PROMPTS = [list(b"the same prompt for all of them"), list(b"another")]
EXPERTS = ["experts.gate_up_proj", "experts.down_proj"]
ATTENTION, EVERY = ["q_proj", "v_proj"], "all-linear"
CASES: dict[str, tuple[str, dict[str, Any]]] = {
    "dora": ("qwen3", {"target_modules": EVERY, "use_dora": True}),
    "dora over biases": ("qwen2", {"target_modules": ATTENTION, "use_dora": True, "use_rslora": True}),
    "dora with biases": ("qwen2", {"target_modules": ["q_proj", "down_proj"], "use_dora": True, "bias": "all"}),
    "lora_bias": ("llama", {"target_modules": ["q_proj", "o_proj", "down_proj"], "lora_bias": True}),
    "bias": ("qwen2", {"target_modules": ["q_proj"], "bias": "lora_only"}),
    "embedding": ("llama", {"target_modules": ["embed_tokens", "up_proj"]}),
    "output matrix": ("llama", {"target_modules": ["lm_head", "q_proj"], "use_dora": True}),
    "both, apart in a tied model": ("qwen3", {"target_modules": ["embed_tokens", "lm_head"]}),
    "a scaled embedding and capped logits": ("gemma2", {"target_modules": ["embed_tokens", "lm_head"]}),
    "experts": (
        "qwen3-moe",
        {"target_modules": ["q_proj"], "target_parameters": ["experts.gate_up_proj", "experts.down_proj"]},
    ),
    "one tensor of the experts": ("qwen3-moe", {"target_parameters": ["experts.down_proj"]}),
}
"""Name -> (model, arguments of LoraConfig)."""
SIZES: dict[str, Any] = {
    "device": "cpu", "dtype": "float32", "max_model_len": 64, "block_size": 4, "max_num_seqs": 8, "threads": 1,
    "kv_cache_memory_bytes": 1 << 20, "use_tqdm_on_load": False, "enable_lora": True, "max_loras": 2,
}  # fmt: skip
MORE: dict[str, dict[str, Any]] = {
    "qwen3-moe": {"lora_target_modules": ["q_proj", "v_proj", "experts"]},
}
"""Arguments of the engine by model."""


@pytest.fixture(scope="module")
def bases(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    return cache(lambda name: make_checkpoint(name, tmp_path_factory.mktemp("bases")))


@pytest.fixture(scope="module")
def engines(bases: Callable[[str], Path]) -> Iterator[Callable[[str], LLM]]:
    made: dict[str, LLM] = {}

    def get(name: str) -> LLM:
        if name not in made:
            made[name] = LLM(bases(name), **{**SIZES, **MORE.get(name, {})})
        return made[name]

    yield get
    for llm in made.values():
        llm.shutdown()


def write(base: Path, folder: Path, **config: Any) -> PeftModel:
    """An adapter of random values, as peft saves it, and the model with it."""
    return write_peft(load_reference(base, torch.float32), LoraConfig(r=4, lora_alpha=6, **config), folder)


def write_peft(base: torch.nn.Module, config: LoraConfig, folder: Path) -> PeftModel:
    torch.manual_seed(3)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        model = get_peft_model(base, config)
        with torch.no_grad():
            for name, value in model.named_parameters():
                if value.requires_grad:
                    scale = 0.3 if "magnitude" in name else 0.2 / value.shape[-1] ** 0.5
                    value += scale * torch.randn_like(value)
        model.save_pretrained(folder)
    return model.eval()


def generate(llm: LLM, prompts: list[list[int]], loras: list[LoRARequest | None]) -> list[Any]:
    return llm.generate([{"prompt_token_ids": p} for p in prompts], GREEDY, use_tqdm=False, lora_request=loras)


@torch.inference_mode()
def check(output: Any, model: torch.nn.Module) -> list[int]:
    """Each token is the argmax of this model, with its log-probability. Returns the tokens."""
    (choice,) = output.outputs
    tokens = list(choice.token_ids)
    logits = model(torch.tensor([[*output.prompt_token_ids, *tokens]])).logits[0, -NEW - 1 : -1].float()
    assert tokens == logits.argmax(-1).tolist()
    told = [p[t].logprob for t, p in zip(tokens, choice.logprobs, strict=True)]
    np.testing.assert_allclose(told, logits.log_softmax(-1)[range(NEW), tokens].numpy(), atol=1e-4)
    return tokens


@pytest.mark.parametrize(("name", "modules"), [("qwen3", ["q_proj"]), ("roberta", ["query"])])
@torch.inference_mode()
def test_a_classifier_that_an_adapter_replaces_classifies_its_sequences(name: str, modules: list[str], tmp_path: Path) -> None:
    """And no others: peft saves the head of a classifier whole."""
    path = make_classifier(name, tmp_path, 3)
    make_tokenizer(path)
    base = AutoModelForSequenceClassification.from_pretrained(path, dtype=torch.float32).eval()
    with torch.inference_mode(False):
        model = write_peft(base, LoraConfig(task_type="SEQ_CLS", r=4, target_modules=modules), tmp_path / "adapter")
    llm = LLM(
        path, runner="pooling", device="cpu", dtype="float32", max_model_len=64, max_num_seqs=8, threads=1, enable_lora=True,
        max_loras=2, use_tqdm_on_load=False,
    )  # fmt: skip
    adapter, prompts = LoRARequest("a", 1, str(tmp_path / "adapter")), [{"prompt_token_ids": p} for p in PROMPTS]
    outputs = [llm.classify(prompts, use_tqdm=False, lora_request=loras) for loras in ([adapter, None], [None, adapter])]
    for i, prompt in enumerate(PROMPTS):
        adapted = model(torch.tensor([prompt])).logits.softmax(-1)[0]
        with model.disable_adapter():
            plain = model(torch.tensor([prompt])).logits.softmax(-1)[0]
        np.testing.assert_allclose(outputs[i][i].outputs.probs, adapted, atol=1e-5)
        np.testing.assert_allclose(outputs[1 - i][i].outputs.probs, plain, atol=1e-5)
        assert (adapted - plain).abs().max() > 1e-2
    llm.shutdown()


@pytest.mark.parametrize("case", CASES)
@pytest.mark.sampled(1)
def test_a_variant_is_served_as_peft_computes_it(
    case: str, bases: Callable[[str], Path], engines: Callable[[str], LLM], tmp_path: Path
) -> None:
    """In one batch with the base model and with a plain adapter, which keep the bits they have without it."""
    name, config = CASES[case]
    base, llm = bases(name), engines(name)
    variant, plain = write(base, tmp_path / "variant", **config), write(base, tmp_path / "plain", target_modules=ATTENTION)
    number = 2 * list(CASES).index(case) + 1
    special, usual = (LoRARequest(f"{case} {p}", number + i, str(tmp_path / p)) for i, p in enumerate(("variant", "plain")))
    alone = generate(llm, PROMPTS, [None, usual])
    mixed = generate(llm, [PROMPTS[0], *PROMPTS, PROMPTS[1]], [special, None, usual, special])
    for output, model in ((mixed[0], variant), (mixed[3], variant), (mixed[2], plain)):
        check(output, model)
    said, without = ([(o.outputs[0].token_ids, o.outputs[0].logprobs) for o in outputs] for outputs in (mixed, alone))
    assert said[1:3] == without
    assert said[0] != without[0]


@pytest.mark.parametrize("method", ["w8a16", "w4a16", "mxfp4"])
@pytest.mark.sampled(2)
def test_dora_over_weights_rounded_at_load_is_that_of_peft_over_these_weights(
    method: str, bases: Callable[[str], Path], tmp_path: Path
) -> None:
    """Its norms are those of the rounded weights."""
    base = bases("llama")
    reference, formats = load_reference(base, torch.float32), METHODS[method]
    for name, module in reference.named_modules():
        if isinstance(module, torch.nn.Linear):
            dense, form = module.weight.data, formats.of("head" if name == "lm_head" else "linear", name)
            made = round_weight(QTensor(DENSE, (dense.shape[0], dense.shape[1]), {"weight": dense}), form)
            module.weight = torch.nn.Parameter(dequantise(made.data, form.group, torch.float32))
    config = LoraConfig(r=4, lora_alpha=6, target_modules=EVERY, use_dora=True)
    model = write_peft(reference, config, tmp_path / "dora")
    llm = LLM(base, **SIZES, quantization=method)
    outputs = generate(llm, PROMPTS, [LoRARequest("dora", 1, str(tmp_path / "dora"))] * 2)
    llm.shutdown()
    for output in outputs:
        check(output, model)


@pytest.mark.slow
def test_experts_in_a_tensor_for_each_are_those_in_one(
    bases: Callable[[str], Path], engines: Callable[[str], LLM], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As vLLM and older versions of peft name them. The slots are in the plan, and a kernel without adapters is named."""
    base, llm = bases("qwen3-moe"), engines("qwen3-moe")
    write(base, tmp_path / "stacked", target_parameters=EXPERTS)
    tensors, each = load_file(tmp_path / "stacked" / "adapter_model.safetensors"), {}
    for name, b in tensors.items():
        if "lora_B" not in name:
            continue
        holder, a = name.partition(".lora_B")[0], tensors[name.replace("lora_B", "lora_A")]
        parts = ("gate_proj", "up_proj") if holder.endswith(".base_layer") else ("down_proj",)
        for e, (mine, theirs) in enumerate(zip(a.view(-1, 4, a.shape[1]), b.view(len(b), 4, -1).unbind(2), strict=True)):
            for part, rows in zip(parts, theirs.chunk(len(parts)), strict=True):
                prefix = f"{holder.removesuffix('.base_layer')}.{e}.{part}.lora_"
                each |= {f"{prefix}A.weight": mine.clone(), f"{prefix}B.weight": rows.clone().contiguous()}
    config = json.loads((tmp_path / "stacked" / "adapter_config.json").read_text()) | {"target_parameters": None}
    (tmp_path / "each").mkdir()
    (tmp_path / "each" / "adapter_config.json").write_text(json.dumps(config))
    save_file(each, tmp_path / "each" / "adapter_model.safetensors")
    stacked, apart = (LoRARequest(name, 90 + i, str(tmp_path / name)) for i, name in enumerate(("stacked", "each")))
    outputs = generate(llm, [PROMPTS[0]] * 3, [stacked, apart, None])
    first, second, plain = ((o.outputs[0].token_ids, o.outputs[0].logprobs) for o in outputs)
    assert first == second != plain
    fields = {**SIZES, **MORE["qwen3-moe"]}
    state = llm.llm_engine.executor.worker.operations["write_adapter"].__self__._state.value["adapters"]  # type: ignore[attr-defined]
    held = sum(array.nbytes for target in state.values() for array in target.values())
    assert plan(EngineArgs(model=str(base), **fields)).adapters == held
    with monkeypatch.context() as patch:
        patch.setattr("thalweg.models.adapter_experts._offer", lambda binder, op: None)
        with pytest.raises(
            UnsupportedModelError, match=r"mlp\.experts: adapters of experts are not served with the kernel nat"
        ):
            LLM(base, **fields)
    general = LLM(base, **SIZES)
    with pytest.raises(CheckpointError, match=r"experts\.\d\.\w+_proj.* --lora-target-modules .*experts"):
        generate(general, PROMPTS[:1], [apart])
    general.shutdown()


@pytest.mark.parametrize("name", ["llama", "qwen3"])
def test_a_file_of_llama_cpp_is_served_as_peft_computes_it(
    name: str, bases: Callable[[str], Path], engines: Callable[[str], LLM], tmp_path: Path
) -> None:
    """Its converter interleaves the rows of Llama's q and k."""
    base, llm = bases(name), engines(name)
    model = write(base, tmp_path / "peft", target_modules=["q_proj", "k_proj", "o_proj", "down_proj"])
    head_dim = json.loads((base / "config.json").read_text())["head_dim"]
    writer = gguf.GGUFWriter(tmp_path / "a.gguf", name)
    for key, value in (("general.type", "adapter"), ("adapter.type", "lora")):
        writer.add_string(key, value)
    writer.add_float32("adapter.lora.alpha", 6.0)
    names = {v: k for k, v in LAYER.items()}
    for stored, value in load_file(tmp_path / "peft" / "adapter_model.safetensors").items():
        layer, module, part = re.fullmatch(r".*layers\.(\d+)\.(.*)\.lora_([AB])\.weight", stored).groups()  # type: ignore[union-attr]
        if name == "llama" and part == "B" and module.endswith(("q_proj", "k_proj")):
            value = value.view(-1, 2, head_dim // 2, value.shape[1]).transpose(1, 2).reshape(value.shape)
        writer.add_tensor(f"blk.{layer}.{names[module]}.weight.lora_{part.lower()}", value.numpy())
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    adapter = LoRARequest(f"{name} gguf", 120 + len(name), str(tmp_path / "a.gguf"))
    for output in generate(llm, PROMPTS, [adapter, adapter]):
        check(output, model)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("device", "options"),
    [
        ("thalweg.backends.torch_gpu.testing:HostGpuPlatform", None),
        pytest.param("tpu", {"jax_platform": "cpu", "precompile": "none"}, marks=pytest.mark.nightly),
    ],
    ids=["gpu", "tpu"],
)
def test_other_devices_serve_the_variants_too(
    device: str, options: dict[str, Any] | None, bases: Callable[[str], Path], tmp_path: Path
) -> None:
    """Alone and in one batch, so that steps of both levels run."""
    base = bases("qwen2")
    dora = write(base, tmp_path / "dora", target_modules=["q_proj", "down_proj", "lm_head"], use_dora=True, bias="all")
    table = write(base, tmp_path / "table", target_modules=["embed_tokens", "v_proj"])
    llm = LLM(base, **{**SIZES, "device": device, "threads": None, "additional_config": options})
    first, second = LoRARequest("dora", 1, str(tmp_path / "dora")), LoRARequest("table", 2, str(tmp_path / "table"))
    alone = generate(llm, PROMPTS, [first, None])
    together = generate(llm, PROMPTS, [second, first])
    llm.shutdown()
    for output, model in ((alone[0], dora), (together[0], table), (together[1], dora)):
        check(output, model)
