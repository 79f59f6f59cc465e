"""Kimi K3's text part as its publisher defines it, in plain float64 operations over the tensors of a checkpoint, token by token
where it is recurrent. Tiny models for it, with the names and settings of published files."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from safetensors.torch import save_file
from torch import Tensor

VOCAB, ROOT = 96, "language_model."
TEXT: dict[str, Any] = {
    "model_type": "kimi_linear", "vocab_size": VOCAB, "hidden_size": 48, "num_hidden_layers": 5, "num_attention_heads": 4,
    "num_key_value_heads": 4, "intermediate_size": 80, "rms_norm_eps": 1e-5, "hidden_act": "situ", "activation_situ_beta": 1.5,
    "activation_situ_linear_beta": 2.5, "attn_res_block_size": 2, "q_lora_rank": 40, "kv_lora_rank": 32, "qk_nope_head_dim": 24,
    "qk_rope_head_dim": 16, "v_head_dim": 20, "mla_use_nope": True, "mla_use_output_gate": True, "num_experts": 8,
    "num_experts_per_token": 3, "num_shared_experts": 2, "moe_intermediate_size": 24, "moe_router_activation_func": "sigmoid",
    "moe_renormalize": True, "routed_scaling_factor": 1.7, "first_k_dense_replace": 1, "moe_layer_freq": 1,
    "use_grouped_topk": True, "num_expert_group": 1, "topk_group": 1, "routed_expert_hidden_size": 32,
    "latent_moe_use_norm": True, "model_max_length": 256, "tie_word_embeddings": False, "eos_token_id": 95,
    "linear_attn_config": {
        "num_heads": 3, "head_dim": 16, "short_conv_kernel_size": 4, "kda_layers": [1, 2, 4, 5], "full_attn_layers": [3],
        "gate_lower_bound": -5.0, "use_full_rank_gate": True,
    },
}  # fmt: skip
CHANGES: dict[str, dict[str, Any]] = {
    "whole": {},
    "groups": {"num_expert_group": 4, "topk_group": 2, "q_lora_rank": None, "num_shared_experts": 0},
    "without-depth": {"attn_res_block_size": None, "routed_expert_hidden_size": None, "latent_moe_use_norm": False},
    "plain": {
        "activation_situ_linear_beta": None, "mla_use_output_gate": False, "attn_res_block_size": 3, "moe_layer_freq": 2,
        "latent_moe_use_norm": False,
        "linear_attn_config": {**TEXT["linear_attn_config"], "use_full_rank_gate": False, "gate_lower_bound": None},
    },
}  # fmt: skip


def shapes(c: Mapping[str, Any]) -> dict[str, tuple[int, ...]]:
    """Names of tensors, without the root, and their shapes."""
    hidden, heads, linear = c["hidden_size"], c["num_attention_heads"], c["linear_attn_config"]
    n, dim = linear["num_heads"] * linear["head_dim"], linear["head_dim"]
    each = c["qk_nope_head_dim"] + c["qk_rope_head_dim"]
    out = {"model.embed_tokens.weight": (VOCAB, hidden), "lm_head.weight": (VOCAB, hidden), "model.norm.weight": (hidden,)}
    residual = ["self_attention_res", "mlp_res"] if c["attn_res_block_size"] else []
    if residual:
        out |= {"model.output_attn_res_norm.weight": (hidden,), "model.output_attn_res_proj.weight": (1, hidden)}
    for i in range(c["num_hidden_layers"]):
        at, own = f"model.layers.{i}.", f"model.layers.{i}.self_attn."
        out |= {f"{at}{name}.weight": (hidden,) for name in ("input_layernorm", "post_attention_layernorm")}
        for name in residual:
            out |= {f"{at}{name}_norm.weight": (hidden,), f"{at}{name}_proj.weight": (1, hidden)}
        if i + 1 in linear["kda_layers"]:
            out |= {f"{own}{p}_proj.weight": (n, hidden) for p in "qkv"}
            out |= {f"{own}{p}_conv1d.weight": (n, 1, linear["short_conv_kernel_size"]) for p in "qkv"}
            out |= {f"{own}f_a_proj.weight": (dim, hidden), f"{own}f_b_proj.weight": (n, dim), f"{own}dt_bias": (n,),
                    f"{own}b_proj.weight": (linear["num_heads"], hidden), f"{own}A_log": (max(dim, linear["num_heads"]),),
                    f"{own}o_norm.weight": (dim,), f"{own}o_proj.weight": (hidden, n)}  # fmt: skip
            if linear["use_full_rank_gate"]:
                out[f"{own}g_proj.weight"] = (n, hidden)
            else:
                out |= {f"{own}g_a_proj.weight": (dim, hidden), f"{own}g_b_proj.weight": (n, dim)}
        else:
            q = {f"{own}q_proj.weight": (heads * each, hidden)}
            if c["q_lora_rank"]:
                q = {f"{own}q_a_proj.weight": (c["q_lora_rank"], hidden), f"{own}q_a_layernorm.weight": (c["q_lora_rank"],),
                     f"{own}q_b_proj.weight": (heads * each, c["q_lora_rank"])}  # fmt: skip
            rank, value = c["kv_lora_rank"], c["v_head_dim"]
            out |= {**q, f"{own}kv_a_proj_with_mqa.weight": (rank + c["qk_rope_head_dim"], hidden),
                    f"{own}kv_a_layernorm.weight": (rank,), f"{own}o_proj.weight": (hidden, heads * value),
                    f"{own}kv_b_proj.weight": (heads * (c["qk_nope_head_dim"] + value), rank)}  # fmt: skip
            if c["mla_use_output_gate"]:
                out[f"{own}g_proj.weight"] = (heads * value, hidden)
        if not _mixes(c, i):
            out |= _name_gated(f"{at}mlp.", hidden, c["intermediate_size"], ("gate_proj", "up_proj", "down_proj"))
            continue
        moe, seen, inner = f"{at}block_sparse_moe.", c["routed_expert_hidden_size"] or hidden, c["moe_intermediate_size"]
        out |= {f"{moe}gate.weight": (c["num_experts"], hidden), f"{moe}gate.e_score_correction_bias": (c["num_experts"],)}
        for e in range(c["num_experts"]):
            out |= _name_gated(f"{moe}experts.{e}.", seen, inner, ("w1", "w3", "w2"))
        if c["num_shared_experts"]:
            names = ("gate_proj", "up_proj", "down_proj")
            out |= _name_gated(f"{moe}shared_experts.", hidden, inner * c["num_shared_experts"], names)
        if c["routed_expert_hidden_size"]:
            out |= {
                f"{moe}routed_expert_down_proj.weight": (seen, hidden),
                f"{moe}routed_expert_up_proj.weight": (hidden, seen),
            }
        if c["latent_moe_use_norm"]:
            out[f"{moe}routed_expert_norm.weight"] = (seen,)
    return out


def _name_gated(at: str, outer: int, inner: int, names: tuple[str, str, str]) -> dict[str, tuple[int, ...]]:
    return {f"{at}{n}.weight": (outer, inner) if n == names[2] else (inner, outer) for n in names}


def _mixes(c: Mapping[str, Any], layer: int) -> bool:
    return layer >= c["first_k_dense_replace"] and layer % c["moe_layer_freq"] == 0


def draw(c: Mapping[str, Any], seed: int = 7) -> dict[str, Tensor]:
    g, out = torch.Generator().manual_seed(seed), {}
    for name, shape in shapes(c).items():
        if "norm" in name:
            out[name] = 1 + torch.empty(shape).normal_(0, 0.2, generator=g)
        elif name.endswith("correction_bias"):
            out[name] = torch.empty(shape).uniform_(0, 0.6, generator=g)
        elif name.endswith("A_log"):
            out[name] = torch.empty(shape).uniform_(-2, 0.5, generator=g)
        elif name.endswith("dt_bias"):  # states must last: the last norm magnifies the rounding of small outputs
            out[name] = torch.empty(shape).normal_(-3, 0.5, generator=g)
        elif name.endswith(("embed_tokens.weight", "lm_head.weight")):
            out[name] = torch.empty(shape).normal_(0, 0.25, generator=g)
        else:
            # experts must not be equally good
            size = 0.6 if "conv1d" in name else (3 if ".gate." in name else 0.8) / shape[-1] ** 0.5
            out[name] = torch.empty(shape).normal_(0, size, generator=g)
    return out


def write(path: Path, change: str) -> tuple[dict[str, Any], dict[str, Tensor]]:
    """The configuration of the text part, and the tensors, of a checkpoint in `path`."""
    config = {**TEXT, **CHANGES[change]}
    drawn = draw(config)
    save(path, config, drawn)
    return config, drawn


def save(path: Path, config: Mapping[str, Any], tensors: Mapping[str, Tensor]) -> None:
    path.mkdir(parents=True, exist_ok=True)
    whole = {"architectures": ["KimiK3ForConditionalGeneration"], "model_type": "kimi_k3", "text_config": config}
    (path / "config.json").write_text(json.dumps({**whole, "dtype": "float32"}))
    save_file({ROOT + name: t.contiguous() for name, t in tensors.items()}, path / "model.safetensors", {"format": "pt"})


class Definition:
    """Token ids -> logits [T, vocab]."""

    def __init__(self, c: Mapping[str, Any], tensors: Mapping[str, Tensor]) -> None:
        self.c, self.t = c, {name: t.to(torch.float64) for name, t in tensors.items()}

    def __call__(self, ids: list[int]) -> Tensor:
        c, run = self.c, self.c["attn_res_block_size"]
        partial, blocks = self.t["model.embed_tokens.weight"][ids], []
        for i in range(c["num_hidden_layers"]):
            at = f"model.layers.{i}."
            mixer = self.delta if i + 1 in c["linear_attn_config"]["kda_layers"] else self.latent
            feed = self.mixture if _mixes(c, i) else self.dense
            h = self.mean([*blocks, partial], f"{at}self_attention_res") if run else partial
            y = mixer(self.norm(h, f"{at}input_layernorm"), f"{at}self_attn.")
            if run and i % run == 0:
                blocks, partial = [*blocks, partial], y
            else:
                partial = partial + y
            h = self.mean([*blocks, partial], f"{at}mlp_res") if run else partial
            partial = partial + feed(self.norm(h, f"{at}post_attention_layernorm"), at)
        last = self.mean([*blocks, partial], "model.output_attn_res") if run else partial
        return self.norm(last, "model.norm") @ self.t["lm_head.weight"].T

    def norm(self, x: Tensor, name: str, eps: float = 1e-5) -> Tensor:
        return x * torch.rsqrt(x.square().mean(-1, keepdim=True) + eps) * self.t[f"{name}.weight"]

    def linear(self, x: Tensor, name: str) -> Tensor:
        return x @ self.t[f"{name}.weight"].T

    def mean(self, streams: list[Tensor], name: str) -> Tensor:
        x = torch.stack(streams)
        weights = torch.softmax(self.linear(self.norm(x, f"{name}_norm"), f"{name}_proj"), 0)
        return (weights * x).sum(0)

    def situ(self, gate: Tensor, up: Tensor) -> Tensor:
        b, linear = self.c["activation_situ_beta"], self.c["activation_situ_linear_beta"]
        return b * torch.tanh(gate / b) * torch.sigmoid(gate) * (linear * torch.tanh(up / linear) if linear else up)

    def run_gated(self, x: Tensor, at: str, names: tuple[str, str, str] = ("gate_proj", "up_proj", "down_proj")) -> Tensor:
        gate, up = (self.linear(x, at + name) for name in names[:2])
        return self.linear(self.situ(gate, up), at + names[2])

    def dense(self, x: Tensor, at: str) -> Tensor:
        return self.run_gated(x, f"{at}mlp.")

    def mixture(self, x: Tensor, at: str) -> Tensor:
        c, at = self.c, f"{at}block_sparse_moe."
        scores = torch.sigmoid(self.linear(x, f"{at}gate"))
        by = (scores + self.t[f"{at}gate.e_score_correction_bias"]).unflatten(-1, (c["num_expert_group"], -1))
        best = by.topk(2, -1)[0].sum(-1).topk(c["topk_group"], -1)[1]
        out = by.new_full(by.shape, -torch.inf).scatter(1, best[..., None].expand(-1, -1, by.shape[-1]), 0.0)
        chosen = (by + out).flatten(1).topk(c["num_experts_per_token"], -1)[1]
        weights = scores.gather(1, chosen)
        weights = weights / weights.sum(-1, keepdim=True) * c["routed_scaling_factor"]
        seen = self.linear(x, f"{at}routed_expert_down_proj") if c["routed_expert_hidden_size"] else x
        each = torch.stack([self.run_gated(seen, f"{at}experts.{e}.", ("w1", "w3", "w2")) for e in range(c["num_experts"])], 1)
        y = (each.gather(1, chosen[..., None].expand(-1, -1, each.shape[-1])) * weights[..., None]).sum(1)
        y = self.norm(y, f"{at}routed_expert_norm") if c["latent_moe_use_norm"] else y
        y = self.linear(y, f"{at}routed_expert_up_proj") if c["routed_expert_hidden_size"] else y
        return y + self.run_gated(x, f"{at}shared_experts.") if c["num_shared_experts"] else y

    def latent(self, x: Tensor, at: str) -> Tensor:
        c, heads, nope = self.c, self.c["num_attention_heads"], self.c["qk_nope_head_dim"]
        if c["q_lora_rank"]:
            q = self.linear(self.norm(self.linear(x, f"{at}q_a_proj"), f"{at}q_a_layernorm", 1e-6), f"{at}q_b_proj")
        else:
            q = self.linear(x, f"{at}q_proj")
        q = q.unflatten(-1, (heads, -1)).transpose(0, 1)
        low, shared = self.linear(x, f"{at}kv_a_proj_with_mqa").split((c["kv_lora_rank"], c["qk_rope_head_dim"]), -1)
        kv = (
            self.linear(self.norm(low, f"{at}kv_a_layernorm", 1e-6), f"{at}kv_b_proj")
            .unflatten(-1, (heads, -1))
            .transpose(0, 1)
        )
        k = torch.cat((kv[..., :nope], shared.expand(heads, -1, -1)), -1)
        scores = q @ k.mT * q.shape[-1] ** -0.5 + x.new_full((len(x), len(x)), -torch.inf).triu(1)
        out = (torch.softmax(scores, -1) @ kv[..., nope:]).transpose(0, 1).flatten(1)
        if c["mla_use_output_gate"]:
            out = out * torch.sigmoid(self.linear(x, f"{at}g_proj"))
        return self.linear(out, f"{at}o_proj")

    def delta(self, x: Tensor, at: str) -> Tensor:
        c = self.c["linear_attn_config"]
        heads, dim, taps, lowest = c["num_heads"], c["head_dim"], c["short_conv_kernel_size"], c["gate_lower_bound"]
        parts = []
        for p in "qkv":
            entered = F.pad(self.linear(x, f"{at}{p}_proj").T, (taps - 1, 0))
            mixed = F.silu(F.conv1d(entered, self.t[f"{at}{p}_conv1d.weight"], groups=heads * dim).T)
            parts.append(mixed.unflatten(-1, (heads, dim)))
        q, k, v = parts
        q, k = (each * torch.rsqrt(each.square().sum(-1, keepdim=True) + 1e-6) for each in (q, k))
        rate = self.t[f"{at}A_log"][:heads].exp()[:, None]
        step = (self.linear(self.linear(x, f"{at}f_a_proj"), f"{at}f_b_proj") + self.t[f"{at}dt_bias"]).unflatten(
            -1, (heads, dim)
        )
        decay = -rate * F.softplus(step) if lowest is None else lowest * torch.sigmoid(rate * step)
        beta = torch.sigmoid(self.linear(x, f"{at}b_proj"))[..., None]
        state, rows = x.new_zeros(heads, dim, dim), []
        for i in range(len(x)):
            state = state * decay[i].exp()[..., None]
            seen = torch.einsum("hkv,hk->hv", state, k[i])
            state = state + torch.einsum("hk,hv->hkv", k[i], beta[i] * (v[i] - seen))
            rows.append(torch.einsum("hkv,hk->hv", state, q[i] * dim**-0.5))
        gate = self.linear(x, f"{at}g_proj") if c["use_full_rank_gate"] else None
        if gate is None:
            gate = self.linear(self.linear(x, f"{at}g_a_proj"), f"{at}g_b_proj")
        out = self.norm(torch.stack(rows), f"{at}o_norm").flatten(1) * torch.sigmoid(gate)
        return self.linear(out, f"{at}o_proj")
