"""GGUF files written by the `gguf` package, from checkpoints of transformers: what llama.cpp's converter does, said again for
the few architectures that are read, with names from the package's own tables. For tests."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import gguf
import numpy as np
from safetensors.numpy import load_file, save_file

ARCHITECTURES = {
    "llama": gguf.MODEL_ARCH.LLAMA, "mistral": gguf.MODEL_ARCH.LLAMA, "mixtral": gguf.MODEL_ARCH.LLAMA,
    "qwen2": gguf.MODEL_ARCH.QWEN2, "qwen3": gguf.MODEL_ARCH.QWEN3, "qwen3_moe": gguf.MODEL_ARCH.QWEN3MOE,
    "deepseek_v2": gguf.MODEL_ARCH.DEEPSEEK2, "glm4_moe_lite": gguf.MODEL_ARCH.DEEPSEEK2, "youtu": gguf.MODEL_ARCH.DEEPSEEK2,
    "gemma3_text": gguf.MODEL_ARCH.GEMMA3, "glm4": gguf.MODEL_ARCH.GLM4,
}  # fmt: skip
SCALES = {
    "Q4_0": (0,), "Q4_1": (0, 2), "Q5_0": (0,), "Q5_1": (0, 2), "Q8_0": (0,), "Q2_K": (80, 82), "Q3_K": (108,), "Q4_K": (0, 2),
    "Q5_K": (0, 2), "Q6_K": (208,), "TQ1_0": (52,), "TQ2_0": (64,), "IQ4_NL": (0,), "IQ4_XS": (0,), "IQ2_XXS": (0,),
    "IQ2_XS": (0,), "IQ2_S": (0,), "IQ3_XXS": (0,), "IQ3_S": (0,), "IQ1_S": (0,),
}  # fmt: skip
"""Where the float16 of each block lie."""
WIDTH = {
    "Q4_0": 4, "Q4_1": 8, "Q5_0": 9, "Q5_1": 16, "Q8_0": 74, "Q2_K": 14, "Q3_K": 40, "Q4_K": 250, "Q5_K": 500, "Q6_K": 1200,
    "TQ1_0": 1, "TQ2_0": 1.5, "IQ4_NL": 65, "IQ4_XS": 1000, "IQ2_XXS": 60, "IQ2_XS": 60, "IQ2_S": 60, "IQ3_XXS": 120,
    "IQ3_S": 140, "IQ1_S": 6,
}  # fmt: skip
"""About how large values become where the scale is 1."""


def random_blocks(name: str, rows: int, inputs: int, seed: int) -> np.ndarray:
    """Rows of random blocks whose values are about as large as those of a layer with so many inputs."""
    rng = np.random.default_rng(seed)
    size, width = gguf.GGML_QUANT_SIZES[gguf.GGMLQuantizationType[name]]
    raw = rng.integers(0, 256, (rows, inputs // size, width), dtype=np.uint8)
    for i, at in enumerate(SCALES[name]):
        scale = (
            rng.uniform(0.5, 1, (rows, inputs // size))
            * (1.5 / inputs**0.5 / WIDTH[name])
            * (-1 if i and name[3] != "K" else 1)
        )
        if i:
            scale = scale * 4
        raw[:, :, at : at + 2] = scale.astype("<f2")[..., None].view(np.uint8).reshape(rows, -1, 2)
    return raw.reshape(rows, -1)


def permuted(w: np.ndarray, heads: int) -> np.ndarray:
    """Rows of q or k as Llama's files have them."""
    return w.reshape(heads, 2, w.shape[0] // heads // 2, *w.shape[1:]).swapaxes(1, 2).reshape(w.shape)


def convert(
    source: Path, file: Path, kind: Callable[[str, tuple[int, ...]], str] = lambda name, shape: "F32", *,
    dense: Path | None = None, edit: Callable[[gguf.GGUFWriter], None] | None = None, tokenizer: bool = True,
    tensors_per_file: int = 0, fused: bool = False, apart: bool = False,
) -> Path:  # fmt: skip
    """fused: q, k and v in one tensor, and up-projections of latents, as files of before April 2025 have those.
    apart: a tensor for each expert, as files of before April 2024 have it.
    kind: (name in transformers, shape) -> the type that a matrix is written in; those that the package cannot write hold
    random blocks. dense: a directory that gets the same model with the values that the package decodes."""
    config = json.loads((source / "config.json").read_text())
    arch = ARCHITECTURES[config["model_type"]]
    if config.get("use_bidirectional_attention"):
        arch = gguf.MODEL_ARCH.GEMMA_EMBEDDING
    weights = {n: a.astype(np.float32) for n, a in load_file(source / "model.safetensors").items()}
    if arch == gguf.MODEL_ARCH.DEEPSEEK2:
        weights = dict(_latents(weights, config, whole=fused))
    layers, heads = config["num_hidden_layers"], config["num_attention_heads"]
    writer = gguf.GGUFWriter(file, gguf.MODEL_ARCH_NAMES[arch], split_max_tensors=tensors_per_file)
    _keys(writer, config, whole=fused)
    if tokenizer:
        byte_vocabulary(writer, source)
    if edit is not None:
        edit(writer)
    tables = [gguf.get_tensor_name_map(a, layers) for a in (arch, gguf.MODEL_ARCH.LLAMA)]  # a mixture may have plain layers

    def named(name: str) -> str:
        return next(found for t in tables if (found := t.get_name(name, (".weight", ".bias"))) is not None)

    experts: dict[str, list[Any]] = {}
    decoded: dict[str, np.ndarray] = {}
    for i, (name, w) in enumerate(sorted(weights.items())):
        if name == "lm_head.weight" and config.get("tie_word_embeddings"):
            continue
        wanted = kind(name, w.shape) if w.ndim > 1 and not name.endswith(("mlp.gate.weight", "moe.gate.weight")) else "F32"
        qtype = gguf.GGMLQuantizationType[wanted]
        if wanted in ("F32", "F16", "BF16", "Q8_0", "Q4_0", "Q4_1", "Q5_0", "Q5_1", "TQ1_0", "TQ2_0", "MXFP4"):
            raw = gguf.quantize(w, qtype)
        else:
            raw = random_blocks(wanted, *w.shape, seed=i)
        decoded[name] = gguf.dequantize(raw, qtype).astype(np.float32).reshape(w.shape)
        if arch == gguf.MODEL_ARCH.LLAMA and ("q_proj" in name or "k_proj" in name):
            raw = permuted(raw, heads if "q_proj" in name else config["num_key_value_heads"])
        if arch in (gguf.MODEL_ARCH.GEMMA3, gguf.MODEL_ARCH.GEMMA_EMBEDDING) and name.endswith("norm.weight"):
            raw = raw + np.float32(1)
        if ".experts." in name:
            before, after = name.split(".experts.")
            experts.setdefault(f"{before}.experts.{after.partition('.')[2]}", []).append(
                (int(after.partition(".")[0]), raw, qtype)
            )
            continue
        if not fused or not any(p in name for p in ("q_proj", "k_proj", "v_proj")):
            writer.add_tensor(named(name), raw, raw_dtype=qtype)
        elif "q_proj" in name:
            kept = [raw]
            for p, n in (("k_proj", config["num_key_value_heads"]), ("v_proj", 0)):
                other = gguf.quantize(weights[name.replace("q_proj", p)], qtype)
                kept.append(permuted(other, n) if arch == gguf.MODEL_ARCH.LLAMA and n else other)
            layer = name.split(".")[2]
            writer.add_tensor(f"blk.{layer}.attn_qkv.{name.rpartition('.')[2]}", np.concatenate(kept), raw_dtype=qtype)
    for name, each in experts.items():
        if apart:
            for e, raw, qtype in each:
                writer.add_tensor(named(name).replace("_exps.", f".{e}."), raw, raw_dtype=qtype)
            continue
        stacked = np.stack([raw for _, raw, _ in sorted(each, key=lambda e: e[0])])
        writer.add_tensor(named(name), stacked, raw_dtype=each[0][2])
    if "llama3" in json.dumps(config.get("rope_parameters") or {}):
        writer.add_tensor("rope_freqs.weight", _llama3(config))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    if dense is not None:
        dense.mkdir(parents=True)
        save_file(decoded, dense / "model.safetensors", metadata={"format": "pt"})
        for other in source.glob("*.json"):
            (dense / other.name).write_bytes(other.read_bytes())
    return file


def convert_encoder(
    source: Path, file: Path, pooling: gguf.PoolingType | None = gguf.PoolingType.MEAN,
    kind: Callable[[str, tuple[int, ...]], str] = lambda name, shape: "F32", *, dense: Path | None = None,
    edit: Callable[[gguf.GGUFWriter], None] | None = None,
) -> Path:  # fmt: skip
    """As `convert`, of BERT, Nomic BERT, ModernBERT and (XLM-)RoBERTa with the tokenizer of `zoo.make_bert_tokenizer`."""
    config = json.loads((source / "config.json").read_text())
    cut = config["pad_token_id"] + 1 if "roberta" in config["model_type"] else 0
    other = {"nomic_bert": gguf.MODEL_ARCH.NOMIC_BERT, "modernbert": gguf.MODEL_ARCH.MODERN_BERT}
    arch = other.get(config["model_type"], gguf.MODEL_ARCH.BERT)
    w = gguf.GGUFWriter(file, gguf.MODEL_ARCH_NAMES[arch])
    if arch == gguf.MODEL_ARCH.NOMIC_BERT:
        w.add_rope_freq_base(config["rope_parameters"]["rope_theta"])
    w.add_block_count(config["num_hidden_layers"])
    w.add_context_length(config["max_position_embeddings"] - cut)
    w.add_embedding_length(config["hidden_size"])
    w.add_feed_forward_length(config["intermediate_size"])
    w.add_head_count(config["num_attention_heads"])
    w.add_layer_norm_eps(config.get("layer_norm_eps") or config["norm_eps"])
    w.add_causal_attention(False)
    w.add_token_type_count(config.get("type_vocab_size", 1))
    if arch == gguf.MODEL_ARCH.MODERN_BERT:
        w.add_sliding_window(config["local_attention"])
        w.add_sliding_window_pattern(3)
        if config["hidden_activation"] != "gelu":  # as in files of before this key
            w.add_string(f"{w.arch}.hidden_activation", config["hidden_activation"])
        for key, layers in (("rope.freq_base", "full_attention"), ("rope.freq_base_swa", "sliding_attention")):
            w.add_float32(f"{w.arch}.{key}", config["rope_parameters"][layers]["rope_theta"])
    if pooling is not None:
        w.add_pooling_type(pooling)
    _wordpiece_vocabulary(w, source)
    if edit is not None:
        edit(w)
    names = gguf.get_tensor_name_map(arch, config["num_hidden_layers"])
    decoded = load_file(source / "model.safetensors")
    for name, values in decoded.items():
        if name.startswith("pooler."):
            continue
        wanted = kind(name, values.shape) if values.ndim == 2 and "position" not in name and "type" not in name else "F32"
        qtype = gguf.GGMLQuantizationType[wanted]
        raw = gguf.quantize(values, qtype)
        decoded[name] = gguf.dequantize(raw, qtype).astype(np.float32).reshape(values.shape)
        w.add_tensor(names.get_name(name, (".weight", ".bias")), raw[cut:] if "position" in name else raw, raw_dtype=qtype)
    w.write_header_to_file()
    w.write_kv_data_to_file()
    w.write_tensors_to_file()
    w.close()
    if dense is not None:
        dense.mkdir(parents=True)
        save_file(decoded, dense / "model.safetensors", metadata={"format": "pt"})
        (dense / "config.json").write_bytes((source / "config.json").read_bytes())
    return file


def _wordpiece_vocabulary(w: gguf.GGUFWriter, source: Path) -> None:
    made = json.loads((source / "tokenizer.json").read_text())
    vocab, special = made["model"]["vocab"], {t["content"] for t in made["added_tokens"]}
    tokens = sorted(vocab, key=vocab.__getitem__)
    w.add_tokenizer_model("bert")
    w.add_tokenizer_pre("default")
    w.add_token_list([t if t in special else t[2:] if t.startswith("##") else "\u2581" + t for t in tokens])
    w.add_token_types([gguf.TokenType.CONTROL if t in special else gguf.TokenType.NORMAL for t in tokens])
    w.add_unk_token_id(vocab["[UNK]"])
    w.add_sep_token_id(vocab["[SEP]"])
    w.add_pad_token_id(vocab["<pad>"])
    w.add_bos_token_id(vocab["[CLS]"])


def _latents(weights: Mapping[str, np.ndarray], config: Mapping[str, Any], whole: bool) -> Iterator[tuple[str, np.ndarray]]:
    """Up-projections of keys, on their side, and of values by head, unless `whole`; corrections by the name that files have."""
    heads, nope = config["num_attention_heads"], config["qk_nope_head_dim"]
    for name, w in weights.items():
        if name.endswith("kv_b_proj.weight") and not whole:
            each = w.reshape(heads, -1, w.shape[1])
            yield name.replace("kv_b", "k_b"), np.ascontiguousarray(each[:, :nope].swapaxes(1, 2))
            yield name.replace("kv_b", "v_b"), np.ascontiguousarray(each[:, nope:])
        else:
            yield name.replace("e_score_correction_bias", "e_score_correction.bias"), w


def _latent_keys(w: gguf.GGUFWriter, config: Mapping[str, Any], whole: bool) -> None:
    rope, rank = config["qk_rope_head_dim"], config["kv_lora_rank"]
    lengths = (config["qk_nope_head_dim"] + rope, config["v_head_dim"])
    for add, n in zip((w.add_key_length, w.add_value_length), lengths if whole else (rank + rope, rank), strict=True):
        add(n)
    for add, n in () if whole else zip((w.add_key_length_mla, w.add_value_length_mla), lengths, strict=True):
        add(n)
    w.add_kv_lora_rank(rank)
    w.add_rope_dimension_count(rope)
    if config.get("q_lora_rank"):
        w.add_q_lora_rank(config["q_lora_rank"])
    if (every := (config.get("rope_parameters") or {}).get("mscale_all_dim")) is not None:
        w.add_rope_scaling_yarn_log_mul(0.1 * every)
    if "n_routed_experts" not in config:
        return
    kinds = config.get("mlp_layer_types")
    w.add_leading_dense_block_count(kinds.count("dense") if kinds else config["first_k_dense_replace"])
    w.add_expert_count(config["n_routed_experts"])
    w.add_expert_used_count(config["num_experts_per_tok"])
    w.add_expert_shared_count(config["n_shared_experts"])
    w.add_expert_feed_forward_length(config["moe_intermediate_size"])
    w.add_expert_weights_scale(config["routed_scaling_factor"])
    if config["norm_topk_prob"]:
        w.add_expert_weights_norm(True)
    if config["model_type"] != "deepseek_v2" and not whole:  # else it is seen by the corrections
        w.add_expert_gating_func(gguf.ExpertGatingFuncType.SIGMOID)
    if config.get("n_group"):
        w.add_expert_group_count(config["n_group"])
        w.add_expert_group_used_count(config["topk_group"])


def _keys(w: gguf.GGUFWriter, config: Mapping[str, Any], whole: bool = False) -> None:
    w.add_block_count(config["num_hidden_layers"])
    w.add_context_length(config["max_position_embeddings"])
    w.add_embedding_length(config["hidden_size"])
    w.add_feed_forward_length(config["intermediate_size"])
    w.add_head_count(config["num_attention_heads"])
    w.add_head_count_kv(config["num_key_value_heads"])
    w.add_layer_norm_rms_eps(config["rms_norm_eps"])
    if ARCHITECTURES[config["model_type"]] == gguf.MODEL_ARCH.DEEPSEEK2:
        _latent_keys(w, config, whole)
    elif config.get("head_dim"):
        w.add_key_length(config["head_dim"])
        w.add_value_length(config["head_dim"])
    ropes = config.get("rope_parameters") or {}
    rope = ropes.get("full_attention", ropes)
    w.add_rope_freq_base(rope.get("rope_theta", 10000.0))
    if rope.get("rope_type") in ("linear", "yarn"):
        w.add_rope_scaling_type(gguf.RopeScalingType.LINEAR if rope["rope_type"] == "linear" else gguf.RopeScalingType.YARN)
        w.add_rope_scaling_factor(rope["factor"])
    if rope.get("rope_type") == "yarn":
        w.add_rope_scaling_orig_ctx_len(rope["original_max_position_embeddings"])
        for add, name in ((w.add_rope_scaling_yarn_beta_fast, "beta_fast"), (w.add_rope_scaling_yarn_beta_slow, "beta_slow")):
            if name in rope:
                add(rope[name])
    kind = config["model_type"]
    head = config.get("head_dim") or config["hidden_size"] // config["num_attention_heads"]
    if kind in ("llama", "mistral", "mixtral", "glm4"):
        w.add_rope_dimension_count(int(head * rope.get("partial_rotary_factor", 0.5 if kind == "glm4" else 1)))
    if kind in ("mistral", "mixtral") and config.get("sliding_window"):
        w.add_sliding_window(config["sliding_window"])
    if kind in ("qwen3_moe", "mixtral"):
        w.add_expert_count(config.get("num_experts") or config["num_local_experts"])
        w.add_expert_used_count(config["num_experts_per_tok"])
    if kind == "qwen3_moe":
        w.add_expert_feed_forward_length(config["moe_intermediate_size"])
    if kind == "gemma3_text":
        w.add_sliding_window(config["sliding_window"])
        w.add_sliding_window_pattern([t == "sliding_attention" for t in config["layer_types"]])
        w.add_float32(f"{w.arch}.rope.freq_base_swa", ropes["sliding_attention"]["rope_theta"])


def byte_vocabulary(w: gguf.GGUFWriter, source: Path) -> None:
    """Of `zoo.make_tokenizer`: bytes, no merges."""
    file = source / "tokenizer.json"
    if not file.is_file():
        return
    made = json.loads(file.read_text())
    vocab = made["model"]["vocab"] | {t["content"]: t["id"] for t in made["added_tokens"]}
    special = {t["content"] for t in made["added_tokens"]}
    tokens = sorted(vocab, key=vocab.__getitem__)
    w.add_tokenizer_model("gpt2")
    w.add_tokenizer_pre("gpt-2")
    w.add_token_list(tokens)
    w.add_token_types([gguf.TokenType.CONTROL if t in special else gguf.TokenType.NORMAL for t in tokens])
    w.add_array("tokenizer.ggml.merges", ["Ġ Ġ"])
    w.add_eos_token_id(vocab["<|endoftext|>"])
    w.add_chat_template(json.loads((source / "tokenizer_config.json").read_text())["chat_template"])


def _llama3(config: Mapping[str, Any]) -> np.ndarray:
    rope = config["rope_parameters"]
    dim = config.get("head_dim") or config["hidden_size"] // config["num_attention_heads"]
    out = []
    for freq in 1.0 / rope["rope_theta"] ** (np.arange(0, dim, 2) / dim):
        wavelength, original = 2 * np.pi / freq, rope["original_max_position_embeddings"]
        if wavelength < original / rope["high_freq_factor"]:
            out.append(1.0)
        elif wavelength > original / rope["low_freq_factor"]:
            out.append(rope["factor"])
        else:
            smooth = (original / wavelength - rope["low_freq_factor"]) / (rope["high_freq_factor"] - rope["low_freq_factor"])
            out.append(1 / ((1 - smooth) / rope["factor"] + smooth))
    return np.array(out, np.float32)
