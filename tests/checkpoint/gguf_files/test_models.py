"""GGUF files, written by the `gguf` package from models of transformers, against those models: equal weights, equal text."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest
import torch
from converted import SCALES, convert
from zoo import load_reference, make_causal, make_checkpoint

from thalweg import LLM, SamplingParams
from thalweg.checkpoint.config import eos_ids, generation_defaults, read_config
from thalweg.checkpoint.gguf.model import GGUFCheckpoint
from thalweg.checkpoint.weights import open_weights
from thalweg.config import EngineArgs
from thalweg.engine.planning.memory import plan
from thalweg.errors import CheckpointError, ConfigError, UnsupportedModelError
from thalweg.hal.comm import Mesh
from thalweg.hal.discovery import load
from thalweg.hal.op import Binder
from thalweg.hal.ops.quantise import dequantise
from thalweg.hal.platform import Place
from thalweg.hal.weights import DENSE
from thalweg.models.build import build
from thalweg.models.files import Files
from thalweg.models.load import load_params
from thalweg.models.weights import walk
from thalweg.quantization import registry

DEVICE = load("reference").open(Place())
FAMILIES = (
    "llama", "llama-biased", "llama-tied", "llama-linear", "llama-yarn", "mistral", "mistral-full", "qwen2", "qwen3",
    "qwen3-moe", "gemma3", "glm4", "mixtral", "mixtral-windowed",
    "deepseek-v2", "deepseek-v2-lite", "glm4-moe-lite", "youtu",
)  # fmt: skip
WIDE: dict[str, dict[str, Any]] = {
    "llama": {"num_attention_heads": 4, "num_key_value_heads": 2},
    "qwen3": {"head_dim": 64, "tie_word_embeddings": True},
    "qwen3-moe": {
        "head_dim": 64, "num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 256, "norm_topk_prob": True,
    },
    "mixtral": {"head_dim": 64, "num_local_experts": 4},
    "gemma3": {"head_dim": 64, "tie_word_embeddings": True, "sliding_window": 10, "query_pre_attn_scalar": 64},
}  # fmt: skip
"""Models whose rows hold whole blocks of 256 values."""


def wide(family: str, directory: Path) -> Path:
    return make_causal(family, directory, hidden_size=256, intermediate_size=512, **WIDE[family])


def built(path: Path):
    read = read_config(path, None, registry.check)
    said = {"binder": Binder(()), "attention": DEVICE.attention, "mesh": Mesh(), "dtype": "float32", "max_len": 64}
    return build(read, **said, block_tokens=4)


def parameters(path: Path) -> dict[str, torch.Tensor]:
    """Every parameter as dense values, by where it stands in the model."""
    made, out = built(path), {}
    files = Files(made, open_weights(path), DEVICE)
    for keys, spec in walk(made.specs):
        if not spec.sources:
            continue
        w = files.read(spec, 0)
        where = ".".join(str(k) for k in keys).replace("weight.0", "weight")
        out[where] = w if spec.format == DENSE else dequantise(w.data, spec.format.group, torch.float32)
    return out


def told(path: Path, device: str = "reference", dtype: str = "float32", **more: Any) -> list[list[int]]:
    llm = LLM(str(path), device=device, dtype=dtype, max_model_len=64, block_size=4, **more)
    rng = np.random.default_rng(2)
    prompts = [{"prompt_token_ids": rng.integers(3, 250, n).tolist()} for n in (5, 17)]
    params = SamplingParams(temperature=0, max_tokens=10, ignore_eos=True, detokenize=False)
    return [list(o.outputs[0].token_ids) for o in llm.generate(prompts, params, use_tqdm=False)]


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.sampled(1)
def test_dense_files_are_the_model_that_they_were_made_of(family, tmp_path):
    """Names, values and configuration: every parameter is equal, and so is every token."""
    source = make_checkpoint(family, tmp_path)
    file = convert(source, tmp_path / "m.gguf")
    mine, theirs = parameters(file), parameters(source)
    assert mine.keys() == theirs.keys()
    for name in theirs:
        if family == "gemma3" and "norm" in name:  # 1 was added, and is taken away again
            torch.testing.assert_close(mine[name], theirs[name], rtol=0, atol=1e-7)
        else:
            assert torch.equal(mine[name], theirs[name]), name
    assert told(file) == told(source)


@pytest.mark.slow
def test_up_projections_of_latents_may_be_one_tensor_and_in_blocks(tmp_path):
    """Older files hold both in one. Blocks are decoded, as these matrices are dense in every model."""
    sizes = {
        "hidden_size": 64, "intermediate_size": 96, "num_key_value_heads": 4, "q_lora_rank": 64, "kv_lora_rank": 64,
        "qk_nope_head_dim": 32, "qk_rope_head_dim": 16, "v_head_dim": 48, "first_k_dense_replace": 2,
    }  # fmt: skip
    mixture = {"n_routed_experts": 4, "n_group": 2, "topk_group": 1, "num_experts_per_tok": 2, "moe_intermediate_size": 32}
    source = make_causal("deepseek-v3", tmp_path, **sizes, **mixture, num_hidden_layers=3)
    config = json.loads((source / "config.json").read_text()) | {"model_type": "glm4_moe_lite"}  # what is converted alike
    (tmp_path / "as").mkdir()
    (tmp_path / "as" / "model.safetensors").symlink_to(source / "model.safetensors")
    for name in ("tokenizer.json", "tokenizer_config.json"):
        (tmp_path / "as" / name).symlink_to(source / name)
    (tmp_path / "as" / "config.json").write_text(json.dumps(config))
    whole = convert(tmp_path / "as", tmp_path / "whole.gguf", fused=True)
    theirs = parameters(source)
    mine = parameters(whole)
    assert all(torch.equal(mine[name], theirs[name]) for name in theirs)
    assert told(whole) == told(source)
    rounded = parameters(convert(tmp_path / "as", tmp_path / "q8.gguf", lambda name, shape: "Q8_0"))
    for name, want in theirs.items():
        if name.endswith(("k_up.weight", "v_up.weight")):
            assert 1e-5 < (rounded[name] - want).abs().max() < 0.01 * want.abs().max(), name
    assert read_config(tmp_path / "q8.gguf", None, registry.check)["quantization_config"]["quant_method"] == "gguf"


@torch.inference_mode()
@pytest.mark.slow
def test_scaled_positions_are_found_again_in_the_tensor_that_holds_them(tmp_path):
    """Llama 3.1's scaling, told by its own numbers where they are those that Llama has, and else by a list."""
    source = make_checkpoint("llama-3.1", tmp_path)
    prompt = np.random.default_rng(0).integers(3, 250, 40).tolist()
    for original, kind in ((8192, "llama3"), (32, "longrope")):
        config = json.loads((source / "config.json").read_text())
        config["rope_parameters"]["original_max_position_embeddings"] = original
        (source / "config.json").write_text(json.dumps(config))
        file = convert(source, tmp_path / f"{kind}.gguf")
        assert read_config(file)["rope_parameters"]["rope_type"] == kind
        oracle = load_reference(source, torch.float32)
        llm = LLM(str(file), device="reference", dtype="float32", max_model_len=64, block_size=4)
        params = SamplingParams(temperature=0, max_tokens=10, ignore_eos=True, logprobs=0, detokenize=False)
        (out,) = llm.generate([{"prompt_token_ids": prompt}], params, use_tqdm=False)
        said = list(out.outputs[0].token_ids)
        rows = oracle(torch.tensor([[*prompt, *said[:-1]]])).logits[0, len(prompt) - 1 :].log_softmax(-1)
        assert rows.argmax(-1).tolist() == said
        mine = [step[t].logprob for step, t in zip(out.outputs[0].logprobs, said, strict=True)]
        np.testing.assert_allclose(mine, rows.amax(-1), atol=1e-4)


@pytest.mark.parametrize("kind", ["F16", "BF16"])
@pytest.mark.slow
def test_16_bit_files_hold_the_rounded_model(kind, tmp_path):
    source = make_checkpoint("llama", tmp_path)
    file = convert(source, tmp_path / "m.gguf", lambda name, shape: kind, dense=tmp_path / "dense")
    mine, theirs = parameters(file), parameters(tmp_path / "dense")
    assert all(torch.equal(mine[name], theirs[name]) for name in theirs)
    assert told(file) == told(tmp_path / "dense")
    assert read_config(file)["dtype"] == {"F16": "float16", "BF16": "bfloat16"}[kind]


def test_parts_kept_in_one_tensor_are_taken_apart(tmp_path):
    """q, k and v one after the other, as llama.cpp's converter can write them, weights and biases."""
    source = make_checkpoint("llama-biased", tmp_path)
    file = convert(source, tmp_path / "m.gguf", fused=True)
    assert "blk.0.attn_qkv.weight" in {t.name for t in gguf.GGUFReader(file).tensors}
    mine, theirs = parameters(file), parameters(source)
    assert all(torch.equal(mine[name], theirs[name]) for name in theirs)


@pytest.mark.parametrize("mix", ["F32", "Q4_K_M"])
def test_experts_in_tensors_of_their_own_are_read_too(mix, tmp_path):
    """As files of Mixtral had them before April 2024."""
    source = wide("mixtral", tmp_path)
    dense, kind = tmp_path / "dense", of(mix) if mix in MIXES else lambda name, shape: mix
    file = convert(source, tmp_path / "m.gguf", kind, apart=True, dense=dense)
    assert "blk.1.ffn_gate.3.weight" in {t.name for t in gguf.GGUFReader(file).tensors}
    mine, theirs = ({k: w for k, w in parameters(p).items() if ".ffn.weight" not in k and ".ffn." in k} for p in (file, dense))
    assert len(mine) == 6
    assert all(torch.equal(mine[name], theirs[name]) for name in theirs)


@pytest.mark.slow
def test_split_files_are_one_model(tmp_path):
    source = make_checkpoint("qwen2", tmp_path)
    convert(source, tmp_path / "m.gguf", tensors_per_file=10)
    parts = sorted(tmp_path.glob("m-*.gguf"))
    assert len(parts) > 2
    assert told(parts[0]) == told(parts[-1]) == told(source)


Q4_K_M = {"v_proj": "Q6_K", "down_proj": "Q6_K", "w2": "Q6_K", "embed_tokens": "Q6_K", "lm_head": "Q6_K"}
MIXES = {
    **{name: {"": name} for name in (*SCALES, "MXFP4")},
    "Q4_K_M": {**Q4_K_M, "": "Q4_K"},
    "up is wider": {"up_proj": "Q6_K", "": "Q4_K"},
    "odd": {"q_proj": "Q5_0", "k_proj": "Q8_0", "v_proj": "F16", "gate_proj": "IQ4_NL", "embed_tokens": "Q8_0", "": "Q5_K"},
}


def of(mix: str, only: str = ""):
    return lambda name, shape: next(kind for part, kind in MIXES[mix].items() if part in name)


@pytest.mark.parametrize("mix", MIXES)
@pytest.mark.sampled(3)
def test_quantised_weights_are_those_that_the_package_decodes(mix, tmp_path):
    source = wide("llama", tmp_path)
    file = convert(source, tmp_path / "m.gguf", of(mix), dense=tmp_path / "dense")
    made, model = built(file), GGUFCheckpoint(file)
    files = Files(made, model, DEVICE)
    dense = open_weights(tmp_path / "dense")
    seen = 0
    for _, spec in walk(made.specs):
        if not spec.sources:
            continue
        w = files.read(spec, 0)
        if spec.format != DENSE:
            w, seen = dequantise(w.data, spec.format.group, torch.float32), seen + 1
        want = torch.from_numpy(np.concatenate([dense.read(s.name) for s in spec.sources]))
        assert torch.equal(w, want), spec.sources[0].name
    assert seen > 8


@pytest.mark.parametrize("device", [pytest.param("reference", marks=pytest.mark.slow), "cpu"])
@pytest.mark.parametrize(
    ("family", "mix"),
    [("llama", "odd"), ("qwen3", "Q4_K_M"), ("gemma3", "Q5_0"), ("llama", "IQ3_S"), ("qwen3-moe", "Q4_K_M"),
      ("mixtral", "Q8_0"),
     *(pytest.param(*case, marks=pytest.mark.slow)
       for case in (("llama", "Q4_K_M"), ("llama", "Q8_0"), ("qwen3", "Q4_1"), ("qwen3-moe", "Q4_K")))],
)  # fmt: skip
@pytest.mark.slow
def test_text_of_quantised_files_is_that_of_their_decoded_weights(device, family, mix, tmp_path):
    source = wide(family, tmp_path)
    file = convert(source, tmp_path / "m.gguf", of(mix), dense=tmp_path / "dense")
    assert told(file, device) == told(tmp_path / "dense", "reference")


def test_experts_of_two_types_stay_blocks(tmp_path, caplog):
    source = wide("qwen3-moe", tmp_path)
    file = convert(source, tmp_path / "m.gguf", of("Q4_K_M"), dense=tmp_path / "dense")
    mine, theirs = parameters(file), parameters(tmp_path / "dense")
    mixtures = [name for name in theirs if ".ffn." in name and "router" not in name]
    assert mixtures
    assert all(torch.equal(mine[name], theirs[name]) for name in mixtures)
    assert not caplog.text
    ffn = built(file).specs["layers"][0]["ffn"]
    assert [str(ffn[w]["weight"].format) for w in ("gate_up", "down")] == ["int4-g32-mins", "int8-g16"]
    planned = plan(EngineArgs(model=str(file), device="reference", dtype="float32", max_model_len=64))
    held = {t.data_ptr(): t.nbytes for _, t in walk(load_params(built(file), file, DEVICE, progress=False))}
    assert planned.weights == sum(held.values())


@pytest.mark.slow
def test_experts_whose_gate_and_up_are_not_held_alike_are_decoded_loudly(tmp_path, caplog):
    source = wide("qwen3-moe", tmp_path)
    file = convert(source, tmp_path / "m.gguf", of("up is wider"), dense=tmp_path / "dense")
    assert told(file) == told(tmp_path / "dense")
    assert "16 matrices (Q4_K, Q6_K) are decoded while they are loaded" in caplog.text


def test_the_plan_of_kernels_runs_blocks_packed(tmp_path):
    """On the CPU: 4-bit blocks as 4 bits, 6-bit ones as 8, and the embedding as it is, whose rows are decoded."""
    file = convert(wide("qwen3", tmp_path), tmp_path / "m.gguf", of("Q4_K_M"))
    llm = LLM(str(file), device="cpu", max_model_len=64)
    plan = "\n".join(llm._worker.plan)
    for form in ("int4-g32-mins", "int8-g16"):
        assert any(f"weight={form}" in line and "-> native" in line for line in llm._worker.plan if line.startswith("linear("))
    assert "embed(" in plan


@pytest.mark.parametrize("mix", ["Q4_K_M", "Q8_0", "odd", "IQ2_XS"])
def test_the_plan_knows_the_bytes_of_every_type(mix, tmp_path):
    """From the header alone: what loading then holds, but for what kernels pad."""
    file = convert(wide("qwen3", tmp_path), tmp_path / "m.gguf", of(mix))
    planned = plan(EngineArgs(model=str(file), device="reference", dtype="float32", max_model_len=64))
    assert planned.stored_bytes == GGUFCheckpoint(file).bytes
    held = {t.data_ptr(): t.nbytes for _, t in walk(load_params(built(file), file, DEVICE, progress=False))}
    assert planned.weights == sum(held.values())


@pytest.mark.slow
def test_planning_loads_no_framework(tmp_path):
    file = convert(wide("llama", tmp_path), tmp_path / "m.gguf", of("Q4_K_M"))
    code = f"import sys; from thalweg.cli import main; main(['plan', {str(file)!r}]); print('torch' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=200)
    assert done.stdout.rstrip().endswith("False")
    assert "in files" in done.stdout


@pytest.mark.slow
def test_vocabulary_template_and_ends_come_from_the_file(tmp_path):
    def edit(w: gguf.GGUFWriter) -> None:
        w.add_float32("general.sampling.temp", 0.7)
        w.add_int32("general.sampling.top_k", 20)

    source = make_checkpoint("llama", tmp_path)
    file = convert(source, tmp_path / "m.gguf", edit=edit)
    config = read_config(file)
    assert eos_ids(file, config) == (256, 258)
    assert generation_defaults(file) == {"temperature": 0.7, "top_k": 20}
    llm, other = (LLM(str(p), device="reference", dtype="float32", max_model_len=64) for p in (file, source))
    text = "Grüße, 12 <|im_start|>x\n"
    assert llm.get_tokenizer().encode(text) == other.get_tokenizer().encode(text)
    talk = [{"role": "user", "content": "hi"}]
    params = SamplingParams(temperature=0, max_tokens=6)
    assert (
        llm.chat(talk, params, use_tqdm=False)[0].outputs[0].text == other.chat(talk, params, use_tqdm=False)[0].outputs[0].text
    )


def _without(key: str):
    def edit(w: gguf.GGUFWriter) -> None:
        w.kv_data[0].pop(key)

    return edit


def _with(key: str, value: Any):
    def edit(w: gguf.GGUFWriter) -> None:
        w.kv_data[0].pop(key, None)
        w.add_uint32(key, value) if isinstance(value, int) else w.add_string(key, value)

    return edit


@pytest.mark.parametrize(
    ("edit", "error", "why"),
    [
        (_with("general.architecture", "rwkv6"), UnsupportedModelError, "architecture: 'rwkv6' is not read by this version"),
        (_with("general.architecture", "clip"), UnsupportedModelError, "projector for images or audio"),
        (_without("general.architecture"), CheckpointError, "general.architecture: missing"),
        (_without("llama.block_count"), CheckpointError, "llama.block_count: missing"),
        (_with("llama.block_count", "two"), CheckpointError, "llama.block_count: must be an integer, not 'two'"),
        (_with("llama.block_count", 1), CheckpointError, "tensor 'blk.1.* is unknown in the architecture"),
        (_with("llama.block_count", 0), CheckpointError, "llama.block_count: must be between 1 and 10000, not 0"),
        (_with("llama.expert_count", 8), UnsupportedModelError, "layer 0 has no router"),
        (_with("llama.rope.scaling.type", "longrope"), UnsupportedModelError, "rope.scaling.type: 'longrope' is not read"),
        (_with("llama.embedding_length", 64), CheckpointError, "has shape .* config.json makes it"),
    ],
)  # fmt: skip
@pytest.mark.slow
def test_what_is_missing_wrong_or_not_read_is_refused_by_key(edit, error, why, tmp_path):
    file = convert(make_checkpoint("llama", tmp_path), tmp_path / "m.gguf", edit=edit)
    with pytest.raises(error, match=why):
        LLM(str(file), device="reference", dtype="float32", max_model_len=64)


def test_tensors_that_nobody_knows_are_refused(tmp_path):
    def edit(w: gguf.GGUFWriter) -> None:
        w.add_tensor("blk.0.attn_sinks.weight", np.zeros(4, np.float32))

    file = convert(make_checkpoint("llama", tmp_path), tmp_path / "m.gguf", edit=edit)
    with pytest.raises(CheckpointError, match=r"tensor 'blk\.0\.attn_sinks\.weight' is unknown in the architecture"):
        read_config(file, None, registry.check)


@torch.inference_mode()
@pytest.mark.parametrize("method", ["w4a8", "int4", "w4a16"])
@pytest.mark.sampled(1)
def test_inputs_of_4_bit_layers_are_rounded_where_that_is_asked_for(method, tmp_path):
    """Log-probabilities of a text that is given, beside those of the decoded weights with no rounding."""
    source = wide("llama", tmp_path)
    file = convert(source, tmp_path / "m.gguf", of("Q4_K_M"), dense=tmp_path / "dense")
    llm = LLM(str(file), device="cpu", dtype="float32", max_model_len=64, quantization=method)
    rounds = any("act=int8_per_group" in line for line in llm._worker.plan)
    assert rounds == (method != "w4a16")
    prompt = np.random.default_rng(1).integers(3, 250, 30).tolist()
    params = SamplingParams(temperature=0, max_tokens=1, prompt_logprobs=0, detokenize=False)
    (out,) = llm.generate([{"prompt_token_ids": prompt}], params, use_tqdm=False)
    rows = load_reference(tmp_path / "dense", torch.float32)(torch.tensor([prompt])).logits[0].log_softmax(-1)
    mine = np.array([step[t].logprob for step, t in zip(out.prompt_logprobs[1:], prompt[1:], strict=True)])
    off = np.abs(mine - rows[range(29), prompt[1:]].numpy())
    assert off.max() < (0.5 if rounds else 2e-3)
    assert (off.max() > 2e-3) == rounds


def test_blocks_are_not_rounded_again(tmp_path):
    file = convert(wide("llama", tmp_path), tmp_path / "m.gguf", of("Q8_0"))
    with pytest.raises(ConfigError, match=r"quantised already \(gguf\)"):
        LLM(str(file), device="cpu", quantization="int8", max_model_len=64)
