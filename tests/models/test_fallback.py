"""Classes of transformers on the paged step: the same tokens as transformers and as the family, and every class that would not
give them is refused in words. `python ci/fallback_zoo.py` does the first for all that transformers has."""

from __future__ import annotations

import json
import logging
import re
import sys
from pathlib import Path

import fallback_zoo
import numpy as np
import pytest
import torch
import transformers
from rig import Rig
from safetensors.torch import load_file, save_file
from zoo import edit_config, load_reference, make_checkpoint, make_encoder

from thalweg import LLM, EngineArgs, SamplingParams
from thalweg.checkpoint.config import read_config
from thalweg.engine.planning.memory import plan
from thalweg.errors import CheckpointError, ConfigError, UnsupportedModelError
from thalweg.models import names, registry, sizes
from thalweg.models.fallback import attention, classes, masks, probe
from thalweg.models.fallback.spec import UNRELIABLE, TransformersSpec
from thalweg.quantize.formats import FORMATS
from thalweg.quantize.plan import build_plan

NATIVE = ["gemma2", "gemma3", "gpt-oss", "mixtral", "opt", "granite", "phi4-mini"]
"""Caps, windows, sinks, experts of two layouts, learned positions, scaled logits, frequencies by length."""
FOREIGN = ["apertus", "deepseek_v3", "mimo_v2_flash", "gemma3n_text", "ctrl"]
"""Values narrower than keys, layers of two shapes, a stream in several parts, positions without rotation."""
QUICK = ("mixtral", "opt", "deepseek_v3")
CASES = [pytest.param(n, marks=() if n in QUICK else pytest.mark.slow) for n in (*NATIVE, *FOREIGN)]


def foreign(kind: str, folder: Path) -> Path:
    """A tiny checkpoint of a class without a family."""
    path = folder / kind
    with torch.random.fork_rng(devices=[]), torch.no_grad():
        model = getattr(transformers, fallback_zoo.named(kind))(fallback_zoo.settings(kind))
        fallback_zoo.spread(model)
    model.save_pretrained(path)
    return path


@pytest.mark.parametrize("name", CASES)
@pytest.mark.sampled(2)
def test_greedy_tokens_and_logprobs_are_those_of_transformers(name, tmp_path):
    path = make_checkpoint(name, tmp_path, tokenizer=False) if name in NATIVE else foreign(name, tmp_path)
    rig = Rig(path, platform="cpu", impl="transformers")
    verdict, what = fallback_zoo._compared(rig, load_reference(path, torch.float32))
    assert verdict == "same", what


@pytest.mark.parametrize("name", ["gemma3", "gpt-oss"])
def test_family_and_fallback_agree_and_plan_the_same_cache(name, tmp_path):
    path = make_checkpoint(name, tmp_path, tokenizer=False)
    rigs = [Rig(path, platform="cpu", impl=impl) for impl in ("thalweg", "transformers")]
    family, module = (rig.generate(fallback_zoo.PROMPTS, 4, 6, 17) for rig in rigs)
    assert [s.tokens for s in family] == [s.tokens for s in module]
    for a, b in zip(family, module, strict=True):
        np.testing.assert_allclose(a.logprobs, b.logprobs, atol=1e-4)
    assert rigs[0].model.groups == rigs[1].model.groups
    stored = sum(t.numel() for t in load_file(path / "model.safetensors").values())
    assert sizes.stored_values(rigs[1].model.spec) == stored == sizes.stored_values(rigs[0].model.spec)


@pytest.mark.parametrize(("name", "method"), [("mixtral", "int8"), ("llama-tied", "w4a16")])
def test_linear_layers_and_experts_are_rounded_as_those_of_the_family(name, method, tmp_path):
    """The module calls thalweg's ops for them, so the same matrices are rounded in the same way."""
    path = make_checkpoint(name, tmp_path, tokenizer=False)
    params = SamplingParams(temperature=0, max_tokens=6, ignore_eos=True, logprobs=0, detokenize=False)
    work, told, planned = [{"prompt_token_ids": p} for p in fallback_zoo.PROMPTS], [], []
    for impl in ("thalweg", "transformers"):
        args = {"device": "cpu", "dtype": "float32", "model_impl": impl, "quantization": method, "max_model_len": 64}
        planned.append(plan(EngineArgs(model=str(path), **args)).weights)
        llm = LLM(str(path), skip_tokenizer_init=True, use_tqdm_on_load=False, kv_cache_memory_bytes=1 << 22, **args)
        told.append([o.outputs[0] for o in llm.generate(work, params, use_tqdm=False)])
        llm.shutdown()
    for a, b in zip(*told, strict=True):
        assert a.token_ids == b.token_ids
        np.testing.assert_allclose(
            *([s[t].logprob for s, t in zip(o.logprobs, o.token_ids, strict=True)] for o in (a, b)), atol=1e-3
        )
    rotary = 256 * 12 * 4  # the family keeps a table
    assert abs(planned[0] - planned[1]) <= rotary


def test_bfloat16_keeps_float32_what_the_class_keeps(tmp_path):
    path = make_checkpoint("glm4-moe", tmp_path, dtype=torch.bfloat16, tokenizer=False)
    rig = Rig(path, platform="cpu", dtype="bfloat16", impl="transformers")
    kinds = {n: t.dtype for n, t in rig.params["module"].items()}
    assert {n for n, t in kinds.items() if t == torch.float32} == {n for n in kinds if n.endswith("e_score_correction_bias")}
    assert all(t.dtype == torch.float32 for n, t in rig.params["computed"].items() if n.endswith("inv_freq"))
    oracle = load_reference(path, torch.bfloat16)
    (s,) = rig.generate(fallback_zoo.PROMPTS[:1], 1, 99, 99)
    with torch.inference_mode():
        logp = oracle(torch.tensor([s.tokens])).logits[0].float().log_softmax(-1)
    want = logp[torch.arange(s.prompt - 1), torch.tensor(s.tokens[1 : s.prompt])].numpy()
    assert np.abs(np.array(s.scores) - want).mean() < 0.1


def test_an_engine_without_a_family_takes_the_module_and_says_so(tmp_path, caplog):
    """Chunked prefill, prefix hits and preemption, under `auto`."""
    path = foreign("helium", tmp_path)
    reference = load_reference(path, torch.float32)
    with caplog.at_level(logging.INFO):
        llm = LLM(
            str(path), device="cpu", dtype="float32", skip_tokenizer_init=True, block_size=4, max_model_len=64, max_num_seqs=5,
            max_num_batched_tokens=16, num_gpu_blocks_override=17, use_tqdm_on_load=False,
        )  # fmt: skip
    assert UNRELIABLE in caplog.text
    assert "batch invariance: no" in caplog.text
    rng = np.random.default_rng(5)
    work = [rng.integers(3, 256, n).tolist() for n in (1, 23, 40, 12, 30)]
    params = SamplingParams(temperature=0, max_tokens=10, ignore_eos=True, detokenize=False)
    for _ in range(2):
        outs = llm.generate([{"prompt_token_ids": p} for p in work], params, use_tqdm=False)
        for prompt, out in zip(work, outs, strict=True):
            told = list(out.outputs[0].token_ids)
            with torch.inference_mode():
                rows = reference(torch.tensor([[*prompt, *told[:-1]]]), use_cache=False).logits[0, len(prompt) - 1 :]
            assert told == rows.argmax(-1).tolist()
    assert llm.stats().preemptions > 0
    assert llm.stats().prefix_hits > 0
    llm.shutdown()


def test_vectors_are_those_of_the_family(tmp_path):
    path = make_checkpoint("qwen3", tmp_path)
    told = []
    for impl in ("thalweg", "transformers"):
        llm = LLM(str(path), runner="pooling", device="cpu", dtype="float32", model_impl=impl, max_model_len=64)
        told.append([o.outputs.embedding for o in llm.embed(["a", "of the last token", "b" * 30], use_tqdm=False)])
        llm.shutdown()
    np.testing.assert_allclose(told[0], told[1], atol=1e-5)


def test_a_plan_says_who_computes_and_what_does_not_hold(tmp_path):
    path = make_checkpoint("gpt-oss", tmp_path, tokenizer=False)
    made = {impl: plan(EngineArgs(model=str(path), device="cpu", model_impl=impl)) for impl in ("auto", "transformers")}
    assert {impl: p.implementation for impl, p in made.items()} == {"auto": "thalweg", "transformers": "transformers"}
    assert UNRELIABLE in made["transformers"].advice
    assert made["auto"].groups == made["transformers"].groups


# ---------------------------------------------------------------- what is refused


@pytest.mark.parametrize(
    ("args", "words"),
    [
        ({"tensor_parallel_size": 2, "batch_invariant": True}, "batch_invariant: .*own module.*\ntensor_parallel_size: .*own"),
        ({"strict_kernels": True}, "strict_kernels: .*own module"),
        ({"model_impl": "terratorch"}, "model_impl: terratorch: "),
    ],
)
def test_settings_that_a_module_cannot_honour_are_refused(args, words, tmp_path):
    path = make_checkpoint("llama", tmp_path, tokenizer=False)
    with pytest.raises(ConfigError, match=words):
        plan(EngineArgs(model=str(path), device="cpu", **{"model_impl": "transformers", **args}))


@pytest.mark.parametrize(
    ("config", "words"),
    [
        ({"architectures": ["BloomForCausalLM"]}, "attention cannot be exchanged"),
        ({"architectures": ["BartForCausalLM"], "decoder_layers": 1, "d_model": 64}, "counts the tokens of a step"),
        ({"architectures": ["BertLMHeadModel"]}, "see those after them"),
        ({"architectures": ["MambaForCausalLM"]}, r"a convolution over tokens \(layers\.0\.mixer\.conv1d\)"),
        ({"architectures": ["DogeForCausalLM"]}, "masks by itself"),
        ({"architectures": ["DiffLlamaForCausalLM"]}, "attends more than once"),
        ({"architectures": ["Qwen3NextForCausalLM"], "layer_types": ["linear_attention"]}, "layers of type linear_attention"),
        ({"architectures": ["LlavaForConditionalGeneration"]}, "several modalities|not supported"),
        (
            {"architectures": ["NobodysForCausalLM"]},
            "'NobodysForCausalLM' is not supported: transformers .* has no class of this name",
        ),
        ({"architectures": ["BertModel"]}, "serves classes that generate text; others need a family"),
        ({"architectures": ["LlamaForCausalLM"], "quantization_config": {"quant_method": "fp8"}}, "serves dense weights"),
    ],
)
def test_classes_that_would_give_something_else_are_refused_with_why(config, words):
    small = {"num_hidden_layers": 1, "hidden_size": 64, "vocab_size": 64, "num_attention_heads": 4, "intermediate_size": 64}
    config = {**small, **config, "model_impl": "transformers"}
    with pytest.raises(UnsupportedModelError, match=words):
        registry.family(config)(config)


def test_an_argument_of_attention_that_is_not_known_is_refused_by_its_name():
    q = torch.zeros(1, 2, 3, 8)
    seen = probe.AttentionProbe({}, None)
    call = {"scaling": 1.0, attention.HANDED: seen}
    for said, words in (
        ({"position_bias": q}, "'position_bias', which this version does not support"),
        ({"dropout": 0.1}, "drops weights"),
        ({"softcap": q}, "softcap is a Tensor"),
    ):
        with pytest.raises(UnsupportedModelError, match=words):
            attention.attend(torch.nn.Module(), q, q, q, None, **{**call, **said})
    with pytest.raises(UnsupportedModelError, match="do not pass the arguments"):
        attention.attend(torch.nn.Module(), q, q, q, None)
    assert not seen.calls
    attention.attend(torch.nn.Module(), q, q, q, None, position_bias=None, use_cache=False, **call)
    assert [c.scale for c in seen.calls] == [1.0]


def test_masks_are_read_as_what_they_let_a_token_see():
    def chunked(b, h, q, k):
        return (k <= q) & (k // 8 == q // 8)

    def window(b, h, q, k):
        return (k <= q) & (k > q - 9)

    assert masks.read(lambda b, h, q, k: k <= q, None) == masks.FULL
    assert masks.read(lambda b, h, q, k: k >= 0, None) == masks.BOTH
    assert masks.read(window, 9) == 9
    for function, size in ((chunked, 8), (window, 8), (window, None), (lambda b, h, q, k: k < q, None)):
        with pytest.raises(UnsupportedModelError, match="neither causal nor a window"):
            masks.read(function, size)


def test_a_module_that_mixes_requests_is_found_when_it_is_loaded(tmp_path):
    rig = Rig(make_checkpoint("llama", tmp_path, tokenizer=False), platform="cpu", impl="transformers")
    rig.model.check(rig.params)
    norm = rig.model.module.model.layers[0].input_layernorm
    for mixed in (lambda m, i, o: o + o.mean(1, keepdim=True), lambda m, i, o: o + o.roll(1, 1), lambda m, i, o: o * np.nan):
        handle = norm.register_forward_hook(mixed)
        with pytest.raises(UnsupportedModelError, match="change with other requests"):
            rig.model.check(rig.params)
        handle.remove()


@pytest.mark.parametrize(
    ("edit", "words"),
    [
        (lambda t: t.pop("model.norm.weight"), r"lacks model\.norm\.weight"),
        (lambda t: t.update({"model.extra.weight": torch.ones(1)}), r"has model\.extra\.weight, which"),
        (lambda t: t.update({"model.norm.weight": torch.ones(7)}), r"model\.norm\.weight has shape \[7\], config\.json makes"),
        (lambda t: t.update({"model.norm.weight": torch.ones(48, dtype=torch.int8)}), "has dtype int8; this version reads"),
        (lambda t: t.pop("model.layers.0.block_sparse_moe.experts.3.w1.weight"), r"experts\..*(cannot be joined|has shape)"),
    ],
)
def test_weights_that_do_not_fit_are_refused_before_any_is_read(edit, words, tmp_path):
    path = make_checkpoint("mixtral", tmp_path, tokenizer=False)
    tensors = load_file(path / "model.safetensors")
    edit(tensors)
    save_file(tensors, path / "model.safetensors", {"format": "pt"})
    with pytest.raises(CheckpointError, match=words):
        Rig(path, platform="cpu", impl="transformers")


def test_a_configuration_that_the_class_does_not_take_is_refused(tmp_path):
    path = make_checkpoint("llama", tmp_path, tokenizer=False)
    edit_config(path, hidden_act="nobody's")
    with pytest.raises(CheckpointError, match=r"LlamaForCausalLM of transformers does not take it: .*nobody's"):
        Rig(path, impl="transformers")


def test_without_transformers_the_install_line_is_told(monkeypatch):
    monkeypatch.setitem(sys.modules, "transformers", None)
    for config in (
        {"architectures": ["HeliumForCausalLM"]},
        {"architectures": ["LlamaForCausalLM"], "model_impl": "transformers"},
    ):
        with pytest.raises(UnsupportedModelError, match=r"not installed: pip install 'thalweg\[hf\]'"):
            registry.family(config)
    registry.family({"architectures": ["LlamaForCausalLM"]})


def test_own_families_alone_are_taken_where_that_is_asked_for():
    for impl in ("thalweg", "vllm"):
        with pytest.raises(UnsupportedModelError, match="'HeliumForCausalLM' is not supported: it has no family"):
            registry.family({"architectures": ["HeliumForCausalLM"], "model_impl": impl})


def test_a_checkpoint_without_a_family_is_not_quantised(tmp_path):
    with pytest.raises(UnsupportedModelError, match="'HeliumForCausalLM' is not supported"):
        build_plan(foreign("helium", tmp_path), FORMATS["W8A8"], (), False)


def test_a_file_does_not_say_which_code_runs():
    config = fallback_zoo.settings("llama").to_dict() | {
        "architectures": ["LlamaForCausalLM"],
        "auto_map": {"AutoConfig": "x.Y"},
    }
    config |= {
        "attn_implementation": "flash_attention_2",
        "_attn_implementation": "nobodys/kernel",
        "_experts_implementation": "x",
    }
    made = classes.make(config, "float32")
    assert made.model.config._attn_implementation == attention.PROBED
    assert not hasattr(made.model.config, "auto_map")


def test_names_of_vllm_mean_the_class_of_the_model_type(tmp_path):
    path = make_checkpoint("llama", tmp_path, tokenizer=False)
    (own,) = Rig(path, platform="cpu", impl="transformers").generate(fallback_zoo.PROMPTS[:1], 3, 99, 99)
    for name, vectors in registry.WRAPPERS.items():
        edit_config(path, architectures=[name])
        config = read_config(path)
        spec = registry.family(config)(config)
        assert isinstance(spec, TransformersSpec)
        assert spec.config["architectures"] == ["LlamaForCausalLM"]
        assert (spec.pooling is not None) == vectors
        if name == "TransformersForCausalLM":
            (same,) = Rig(path, platform="cpu").generate(fallback_zoo.PROMPTS[:1], 3, 99, 99)
            assert (same.tokens, same.logprobs) == (own.tokens, own.logprobs)
    edit_config(path, architectures=["TransformersForCausalLM"], model_type="nobodys")
    config = read_config(path)
    with pytest.raises(CheckpointError, match="model_type: 'nobodys' means no class of transformers"):
        registry.family(config)(config)
    for impl in ("auto", "transformers"):
        said = {"architectures": ["TransformersMultiModalForCausalLM"], "model_impl": impl}
        with pytest.raises(UnsupportedModelError, match="no classes and no images"):
            registry.family(said)


def test_an_encoder_without_a_family_is_not_sent_to_a_module_that_generates(tmp_path):
    path = make_encoder("bert", tmp_path)
    edit_config(path, architectures=["NobodysModel"])
    with pytest.raises(UnsupportedModelError, match="'NobodysModel' is not supported"):
        registry.family(read_config(path))


# ---------------------------------------------------------------- names


def test_every_known_name_has_one_reason_or_a_family():
    rows = json.loads((Path(names.__file__).parents[1] / "assets" / "models.json").read_text())
    listed = [name for _, _, field, more in rows for name in (*field, *more)]
    assert len(listed) == len(set(listed)) == len(names.table())
    told: set[str] = set()
    for name, known in names.table().items():
        if known.missing is None:
            assert registry.has(name), f"{name} has neither a family nor a reason"
        elif known.missing.fallback:
            assert classes.class_name(name) in classes.causal_lm_classes() or name in registry.WRAPPERS
        if (
            known.missing is not None
            and not known.missing.fallback
            and not registry.has(name)
            and known.missing.why not in told
        ):
            told.add(known.missing.why)
            with pytest.raises(UnsupportedModelError) as e:
                registry.family({"architectures": [name]})
            assert known.missing.why in str(e.value)


NEW = (
    "Apertus1p5ForConditionalGeneration", "AXK2ForCausalLM", "BailingHybridForCausalLM",
    "CohereCompassForConditionalGeneration", "Cosmos3OmniForConditionalGeneration", "DeepseekV4ForCausalLM",
    "DiffusionGemmaForBlockDiffusion", "DoryForCausalLM",
    "Dots3NoteForCausalLM", "Gemma4AssistantForCausalLM", "Glm5NextForConditionalGeneration", "HYV4ForCausalLM",
    "HYV4VLForConditionalGeneration", "Inkling2ForCausalLM", "InklingForConditionalGeneration", "LaraMiniForCausalLM",
    "Lfm3ForCausalLM", "Lfm3VlForConditionalGeneration", "MiniCPMOcrForConditionalGeneration",
    "MiniCPMV4_7ForConditionalGeneration", "MiniMaxM3SparseForConditionalGeneration", "MistralLarge4ForConditionalGeneration",
    "MuseGlimmerForConditionalGeneration", "MuseSparkForConditionalGeneration", "NemotronH_Omni_Reasoning_V3",
    "Qwen4ExpForCausalLM", "Qwen4ExpForConditionalGeneration", "Step3p7ForConditionalGeneration", "ZayaForCausalLM",
)  # fmt: skip
"""Of 2026."""
OLDER = (
    "BartForConditionalGeneration", "BertForMaskedLM", "Florence2ForConditionalGeneration", "GPTNeoForCausalLM",
    "MarianMTModel", "MllamaForConditionalGeneration", "ParakeetForCTC", "Phi4MultimodalForCausalLM", "RwkvForCausalLM",
    "T5ForConditionalGeneration", "Wav2Vec2ForCTC",
)  # fmt: skip


@pytest.mark.parametrize("name", [*NEW, *OLDER])
def test_names_of_the_field_are_served_or_refused_with_what_is_missing(name):
    if not registry.has(name):
        with pytest.raises(UnsupportedModelError, match=re.escape(names.missing(name).why)):
            registry.family({"architectures": [name]})


def test_a_spec_of_a_module_counts_what_its_rows_hold():
    config = {**fallback_zoo.settings("deepseek_v3").to_dict(), "architectures": ["DeepseekV3ForCausalLM"]}
    spec = registry.family({**config, "model_impl": "transformers"})({**config, "model_impl": "transformers"})
    assert isinstance(spec, TransformersSpec)
    (kept,) = set(sizes.cache_specs(spec, "float32", "", 64))
    assert (kept.head_dim, set(spec.values)) == (24, {12})
