"""What llama.cpp's converter does to models of many families, said again from its definition: the keys that it writes, and how
it changes tensors. Names are those of the `gguf` package's own tables. For tests."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from statistics import NormalDist
from typing import Any

import gguf
import numpy as np
from converted import _byte_vocabulary, permuted
from safetensors.numpy import load_file

Config = Mapping[str, Any]
Made = Iterator[tuple[str, np.ndarray]]
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


def common(c: Config) -> dict[str, Any]:
    """What the converter writes for every model that has it."""
    ropes = c.get("rope_parameters") or {}
    rope = ropes.get("full_attention", ropes)
    first = {
        "block_count": ("num_hidden_layers", "n_layer"), "context_length": ("max_position_embeddings", "n_positions"),
        "embedding_length": ("hidden_size", "n_embd"), "feed_forward_length": ("intermediate_size", "n_inner"),
        "attention.head_count": ("num_attention_heads", "n_head"), "attention.head_count_kv": ("num_key_value_heads",),
        "attention.layer_norm_rms_epsilon": ("rms_norm_eps", "norm_eps"),
        "attention.layer_norm_epsilon": ("layer_norm_eps", "layer_norm_epsilon", "norm_epsilon"),
        "expert_count": ("num_local_experts", "num_experts", "n_routed_experts"),
        "expert_used_count": ("num_experts_per_tok", "top_k_experts"), "expert_group_count": ("n_group",),
        "expert_group_used_count": ("topk_group",), "attention.key_length": ("head_dim",), "attention.value_length": ("head_dim",),
    }  # fmt: skip
    said = {key: next((c[n] for n in names if c.get(n) is not None), None) for key, names in first.items()}
    said["rope.freq_base"] = rope.get("rope_theta")
    said["rope.freq_base_swa"] = ropes.get("sliding_attention", {}).get("rope_theta")
    if rope.get("rope_type") == "yarn":
        said |= {
            "rope.scaling.type": "yarn", "rope.scaling.factor": rope["factor"],
            "rope.scaling.original_context_length": rope["original_max_position_embeddings"],
            "rope.scaling.yarn_attn_factor": rope.get("attention_factor"),
            "rope.scaling.yarn_beta_fast": rope.get("beta_fast"), "rope.scaling.yarn_beta_slow": rope.get("beta_slow"),
        }  # fmt: skip
    return {key: value for key, value in said.items() if value is not None}


def windows(c: Config) -> dict[str, Any]:
    return {
        "attention.sliding_window": c["sliding_window"],
        "attention.sliding_window_pattern": [t == "sliding_attention" for t in c["layer_types"]],
    }  # fmt: skip


def head_dim(c: Config) -> int:
    return c.get("head_dim") or c["hidden_size"] // c["num_attention_heads"]


def turning(c: Config, share: float = 1.0) -> dict[str, Any]:
    return {"rope.dimension_count": int(head_dim(c) * (c.get("rope_parameters") or {}).get("partial_rotary_factor", share))}


def halves(name: str, w: np.ndarray, c: Config) -> Made:
    """Experts in one tensor, first all of gate."""
    if name.endswith("experts.gate_up_proj"):
        half = w.shape[1] // 2
        yield name.replace("gate_up_proj", "gate_proj.weight"), w[:, :half]
        yield name.replace("gate_up_proj", "up_proj.weight"), w[:, half:]
    else:
        yield name + (".weight" if name.endswith("experts.down_proj") else ""), w


def raised(name: str, w: np.ndarray, c: Config) -> Made:
    yield name, w + np.float32(1) if name.endswith("norm.weight") else w


def turned(name: str, w: np.ndarray, c: Config) -> Made:
    heads = {"q_proj": c["num_attention_heads"], "k_proj": c["num_key_value_heads"]}
    found = next((n for part, n in heads.items() if f"{part}." in name), 0)
    yield name, permuted(w, found) if found else w


def _oss(name: str, w: np.ndarray, c: Config) -> Made:
    if name.endswith("sinks"):
        yield f"{name}.weight", w
    elif "gate_up_proj" in name:
        kind, w = (".bias", w) if name.endswith("_bias") else (".weight", w.swapaxes(1, 2))
        base = name.removesuffix("_bias").removesuffix("gate_up_proj")
        yield f"{base}gate_proj{kind}", w[:, ::2]
        yield f"{base}up_proj{kind}", w[:, 1::2]
    elif name.endswith("down_proj_bias"):
        yield name.replace("_bias", ".bias"), w
    else:
        yield (f"{name}.weight", w.swapaxes(1, 2)) if name.endswith("down_proj") else (name, w)


def _rates(name: str, w: np.ndarray) -> tuple[str, np.ndarray]:
    """What all recurrent layers have changed alike."""
    if name.endswith(".A_log"):
        return name, -np.exp(w)
    if name.endswith(".dt_bias"):
        return name.replace(".dt_bias", ".dt_proj.bias"), w
    return name, w[:, 0] if "conv1d.weight" in name or "conv.conv.weight" in name else w


def _next(name: str, w: np.ndarray, c: Config) -> Made:
    """Of each head of keys q, k, its v and its z lie together: they are put apart."""
    layer = name.split(".")[2]
    if "in_proj_qkvz" in name:
        keys, k, v = c["linear_num_key_heads"], c["linear_key_head_dim"], c["linear_value_head_dim"]
        many = c["linear_num_value_heads"] // keys * v
        each = w.reshape(keys, 2 * k + 2 * many, -1)
        parts = [each[:, a:b].reshape(-1, w.shape[1]) for a, b in ((0, k), (k, 2 * k), (2 * k, 2 * k + many), (2 * k + many, None))]
        yield f"blk.{layer}.attn_qkv.weight", np.concatenate(parts[:3])
        yield f"blk.{layer}.attn_gate.weight", parts[3]
        return
    name, w = _rates(name, w)
    yield from halves(name, w + np.float32(1) if name.endswith("norm.weight") and "linear_attn" not in name else w, c)


def _tiled(name: str, w: np.ndarray, c: Config) -> Made:
    """Qwen3.5: heads of values by their place among those of a head of keys."""
    keys, values = c["linear_num_key_heads"], c["linear_num_value_heads"]

    def moved(a: np.ndarray, size: int, first: int = 0) -> np.ndarray:
        rest = a[first:].reshape(keys, values // keys, size, *a.shape[1:]).swapaxes(0, 1)
        return np.concatenate([a[:first], rest.reshape(-1, *a.shape[1:])])

    first, v = 2 * keys * c["linear_key_head_dim"], c["linear_value_head_dim"]
    if ".linear_attn." in name:
        if "in_proj_qkv." in name or "conv1d" in name:
            w = moved(w, v, first)
        elif "in_proj_z" in name:
            w = moved(w, v)
        elif name.endswith(("in_proj_a.weight", "in_proj_b.weight", "A_log", "dt_bias")):
            w = moved(w, 1)
        elif "out_proj" in name:
            w = moved(w.T, v).T
    yield from _next(name, w, c)


def _delta_keys(c: Config) -> dict[str, Any]:
    said = {
        "ssm.conv_kernel": c["linear_conv_kernel_dim"], "ssm.state_size": c["linear_key_head_dim"],
        "ssm.group_count": c["linear_num_key_heads"], "ssm.time_step_rank": c["linear_num_value_heads"],
        "ssm.inner_size": c["linear_num_value_heads"] * c["linear_value_head_dim"], "full_attention_interval": 4,
        "expert_feed_forward_length": c.get("moe_intermediate_size"),
        "expert_shared_feed_forward_length": c.get("shared_expert_intermediate_size"), **turning(c, 0.25),
    }  # fmt: skip
    return {key: value for key, value in said.items() if value is not None}


def _gemma3n(name: str, w: np.ndarray, c: Config) -> Made:
    if found := re.fullmatch(r"model\.altup_(projections|unembed_projections)\.(\d+)\.weight", name):
        yield f"model.altup_{found[1]}.#.{found[2]}.weight", w  # stacked, as experts are
    elif name.endswith("correct_output_scale"):
        yield f"{name}.weight", w
    else:
        yield name, w


def _gemma3n_keys(c: Config) -> dict[str, Any]:
    return windows(c) | {
        "altup.active_idx": c["altup_active_idx"], "altup.num_inputs": c["altup_num_inputs"],
        "embedding_length_per_layer_input": c["hidden_size_per_layer_input"],
        "attention.shared_kv_layers": c["num_kv_shared_layers"], "final_logit_softcapping": c["final_logit_softcapping"],
        "activation_sparsity_scale": [
            NormalDist().inv_cdf(share) if share else -math.inf for share in c["activation_sparsity_pattern"]
        ],
    }  # fmt: skip


def _gemma4(name: str, w: np.ndarray, c: Config) -> Made:
    layer = name.split(".")[2]
    own = {"layer_scalar": "layer_output_scale.weight", "router.scale": "ffn_gate_inp.scale",
           "router.per_expert_scale": "ffn_down_exps.scale", "experts.gate_up_proj": "ffn_gate_up_exps.weight",
           "experts.down_proj": "ffn_down_exps.weight"}  # fmt: skip
    found = next((to for end, to in own.items() if name.endswith(end)), None)
    yield (f"blk.{layer}.{found}", w) if found else (name, w)


def _gemma4_keys(c: Config) -> dict[str, Any]:
    own = (c.get("per_layer_config") or {}).values()
    full = c.get("global_head_dim") or next(each["head_dim"] for each in own if "head_dim" in each)
    few = c.get("num_global_key_value_heads") or next(
        (each["num_key_value_heads"] for each in own if "num_key_value_heads" in each), c["num_key_value_heads"]
    )
    local = [t == "sliding_attention" for t in c["layer_types"]]
    said = windows(c) | {
        "attention.key_length": full, "attention.value_length": full, "attention.key_length_swa": c["head_dim"],
        "attention.value_length_swa": c["head_dim"], "attention.shared_kv_layers": c["num_kv_shared_layers"],
        "embedding_length_per_layer_input": c.get("hidden_size_per_layer_input") or 0,
        "attention.head_count_kv": [c["num_key_value_heads"] if one else few for one in local],
        "expert_feed_forward_length": c.get("moe_intermediate_size"), "rope.dimension_count": full,
        "rope.dimension_count_swa": c["head_dim"], "final_logit_softcapping": c.get("final_logit_softcapping"),
    }  # fmt: skip
    return {key: value for key, value in said.items() if value is not None}


def _gemma4_extra(c: Config) -> dict[str, np.ndarray]:
    """1 for what turns, and 1e30 for what does not."""
    full, share = _gemma4_keys(c)["attention.key_length"], c["rope_parameters"]["full_attention"]["partial_rotary_factor"]
    turns = int(full * share / 2)
    return {"rope_freqs.weight": np.array([1.0] * turns + [1e30] * (full // 2 - turns), np.float32)}


def _llama4(name: str, w: np.ndarray, c: Config) -> Made:
    if "gate_up_proj" in name:
        yield from halves(name, w.swapaxes(1, 2), c)
    else:
        yield (f"{name}.weight", w.swapaxes(1, 2)) if name.endswith("experts.down_proj") else (name, w)


def _granite(name: str, w: np.ndarray, c: Config) -> Made:
    """Experts' gate and up apart, and those of the one that every token goes to."""
    layer, half = name.split(".")[2], w.shape[-2] // 2 if w.ndim > 1 else 0
    end = "_shexp" if c.get("num_local_experts") else ""
    if name.endswith("block_sparse_moe.input_linear.weight"):
        yield f"blk.{layer}.ffn_gate_exps.weight", w[:, :half]
        yield f"blk.{layer}.ffn_up_exps.weight", w[:, half:]
    elif name.endswith("shared_mlp.input_linear.weight"):
        yield f"blk.{layer}.ffn_gate{end}.weight", w[:half]
        yield f"blk.{layer}.ffn_up{end}.weight", w[half:]
    elif name.endswith("shared_mlp.output_linear.weight"):
        yield f"blk.{layer}.ffn_down{end}.weight", w
    elif ".mamba." in name:
        yield from _second(name, w, c)
    else:
        yield from turned(name, w, c)


def _granite_keys(c: Config) -> dict[str, Any]:
    said = {
        "attention.scale": c["attention_multiplier"], "embedding_scale": c["embedding_multiplier"],
        "residual_scale": c["residual_multiplier"], "logit_scale": c["logits_scaling"],
        "expert_shared_feed_forward_length": c.get("shared_intermediate_size"), "rope.dimension_count": head_dim(c),
    }  # fmt: skip
    return {key: value for key, value in said.items() if value is not None}


def _second(name: str, w: np.ndarray, c: Config) -> Made:
    """Mamba-2: vectors in two dimensions."""
    groups = c.get("mamba_n_groups") or c.get("n_groups") or 1
    name, w = _rates(name, w)
    if name.endswith((".A_log", ".D")):
        w = w.reshape(-1, 1)
    elif name.endswith(("mixer.norm.weight", "mamba.norm.weight")):
        w = w.reshape(groups, -1)
    yield name, w


def _sizes(c: Config) -> dict[str, Any]:
    heads = c.get("mamba_n_heads") or c.get("mamba_num_heads") or c["num_heads"]
    inner = c.get("mamba_d_ssm") or (
        heads * (c.get("mamba_head_dim") or c["head_dim"]) if "mamba_num_heads" in c or "num_heads" in c
        else c["mamba_expand"] * c["hidden_size"]
    )  # fmt: skip
    return {
        "ssm.conv_kernel": c.get("mamba_d_conv") or c.get("conv_kernel"), "ssm.inner_size": inner,
        "ssm.state_size": c.get("mamba_d_state") or c.get("ssm_state_size") or c.get("state_size"),
        "ssm.time_step_rank": heads, "ssm.group_count": c.get("mamba_n_groups") or c.get("n_groups"),
    }  # fmt: skip


_ATTENDS = ("attention", "full_attention")


def _hybrid_keys(c: Config) -> dict[str, Any]:
    kv = [c["num_key_value_heads"] if kind in _ATTENDS else 0 for kind in c["layer_types"]]
    turns = c.get("position_embedding_type") == "rope"
    return _granite_keys(c) | _sizes(c) | {"attention.head_count_kv": kv, "rope.scaling.finetuned": turns}


def _nemotron_h_keys(c: Config) -> dict[str, Any]:
    kinds = c.get("layers_block_type") or c["layer_types"]
    return _sizes(c) | {
        "attention.layer_norm_rms_epsilon": c["layer_norm_epsilon"], "attention.layer_norm_epsilon": c["layer_norm_epsilon"],
        "attention.head_count_kv": [c["num_key_value_heads"] if kind in _ATTENDS else 0 for kind in kinds],
        "feed_forward_length": [c["moe_intermediate_size"] if kind == "moe" else 0 for kind in kinds],
        "expert_feed_forward_length": c["moe_intermediate_size"], "expert_weights_norm": c["norm_topk_prob"],
        "expert_shared_feed_forward_length": c["moe_shared_expert_intermediate_size"], "expert_shared_count": 1,
        "expert_weights_scale": c["routed_scaling_factor"], "moe_latent_size": c["moe_latent_size"],
    }  # fmt: skip


def _first(name: str, w: np.ndarray, c: Config) -> Made:
    yield _rates(name, w)


def _mamba_keys(c: Config) -> dict[str, Any]:
    return {
        "context_length": 1 << 20, "feed_forward_length": 0, "attention.head_count": 0, "attention.head_count_kv": 0,
        "ssm.conv_kernel": c["conv_kernel"], "ssm.state_size": c["state_size"],
        "attention.layer_norm_rms_epsilon": c["layer_norm_epsilon"],
    } | (
        _sizes(c) if "num_heads" in c
        else {"ssm.time_step_rank": c["time_step_rank"], "ssm.inner_size": c["intermediate_size"],
              "ssm.dt_b_c_rms": c["model_type"] == "falcon_mamba"}
    )  # fmt: skip


def _jamba_keys(c: Config) -> dict[str, Any]:
    kv = [
        c["num_key_value_heads"] if i % c["attn_layer_period"] == c["attn_layer_offset"] else 0
        for i in range(c["num_hidden_layers"])
    ]
    return {
        "attention.head_count_kv": kv, "ssm.conv_kernel": c["mamba_d_conv"], "ssm.state_size": c["mamba_d_state"],
        "ssm.inner_size": c["mamba_expand"] * c["hidden_size"], "ssm.time_step_rank": c["mamba_dt_rank"],
    }  # fmt: skip


def _jamba(name: str, w: np.ndarray, c: Config) -> Made:
    name, w = _rates(name, w)
    yield name.replace("feed_forward.experts", "mlp.experts"), w


def _falcon_h1(name: str, w: np.ndarray, c: Config) -> Made:
    """Multipliers go into the weights."""
    (gate, down), inner, shared = c["mlp_multipliers"], c["mamba_d_ssm"], c["mamba_n_groups"] * c["mamba_d_state"]
    by = {
        "mlp.down_proj": down, "feed_forward.down_proj": down, "feed_forward.gate_proj": gate,
        "k_proj": c["key_multiplier"] * c["attention_in_multiplier"], "q_proj": c["attention_in_multiplier"],
        "v_proj": c["attention_in_multiplier"], "self_attn.o_proj": c["attention_out_multiplier"],
        "mamba.out_proj": c["ssm_out_multiplier"], "mamba.in_proj": c["ssm_in_multiplier"],
        "lm_head": c["lm_head_multiplier"], "embed_tokens": c["embedding_multiplier"],
    }  # fmt: skip
    w = w * np.float32(next((n for part, n in by.items() if f"{part}." in name), 1.0))
    if "mamba.in_proj" in name:
        parts = np.repeat(c["ssm_multipliers"], [inner, inner, shared, shared, c["mamba_n_heads"]])
        w = w * parts[:, None].astype(np.float32)
    yield from _second(name, w, c)


def _grouped(c: Config, kv: int, w: np.ndarray) -> np.ndarray:
    """q, k and v that lie together for each head of keys, one after the other."""
    size = c["hidden_size"] // c["num_attention_heads"]
    each = w.reshape(kv, -1, size, *w.shape[1:])
    return np.concatenate([part.reshape(-1, *w.shape[1:]) for part in (each[:, :-2], each[:, -2:-1], each[:, -1:])])


def _neox(name: str, w: np.ndarray, c: Config) -> Made:
    yield name, _grouped(c, c["num_attention_heads"], w) if "query_key_value" in name else w


def _falcon(name: str, w: np.ndarray, c: Config) -> Made:
    yield name, _grouped(c, c.get("num_kv_heads") or 1, w) if "query_key_value" in name else w


def _gpt2(name: str, w: np.ndarray, c: Config) -> Made:
    yield name, w.T if name.endswith((".c_attn.weight", ".c_proj.weight", ".c_fc.weight")) else w


def _lfm2(name: str, w: np.ndarray, c: Config) -> Made:
    if name.endswith("expert_bias"):
        name += ".bias"
    name, w = _rates(name, w)
    for ours, theirs in (("w1", "gate_proj"), ("w2", "down_proj"), ("w3", "up_proj")):
        if ".experts." in name:
            name = name.replace(f".{ours}.", f".{theirs}.")
    yield name, w


def _lfm2_keys(c: Config) -> dict[str, Any]:
    said = {
        "attention.head_count_kv": [0 if kind == "conv" else c["num_key_value_heads"] for kind in c["layer_types"]],
        "shortconv.l_cache": c["conv_L_cache"], "attention.layer_norm_rms_epsilon": c["norm_eps"],
    }  # fmt: skip
    if "num_experts" in c:
        return said | {
            "expert_feed_forward_length": c["moe_intermediate_size"], "leading_dense_block_count": c["num_dense_layers"],
            "expert_gating_func": 2,
        }  # fmt: skip
    return said | {"feed_forward_length": 64}


def _correction(name: str, w: np.ndarray, c: Config) -> Made:
    yield name.replace("e_score_correction_bias", "e_score_correction.bias"), w


def _minimax(name: str, w: np.ndarray, c: Config) -> Made:
    for ours, theirs in (("w1", "gate_proj"), ("w2", "down_proj"), ("w3", "up_proj")):
        name = name.replace(f".{ours}.", f".{theirs}.") if ".experts." in name else name
    yield from _correction(name.replace("block_sparse_moe.experts", "mlp.experts"), w, c)


def _phi3_extra(c: Config) -> dict[str, np.ndarray]:
    rope = c["rope_parameters"]
    return {
        f"rope_factors_{kind}.weight": np.array(rope[f"{kind}_factor"], np.float32) for kind in ("long", "short") if f"{kind}_factor" in rope
    }  # fmt: skip


def _phi3_keys(c: Config) -> dict[str, Any]:
    rope = c["rope_parameters"]
    original = rope.get("original_max_position_embeddings") or c.get("original_max_position_embeddings") or 4096
    said = turning(c) | {"attention.sliding_window": c.get("sliding_window") or 0, "rope.scaling.original_context_length": original}
    if "long_factor" in rope:
        scale = c["max_position_embeddings"] / original
        said["rope.scaling.attn_factor"] = math.sqrt(1 + math.log(scale) / math.log(original))
    return said


def _moe(*names: str) -> Callable[[Config], dict[str, Any]]:
    known = {
        "inner": lambda c: {"expert_feed_forward_length": c["moe_intermediate_size"]},
        "shared": lambda c: {"expert_shared_feed_forward_length": c["shared_expert_intermediate_size"]},
        "glm": lambda c: {
            "expert_shared_count": c["n_shared_experts"], "leading_dense_block_count": c["first_k_dense_replace"],
            "expert_gating_func": 2, "expert_weights_scale": c["routed_scaling_factor"],
            "expert_weights_norm": c["norm_topk_prob"], **turning(c, 0.5),
        },
    }  # fmt: skip
    return lambda c: {key: value for name in names for key, value in known[name](c).items()}


_LLAMA4 = {"attention_chunk_size": 8192, "floor_scale": 8192, "attn_scale": 0.1}
FAMILIES: dict[str, Family] = {
    "gpt-oss": Family("gpt-oss", lambda c: {
        "attention.sliding_window": c["sliding_window"], "expert_feed_forward_length": c["intermediate_size"]}, _oss),
    "qwen3-next": Family("qwen3next", _delta_keys, _next, {"mlp_only_layers": []}),
    "qwen3.5": Family("qwen35", _delta_keys, _tiled),
    "qwen3.5-moe": Family("qwen35moe", _delta_keys, _tiled),
    "gemma": Family("gemma", change=raised),
    "gemma2": Family("gemma2", lambda c: {
        "attention.sliding_window": c["sliding_window"], "attn_logit_softcapping": c["attn_logit_softcapping"],
        "final_logit_softcapping": c["final_logit_softcapping"]}, raised),
    "gemma3n": Family("gemma3n", _gemma3n_keys, _gemma3n),
    "gemma4-dense": Family("gemma4", _gemma4_keys, _gemma4, extra=_gemma4_extra),
    "gemma4-moe": Family("gemma4", _gemma4_keys, _gemma4, extra=_gemma4_extra),
    "phi3": Family("phi3", _phi3_keys, extra=_phi3_extra),
    "phi4-mini": Family("phi3", _phi3_keys, extra=_phi3_extra),
    "glm4-moe": Family("glm4moe", _moe("inner", "glm"), _correction),
    "qwen2-moe": Family("qwen2moe", _moe("inner", "shared"), halves, {"mlp_only_layers": []}),
    "llama4": Family("llama4", lambda c: {
        "feed_forward_length": c["intermediate_size_mlp"], "expert_feed_forward_length": c["intermediate_size"],
        "interleave_moe_layer_step": c["interleave_moe_layer_step"], "rope.dimension_count": c["head_dim"]}, _llama4, _LLAMA4),
    "granite": Family("granite", _granite_keys, turned),
    "granite-moe": Family("granitemoe", _granite_keys, _granite),
    "granite-hybrid": Family("granitehybrid", _hybrid_keys, _granite),
    "granite-hybrid-dense": Family("granitehybrid", _hybrid_keys, _granite),
    "nemotron-h": Family("nemotron_h_moe", _nemotron_h_keys, lambda name, w, c: _second(*next(_correction(name, w, c)), c), {
        "time_step_min": 1e-3, "hybrid_override_pattern": "ME*M*EM", "n_group": 1, "topk_group": 1}),
    "mamba": Family("mamba", _mamba_keys, _first),
    "falcon-mamba": Family("mamba", _mamba_keys, _first),
    "mamba2": Family("mamba2", _mamba_keys, _second, {"time_step_limit": (0.0, float("inf"))}),
    "jamba": Family("jamba", _jamba_keys, _jamba),
    "falcon-h1": Family("falcon-h1", _sizes, _falcon_h1, {
        "attention_bias": False, "mamba_proj_bias": False, "projectors_bias": False, "mamba_norm_before_gate": False}),
    "lfm2": Family("lfm2", _lfm2_keys, _lfm2),
    "lfm2-moe": Family("lfm2moe", _lfm2_keys, _lfm2),
    "olmo2": Family("olmo2"),
    "olmo3": Family("olmo2", windows),
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
        _correction),
    "exaone4": Family("exaone4", windows),
    "exaone4-full": Family("exaone4"),
    "seed-oss": Family("seed_oss"),
    "hunyuan": Family("hunyuan-dense", edits={"rope_parameters": {"rope_type": "default", "rope_theta": 11158840.0}}),
    "minimax-m2": Family("minimax-m2", lambda c: {
        "expert_feed_forward_length": c["intermediate_size"], "expert_gating_func": 2, **turning(c)}, _minimax),
    "starcoder2": Family("starcoder2", edits={"sliding_window": None}),
    "phi": Family("phi2", lambda c: {"feed_forward_length": 4 * c["hidden_size"], **turning(c, 0.5)}),
    "gpt2": Family("gpt2", lambda c: {"feed_forward_length": 4 * c["n_embd"]}, _gpt2),
    "gpt-neox": Family("gptneox", lambda c: {"use_parallel_residual": c["use_parallel_residual"], **turning(c, 0.25)}, _neox),
    "falcon": Family("falcon", lambda c: {
        "context_length": 2048, "feed_forward_length": 4 * c["hidden_size"], "attention.head_count_kv": 1}, _falcon),
    "falcon-40b": Family("falcon", lambda c: {
        "context_length": 2048, "feed_forward_length": 4 * c["hidden_size"], "attention.head_count_kv": c["num_kv_heads"]},
        _falcon),
}  # fmt: skip


def convert_family(name: str, source: Path, file: Path, kind: Callable[[str, np.ndarray], str] = lambda name, w: "F32") -> Path:
    """kind: (name in the file, values) -> the type that they are written in."""
    family, c = FAMILIES[name], json.loads((source / "config.json").read_text())
    writer = gguf.GGUFWriter(file, family.arch)
    for key, value in (common(c) | dict(family.keys(c))).items():
        key = f"{family.arch}.{key}"
        if isinstance(value, bool):
            writer.add_bool(key, value)
        elif isinstance(value, list):
            writer.add_array(key, value)
        elif isinstance(value, str):
            writer.add_string(key, value)
        else:
            (writer.add_uint32 if isinstance(value, int) else writer.add_float32)(key, value)
    _byte_vocabulary(writer, source)
    numbers = {number: arch for arch, number in ((n, a) for n, a in gguf.MODEL_ARCH_NAMES.items())}
    table = gguf.get_tensor_name_map(numbers[family.arch], common(c)["block_count"])
    for made, w in _stacked(family, c, load_file(source / "model.safetensors")).items():
        known = made if made.startswith("blk.") else table.get_name(made, (".weight", ".bias"))
        assert known is not None, made
        wanted = gguf.GGMLQuantizationType[kind(known, w) if w.ndim > 1 else "F32"]
        writer.add_tensor(known, gguf.quantize(np.ascontiguousarray(w), wanted), raw_dtype=wanted)
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
