"""How llama.cpp's converter changes tensors, and what keys it writes, said again from its definition. For tests."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from statistics import NormalDist
from typing import Any

import numpy as np
from converted import permuted
from safetensors.numpy import load_file, save_file

Config = Mapping[str, Any]
Made = Iterator[tuple[str, np.ndarray]]


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
        "expert_group_used_count": ("topk_group",), "attention.key_length": ("head_dim",),
        "attention.value_length": ("head_dim",),
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


def layer_of(name: str) -> str:
    found = re.search(r"\.layers\.(\d+)\.", name)
    return found[1] if found else ""


def windows(c: Config) -> dict[str, Any]:
    return {
        "attention.sliding_window": c["sliding_window"],
        "attention.sliding_window_pattern": [t == "sliding_attention" for t in c["layer_types"]],
    }  # fmt: skip


def head_dim(c: Config) -> int:
    return c.get("head_dim") or c["hidden_size"] // c["num_attention_heads"]


def turning(c: Config, share: float = 1.0) -> dict[str, Any]:
    return {"rope.dimension_count": int(head_dim(c) * (c.get("rope_parameters") or {}).get("partial_rotary_factor", share))}


def nemotron_h(name: str, w: np.ndarray, c: Config) -> Made:
    name, w = next(correction(name, w, c))
    if ".experts." in name:
        name = name.replace("backbone", "model").replace("mixer.experts", "mlp.experts")
    yield from turned(*next(mamba_second(name, w, c)), c)


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


def gpt_oss(name: str, w: np.ndarray, c: Config) -> Made:
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


def rates(name: str, w: np.ndarray) -> tuple[str, np.ndarray]:
    """What all recurrent layers have changed alike."""
    if name.endswith(".A_log"):
        return name, -np.exp(w)
    if name.endswith(".dt_bias"):
        return name.replace(".dt_bias", ".dt_proj.bias"), w
    return name, w[:, 0] if "conv1d.weight" in name or "conv.conv.weight" in name else w


def qwen_next(name: str, w: np.ndarray, c: Config) -> Made:
    """Of each head of keys q, k, its v and its z lie together: they are put apart."""
    layer = layer_of(name)
    if "in_proj_qkvz" in name:
        keys, k, v = c["linear_num_key_heads"], c["linear_key_head_dim"], c["linear_value_head_dim"]
        many = c["linear_num_value_heads"] // keys * v
        each = w.reshape(keys, 2 * k + 2 * many, -1)
        parts = [
            each[:, a:b].reshape(-1, w.shape[1]) for a, b in ((0, k), (k, 2 * k), (2 * k, 2 * k + many), (2 * k + many, None))
        ]
        yield f"blk.{layer}.attn_qkv.weight", np.concatenate(parts[:3])
        yield f"blk.{layer}.attn_gate.weight", parts[3]
        return
    name, w = rates(name, w)
    yield from halves(name, w + np.float32(1) if name.endswith("norm.weight") and "linear_attn" not in name else w, c)


def qwen_tiled(name: str, w: np.ndarray, c: Config) -> Made:
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
    yield from qwen_next(name, w, c)


def delta_keys(c: Config) -> dict[str, Any]:
    said = {
        "ssm.conv_kernel": c["linear_conv_kernel_dim"], "ssm.state_size": c["linear_key_head_dim"],
        "ssm.group_count": c["linear_num_key_heads"], "ssm.time_step_rank": c["linear_num_value_heads"],
        "ssm.inner_size": c["linear_num_value_heads"] * c["linear_value_head_dim"], "full_attention_interval": 4,
        "expert_feed_forward_length": c.get("moe_intermediate_size"),
        "expert_shared_feed_forward_length": c.get("shared_expert_intermediate_size"), **turning(c, 0.25),
    }  # fmt: skip
    return {key: value for key, value in said.items() if value is not None}


def gemma3n(name: str, w: np.ndarray, c: Config) -> Made:
    if found := re.fullmatch(r"model\.altup_(projections|unembed_projections)\.(\d+)\.weight", name):
        yield f"model.altup_{found[1]}.#.{found[2]}.weight", w  # stacked, as experts are
    elif name.endswith("correct_output_scale"):
        yield f"{name}.weight", w
    else:
        yield name, w


def gemma3n_keys(c: Config) -> dict[str, Any]:
    return windows(c) | {
        "altup.active_idx": c["altup_active_idx"], "altup.num_inputs": c["altup_num_inputs"],
        "embedding_length_per_layer_input": c["hidden_size_per_layer_input"],
        "attention.shared_kv_layers": c["num_kv_shared_layers"], "final_logit_softcapping": c["final_logit_softcapping"],
        "activation_sparsity_scale": [
            NormalDist().inv_cdf(share) if share else -math.inf for share in c["activation_sparsity_pattern"]
        ],
    }  # fmt: skip


def gemma4(name: str, w: np.ndarray, c: Config) -> Made:
    layer = layer_of(name)
    own = {"layer_scalar": "layer_output_scale.weight", "router.scale": "ffn_gate_inp.scale",
           "router.per_expert_scale": "ffn_down_exps.scale", "experts.gate_up_proj": "ffn_gate_up_exps.weight",
           "experts.down_proj": "ffn_down_exps.weight"}  # fmt: skip
    found = next((to for end, to in own.items() if name.endswith(end)), None)
    yield (f"blk.{layer}.{found}", w) if found else (name, w)


def gemma4_keys(c: Config) -> dict[str, Any]:
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


def gemma4_extra(c: Config) -> dict[str, np.ndarray]:
    """1 for what turns, and 1e30 for what does not."""
    full, share = gemma4_keys(c)["attention.key_length"], c["rope_parameters"]["full_attention"]["partial_rotary_factor"]
    turns = int(full * share / 2)
    return {"rope_freqs.weight": np.array([1.0] * turns + [1e30] * (full // 2 - turns), np.float32)}


def llama4(name: str, w: np.ndarray, c: Config) -> Made:
    if "gate_up_proj" in name:
        yield from halves(name, w.swapaxes(1, 2), c)
    else:
        yield (f"{name}.weight", w.swapaxes(1, 2)) if name.endswith("experts.down_proj") else (name, w)


def granite(name: str, w: np.ndarray, c: Config) -> Made:
    """Experts' gate and up apart, and those of the one that every token goes to."""
    layer, half = layer_of(name), w.shape[-2] // 2 if w.ndim > 1 else 0
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
        yield from mamba_second(name, w, c)
    else:
        yield from turned(name, w, c)


def granite_keys(c: Config) -> dict[str, Any]:
    said = {
        "attention.scale": c["attention_multiplier"], "embedding_scale": c["embedding_multiplier"],
        "residual_scale": c["residual_multiplier"], "logit_scale": c["logits_scaling"],
        "expert_shared_feed_forward_length": c.get("shared_intermediate_size"), "rope.dimension_count": head_dim(c),
    }  # fmt: skip
    return {key: value for key, value in said.items() if value is not None}


def mamba_second(name: str, w: np.ndarray, c: Config) -> Made:
    """Mamba-2: vectors in two dimensions."""
    groups = c.get("mamba_n_groups") or c.get("n_groups") or 1
    name, w = rates(name, w)
    if name.endswith((".A_log", ".D")):
        w = w.reshape(-1, 1)
    elif name.endswith(("mixer.norm.weight", "mamba.norm.weight")):
        w = w.reshape(groups, -1)
    yield name, w


def mamba_sizes(c: Config) -> dict[str, Any]:
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


def hybrid_keys(c: Config) -> dict[str, Any]:
    kv = [c["num_key_value_heads"] if kind in _ATTENDS else 0 for kind in c["layer_types"]]
    turns = c.get("position_embedding_type") == "rope"
    return granite_keys(c) | mamba_sizes(c) | {"attention.head_count_kv": kv, "rope.scaling.finetuned": turns}


def nemotron_h_keys(c: Config) -> dict[str, Any]:
    kinds = c.get("layers_block_type") or c["layer_types"]
    return mamba_sizes(c) | {
        "block_count": len(kinds),
        "attention.layer_norm_rms_epsilon": c["layer_norm_epsilon"], "attention.layer_norm_epsilon": c["layer_norm_epsilon"],
        "attention.head_count_kv": [c["num_key_value_heads"] if kind in _ATTENDS else 0 for kind in kinds],
        "feed_forward_length": [c["moe_intermediate_size"] if kind == "moe" else 0 for kind in kinds],
        "expert_feed_forward_length": c["moe_intermediate_size"], "expert_weights_norm": c["norm_topk_prob"],
        "expert_shared_feed_forward_length": c["moe_shared_expert_intermediate_size"], "expert_shared_count": 1,
        "expert_weights_scale": c["routed_scaling_factor"], "moe_latent_size": c["moe_latent_size"],
    }  # fmt: skip


def mamba_first(name: str, w: np.ndarray, c: Config) -> Made:
    yield rates(name, w)


def mamba_keys(c: Config) -> dict[str, Any]:
    return {
        "context_length": 1 << 20, "feed_forward_length": 0, "attention.head_count": 0, "attention.head_count_kv": 0,
        "ssm.conv_kernel": c["conv_kernel"], "ssm.state_size": c["state_size"],
        "attention.layer_norm_rms_epsilon": c["layer_norm_epsilon"],
    } | (
        mamba_sizes(c) if "num_heads" in c
        else {"ssm.time_step_rank": c["time_step_rank"], "ssm.inner_size": c["intermediate_size"],
              "ssm.dt_b_c_rms": c["model_type"] == "falcon_mamba"}
    )  # fmt: skip


def jamba_keys(c: Config) -> dict[str, Any]:
    kv = [
        c["num_key_value_heads"] if i % c["attn_layer_period"] == c["attn_layer_offset"] else 0
        for i in range(c["num_hidden_layers"])
    ]
    return {
        "attention.head_count_kv": kv, "ssm.conv_kernel": c["mamba_d_conv"], "ssm.state_size": c["mamba_d_state"],
        "ssm.inner_size": c["mamba_expand"] * c["hidden_size"], "ssm.time_step_rank": c["mamba_dt_rank"],
    }  # fmt: skip


def jamba(name: str, w: np.ndarray, c: Config) -> Made:
    name, w = rates(name, w)
    yield name.replace("feed_forward.experts", "mlp.experts"), w


def falcon_h1(name: str, w: np.ndarray, c: Config) -> Made:
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
    yield from mamba_second(name, w, c)


def ungrouped(c: Config, kv: int, w: np.ndarray) -> np.ndarray:
    """q, k and v that lie together for each head of keys, one after the other."""
    size = c["hidden_size"] // c["num_attention_heads"]
    each = w.reshape(kv, -1, size, *w.shape[1:])
    return np.concatenate([part.reshape(-1, *w.shape[1:]) for part in (each[:, :-2], each[:, -2:-1], each[:, -1:])])


def gpt_neox(name: str, w: np.ndarray, c: Config) -> Made:
    yield name, ungrouped(c, c["num_attention_heads"], w) if "query_key_value" in name else w


def falcon(name: str, w: np.ndarray, c: Config) -> Made:
    yield name, ungrouped(c, c.get("num_kv_heads") or 1, w) if "query_key_value" in name else w


def gpt2(name: str, w: np.ndarray, c: Config) -> Made:
    yield name, w.T if name.endswith((".c_attn.weight", ".c_proj.weight", ".c_fc.weight")) else w


def lfm2(name: str, w: np.ndarray, c: Config) -> Made:
    if name.endswith("expert_bias"):
        name += ".bias"
    name, w = rates(name, w)
    for ours, theirs in (("w1", "gate_proj"), ("w2", "down_proj"), ("w3", "up_proj")):
        if ".experts." in name:
            name = name.replace(f".{ours}.", f".{theirs}.")
    yield name, w


def lfm2_keys(c: Config) -> dict[str, Any]:
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


def correction(name: str, w: np.ndarray, c: Config) -> Made:
    yield name.replace("e_score_correction_bias", "e_score_correction.bias"), w


def minimax(name: str, w: np.ndarray, c: Config) -> Made:
    for ours, theirs in (("w1", "gate_proj"), ("w2", "down_proj"), ("w3", "up_proj")):
        name = name.replace(f".{ours}.", f".{theirs}.") if ".experts." in name else name
    yield from correction(name.replace("block_sparse_moe.experts", "mlp.experts"), w, c)


def phi3_extra(c: Config) -> dict[str, np.ndarray]:
    rope = c["rope_parameters"]
    return {
        f"rope_factors_{kind}.weight": np.array(rope[f"{kind}_factor"], np.float32)
        for kind in ("long", "short")
        if f"{kind}_factor" in rope
    }  # fmt: skip


def phi3_keys(c: Config) -> dict[str, Any]:
    rope = c["rope_parameters"]
    original = rope.get("original_max_position_embeddings") or c.get("original_max_position_embeddings") or 4096
    said = turning(c) | {
        "attention.sliding_window": c.get("sliding_window") or 0,
        "rope.scaling.original_context_length": original,
    }
    if "long_factor" in rope:
        scale = c["max_position_embeddings"] / original
        said["rope.scaling.attn_factor"] = math.sqrt(1 + math.log(scale) / math.log(original))
    return said


def moe_keys(*names: str) -> Callable[[Config], dict[str, Any]]:
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


def stablelm(name: str, w: np.ndarray, c: Config) -> Made:
    """The norms of all heads in one tensor."""
    yield name.replace("layernorm.norms.", "layernorm.#."), w


def dots1(name: str, w: np.ndarray, c: Config) -> Made:
    yield from correction(*next(halves(name, w, c)), c) if "gate_up" not in name else halves(name, w, c)


def afmoe(name: str, w: np.ndarray, c: Config) -> Made:
    yield from halves(name.replace("expert_bias", "expert_bias.bias"), w, c)


def bloom(name: str, w: np.ndarray, c: Config) -> Made:
    w = ungrouped({**c, "num_attention_heads": c["n_head"]}, c["n_head"], w) if "query_key_value" in name else w
    yield name.removeprefix("transformer."), w


def mpt_keys(c: Config) -> dict[str, Any]:
    return {
        "context_length": c["max_seq_len"], "embedding_length": c["d_model"], "block_count": c["n_layers"],
        "attention.head_count": c["n_heads"], "attention.head_count_kv": None, "feed_forward_length": 4 * c["d_model"],
        "attention.layer_norm_epsilon": 1e-5, "attention.clamp_kqv": c["attn_config"]["clip_qkv"],
        "attention.max_alibi_bias": float(c["attn_config"]["alibi_bias_max"]),
    }  # fmt: skip


def llama3_factors(c: Config) -> dict[str, np.ndarray]:
    """The divisor of each frequency (Llama 3.1), 1 for short wavelengths."""
    rope, dim = c["rope_parameters"], head_dim(c)
    wave = 2 * np.pi * rope["rope_theta"] ** (np.arange(0, dim, 2) / dim)
    low, high, factor = rope["low_freq_factor"], rope["high_freq_factor"], rope["factor"]
    smooth = np.clip((rope["original_max_position_embeddings"] / wave - low) / (high - low), 0, 1)
    return {"rope_freqs.weight": (1 / ((1 - smooth) / factor + smooth)).astype(np.float32)}


def xielu(tensors: dict[str, np.ndarray], c: Config) -> dict[str, Any]:
    """The activation's numbers are arrays of metadata, one entry per layer, and no tensors."""
    return {
        f"xielu.{name}": [
            float(np.ravel(tensors.pop(f"model.layers.{i}.mlp.act_fn.{name}"))[0]) for i in range(c["num_hidden_layers"])
        ]
        for name in ("alpha_n", "alpha_p", "beta", "eps")
    }  # fmt: skip


def with_experts(directory: Path) -> None:
    """A Llama of two layers as a DeepSeek-MoE: its second layer has 6 experts and 2 shared ones. transformers has no such
    class: tests/models/test_by_other_names.py compares the family with parts of its others."""
    config, weights = json.loads((directory / "config.json").read_text()), load_file(directory / "model.safetensors")
    rng, hidden, at = np.random.default_rng(4), config["hidden_size"], "model.layers.1.mlp."
    for part in ("gate_proj", "up_proj", "down_proj"):
        del weights[f"{at}{part}.weight"]
        for name, inner in (("shared_experts", 48), *((f"experts.{i}", 24) for i in range(6))):
            shape = (hidden, inner) if part == "down_proj" else (inner, hidden)
            weights[f"{at}{name}.{part}.weight"] = rng.normal(0, shape[1] ** -0.5, shape).astype(np.float32)
    weights[f"{at}gate.weight"] = rng.normal(0, 0.3, (6, hidden)).astype(np.float32)
    save_file(weights, directory / "model.safetensors", metadata={"format": "pt"})
    more = {
        "architectures": ["DeepseekForCausalLM"], "model_type": "deepseek", "n_routed_experts": 6, "n_shared_experts": 2,
        "num_experts_per_tok": 2, "moe_intermediate_size": 24, "first_k_dense_replace": 1, "norm_topk_prob": False,
        "routed_scaling_factor": 1.0, "scoring_func": "softmax",
    }  # fmt: skip
    (directory / "config.json").write_text(json.dumps({**config, **more}))


def joint_qkv(tensors: dict[str, np.ndarray], c: Config) -> dict[str, Any]:
    """q, k and v of a layer in one tensor."""
    for i in range(c["num_hidden_layers"]):
        for kind in ("weight", "bias"):
            names = [f"model.layers.{i}.self_attn.{part}_proj.{kind}" for part in "qkv"]
            if names[0] in tensors:
                tensors[f"blk.{i}.attn_qkv.{kind}"] = np.concatenate([tensors.pop(name) for name in names])
    return {}
