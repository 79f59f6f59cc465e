"""GGUF files of many families, as llama.cpp's converter writes them. Names are those of the `gguf` package's own tables. For
tests."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import gguf
import numpy as np
from converted import byte_vocabulary
from recipes import (
    Config,
    Made,
    afmoe,
    bloom,
    common,
    correction,
    delta_keys,
    dots1,
    falcon,
    falcon_h1,
    gemma3n,
    gemma3n_keys,
    gemma4,
    gemma4_extra,
    gemma4_keys,
    gpt2,
    gpt_neox,
    gpt_oss,
    granite,
    granite_keys,
    halves,
    head_dim,
    hybrid_keys,
    jamba,
    jamba_keys,
    joint_qkv,
    lfm2,
    lfm2_keys,
    llama3_factors,
    llama4,
    mamba_first,
    mamba_keys,
    mamba_second,
    mamba_sizes,
    minimax,
    moe_keys,
    mpt_keys,
    nemotron_h,
    nemotron_h_keys,
    phi3_extra,
    phi3_keys,
    qwen_next,
    qwen_tiled,
    raised,
    stablelm,
    turned,
    turning,
    windows,
    with_experts,
    xielu,
)
from safetensors.numpy import load_file
from zoo import ALL, SMALL, make_tokenizer, save

_EXPERT = re.compile(r"(.*\.experts)\.(\d+)\.(.*)")


@dataclass(frozen=True)
class Family:
    arch: str
    """As files name it."""
    keys: Callable[[Config], Mapping[str, Any]] = lambda c: {}
    """Those that it has beside, or in place of, what all have."""
    change: Callable[[str, np.ndarray, Config], Made] = lambda name, w, c: iter([(name, w)])
    """A tensor of transformers -> those that files have, by the name that the package's table knows, or by their own."""
    edits: Mapping[str, Any] = field(default_factory=dict)
    """Of the configuration of the zoo's model."""
    extra: Callable[[Config], Mapping[str, np.ndarray]] = lambda c: {}
    together: Callable[[dict[str, np.ndarray], Config], Mapping[str, Any]] = lambda tensors, c: {}
    """Changes the tensors of a whole model, and returns keys for them, without the prefix of the architecture."""
    source: str = ""
    """The zoo's model, if not the one of this name."""
    finish: Callable[[Path], None] = lambda directory: None
    """Changes the directory of the zoo's model, of families that transformers does not have."""


_LLAMA4 = {"attention_chunk_size": 8192, "floor_scale": 8192, "attn_scale": 0.1}
FAMILIES: dict[str, Family] = {
    "gpt-oss": Family("gpt-oss", lambda c: {
        "attention.sliding_window": c["sliding_window"], "expert_feed_forward_length": c["intermediate_size"]}, gpt_oss),
    "qwen3-next": Family("qwen3next", delta_keys, qwen_next, {"mlp_only_layers": []}),
    "qwen3.5": Family("qwen35", delta_keys, qwen_tiled),
    "qwen3.5-moe": Family("qwen35moe", delta_keys, qwen_tiled),
    "gemma": Family("gemma", change=raised),
    "gemma2": Family("gemma2", lambda c: {
        "attention.sliding_window": c["sliding_window"], "attn_logit_softcapping": c["attn_logit_softcapping"],
        "final_logit_softcapping": c["final_logit_softcapping"]}, raised),
    "gemma3n": Family("gemma3n", gemma3n_keys, gemma3n),
    "gemma4-dense": Family("gemma4", gemma4_keys, gemma4, extra=gemma4_extra),
    "gemma4-moe": Family("gemma4", gemma4_keys, gemma4, extra=gemma4_extra),
    "phi3": Family("phi3", phi3_keys, extra=phi3_extra),
    "phi4-mini": Family("phi3", phi3_keys, extra=phi3_extra),
    "glm4-moe": Family("glm4moe", moe_keys("inner", "glm"), correction),
    "qwen2-moe": Family("qwen2moe", moe_keys("inner", "shared"), halves, {"mlp_only_layers": []}),
    "llama4": Family("llama4", lambda c: {
        "feed_forward_length": c["intermediate_size_mlp"], "expert_feed_forward_length": c["intermediate_size"],
        "interleave_moe_layer_step": c["interleave_moe_layer_step"], "rope.dimension_count": c["head_dim"]}, llama4, _LLAMA4),
    "granite": Family("granite", granite_keys, turned),
    "granite-moe": Family("granitemoe", granite_keys, granite),
    "granite-hybrid": Family("granitehybrid", hybrid_keys, granite),
    "granite-hybrid-dense": Family("granitehybrid", hybrid_keys, granite),
    "nemotron-h": Family("nemotron_h_moe", nemotron_h_keys, nemotron_h, {
        "time_step_min": 1e-3, "hybrid_override_pattern": "ME*M*EM", "n_group": 1, "topk_group": 1}),
    "mamba": Family("mamba", mamba_keys, mamba_first),
    "falcon-mamba": Family("mamba", mamba_keys, mamba_first),
    "mamba2": Family("mamba2", mamba_keys, mamba_second, {"time_step_limit": (0.0, float("inf"))}),
    "jamba": Family("jamba", jamba_keys, jamba),
    "falcon-h1": Family("falcon-h1", mamba_sizes, falcon_h1, {
        "attention_bias": False, "mamba_proj_bias": False, "projectors_bias": False, "mamba_norm_before_gate": False}),
    "lfm2": Family("lfm2", lfm2_keys, lfm2),
    "lfm2-moe": Family("lfm2moe", lfm2_keys, lfm2, {"routed_scaling_factor": 1.0}),
    "olmo2": Family("olmo2"),
    "olmo3": Family("olmo2", windows),
    "ministral3": Family("mistral3", lambda c: {
        "rope.scaling.yarn_log_multiplier": c["rope_parameters"]["mscale_all_dim"], "rope.dimension_count": head_dim(c),
        "attention.temperature_scale": c["rope_parameters"]["llama_4_scaling_beta"]}, turned),
    "olmoe": Family("olmoe", change=halves),
    "cohere": Family("command-r", lambda c: {"logit_scale": c["logit_scale"], "rope.scaling.type": "none"}),
    "cohere2": Family("cohere2", lambda c: {
        "logit_scale": c["logit_scale"], "attention.sliding_window": c["sliding_window"], "rope.dimension_count": head_dim(c)}),
    "smollm3": Family("smollm3", lambda c: {"rope.dimension_count": head_dim(c)}, turned),
    "ernie4.5": Family("ernie4_5"),
    "ernie4.5-moe": Family("ernie4_5-moe", lambda c: {
        "expert_count": c["moe_num_experts"], "expert_used_count": c["moe_k"],
        "interleave_moe_layer_step": c["moe_layer_interval"], "leading_dense_block_count": c["moe_layer_start_index"],
        "expert_feed_forward_length": c["moe_intermediate_size"], "expert_shared_count": c["moe_num_shared_experts"]},
        correction),
    "exaone4": Family("exaone4", windows),
    "exaone4-full": Family("exaone4"),
    "seed-oss": Family("seed_oss"),
    "hunyuan": Family("hunyuan-dense", edits={"rope_parameters": {"rope_type": "default", "rope_theta": 11158840.0}}),
    "minimax-m2": Family("minimax-m2", lambda c: {
        "expert_feed_forward_length": c["intermediate_size"], **turning(c)}, minimax),
    "starcoder2": Family("starcoder2", edits={"sliding_window": None}),
    "phi": Family("phi2", lambda c: {"feed_forward_length": 4 * c["hidden_size"], **turning(c, 0.5)}),
    "gpt2": Family("gpt2", lambda c: {"feed_forward_length": 4 * c["n_embd"], "attention.head_count_kv": None}, gpt2),
    "gpt-neox": Family("gptneox", lambda c: {
        "attention.head_count_kv": None, "use_parallel_residual": c["use_parallel_residual"], **turning(c, 0.25)}, gpt_neox),
    "falcon": Family("falcon", lambda c: {
        "context_length": 2048, "feed_forward_length": 4 * c["hidden_size"], "attention.head_count_kv": 1}, falcon,
        {"num_kv_heads": 1}),
    "falcon-40b": Family("falcon", lambda c: {
        "context_length": 2048, "feed_forward_length": 4 * c["hidden_size"], "attention.head_count_kv": c["num_kv_heads"]},
        falcon),
    "arcee": Family("arcee", change=turned),
    "nemotron": Family("nemotron", lambda c: {
        "attention.layer_norm_epsilon": c["norm_eps"], "rope.scaling.type": "none", **turning(c, 0.5)}, raised),
    "olmo": Family("olmo", lambda c: {"attention.layer_norm_epsilon": 1e-5}, turned),
    "olmo-clipped": Family("olmo", lambda c: {
        "attention.layer_norm_epsilon": 1e-5, "attention.clamp_kqv": c["clip_qkv"]}, turned),
    "stablelm": Family("stablelm", lambda c: {"use_parallel_residual": False, **turning(c, 0.25)}),
    "stablelm-12b": Family("stablelm", lambda c: {"use_parallel_residual": True, **turning(c, 0.25)}, stablelm),
    "apertus": Family("apertus", extra=llama3_factors, together=xielu),
    "dots1": Family("dots1", lambda c: moe_keys("inner", "glm")(c) | turning(c), dots1, {"sliding_window": None}),
    "afmoe": Family("afmoe", lambda c: {
        "attention.sliding_window": c["sliding_window"], "leading_dense_block_count": c["num_dense_layers"],
        "expert_feed_forward_length": c["moe_intermediate_size"], "expert_shared_count": c["num_shared_experts"],
        "expert_gating_func": 2, "expert_weights_norm": True, "expert_weights_scale": c["route_scale"], **turning(c)},
        afmoe, {"mup_enabled": True}),
    "exaone-moe": Family("exaone-moe", lambda c: windows(c) | {
        "leading_dense_block_count": c["mlp_layer_types"].count("dense"), "expert_shared_count": c["num_shared_experts"],
        "expert_feed_forward_length": c["moe_intermediate_size"], "expert_gating_func": 2,
        "expert_weights_norm": c["norm_topk_prob"], "expert_weights_scale": c["routed_scaling_factor"],
        "rope.scaling.type": "none"}, dots1),
    "hunyuan-moe": Family("hunyuan-moe", lambda c: {
        "expert_used_count": c["moe_topk"], "expert_feed_forward_length": c["intermediate_size"],
        "expert_shared_feed_forward_length": c["intermediate_size"], "expert_shared_count": 1}, halves),
    "bloom": Family("bloom", lambda c: {
        "feed_forward_length": 4 * c["hidden_size"], "attention.head_count_kv": c["n_head"],
        "attention.layer_norm_rms_epsilon": None}, bloom),
    "mpt": Family("mpt", mpt_keys),
    "mpt-clipped": Family("mpt", mpt_keys, edits={"attn_config": {"clip_qkv": 0.3, "alibi_bias_max": 4}}, source="mpt"),
    "minicpm3": Family("minicpm3", lambda c: {
        "attention.q_lora_rank": c["q_lora_rank"], "attention.kv_lora_rank": c["kv_lora_rank"], "attention.value_length": None,
        "attention.key_length": c["qk_nope_head_dim"] + c["qk_rope_head_dim"],
        "rope.dimension_count": c["qk_rope_head_dim"]},
        edits={"scale_emb": 12, "scale_depth": 1.4, "dim_model_base": 256, "v_head_dim": 12}),
    "deepseek": Family("deepseek", lambda c: turning(c) | {
        "leading_dense_block_count": 1, "expert_feed_forward_length": 24, "expert_weights_scale": 1.0,
        "expert_shared_count": 2, "rope.scaling.type": "none"}, turned, source="llama", finish=with_experts),
    # served as a family of the same computation, whose transformers model they are compared with
    "internlm2": Family("internlm2", change=turned, source="llama"),
    "xverse": Family("xverse", lambda c: turning(c), turned, source="llama"),
    "exaone": Family("exaone", lambda c: turning(c), extra=llama3_factors, source="llama-3.1"),
    "minicpm": Family("minicpm", lambda c: {**granite_keys(c), "attention.scale": None}, turned, {
        "attention_multiplier": 12**-0.5}, source="granite"),
    "bailingmoe2": Family("bailingmoe2", moe_keys("inner", "glm"), dots1, together=joint_qkv, source="glm4-moe"),
}  # fmt: skip


def make(name: str, directory: Path, **edits: Any) -> Path:
    """The zoo's model of this name, where the converter's files can say all of it."""
    kind, different = ALL[FAMILIES[name].source or name]
    save(kind(**{**SMALL, **different, **FAMILIES[name].edits, **edits}), directory / name)
    make_tokenizer(directory / name)
    FAMILIES[name].finish(directory / name)
    return directory / name


def convert_family(
    name: str,
    source: Path,
    file: Path,
    kind: Callable[[str], str] = lambda name: "F32",
    decoded: bool = False,
    keys: Mapping[str, Any] | None = None,
) -> Path:
    """kind: the file's name of a matrix -> the type that it is written in. decoded: written is what the package makes of it."""
    family, c = FAMILIES[name], json.loads((source / "config.json").read_text())
    writer = gguf.GGUFWriter(file, family.arch)
    said = common(c) | dict(family.keys(c)) | dict(keys or {})
    tensors = _stacked(family, c, load_file(source / "model.safetensors"))
    metadata = {f"{family.arch}.{key}": value for key, value in said.items()} | dict(family.together(tensors, c))
    for key, value in metadata.items():
        if value is None:
            continue
        if isinstance(value, bool):
            writer.add_bool(key, value)
        elif isinstance(value, list):
            writer.add_array(key, value)
        elif isinstance(value, str):
            writer.add_string(key, value)
        else:
            (writer.add_uint32 if isinstance(value, int) else writer.add_float32)(key, value)
    byte_vocabulary(writer, source)
    number = next(n for n, known in gguf.MODEL_ARCH_NAMES.items() if known == family.arch)
    table = gguf.get_tensor_name_map(number, said["block_count"])
    for made, w in tensors.items():
        known = made if made.startswith("blk.") else table.get_name(made, (".weight", ".bias"))
        assert known is not None, made
        wanted = gguf.GGMLQuantizationType[kind(known) if w.ndim > 1 else "F32"]
        raw = gguf.quantize(np.ascontiguousarray(w), wanted)
        if decoded:
            raw, wanted = gguf.dequantize(raw, wanted).astype(np.float32).reshape(w.shape), gguf.GGMLQuantizationType.F32
        writer.add_tensor(known, raw, raw_dtype=wanted)
    for made, w in family.extra(c).items():
        writer.add_tensor(made, w)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return file


def _stacked(family: Family, c: Config, weights: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
    """What becomes of all tensors; experts, one after the other, in one."""
    out: dict[str, Any] = {}
    for name, w in weights.items():
        if name == "lm_head.weight" and c.get("tie_word_embeddings"):
            continue
        for made, values in family.change(name, w.astype(np.float32), c):
            found = _EXPERT.fullmatch(made) or re.fullmatch(r"(.*)\.#\.(\d+)\.(.*)", made)
            if found:
                out.setdefault(f"{found[1]}.{found[3]}", {})[int(found[2])] = values
            else:
                out[made] = values
    return {name: np.stack([v for _, v in sorted(w.items())]) if isinstance(w, dict) else w for name, w in out.items()}
