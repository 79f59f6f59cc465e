"""Alice AI against its definition, which transformers does not have. Its delta nets and attention over depth are Kimi K3's."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from definitions import compare, compare_under_pressure
from kimi_k3_definition import Definition
from safetensors.torch import save_file
from torch import Tensor

from thalweg.errors import CheckpointError, UnsupportedModelError
from thalweg.models import registry

VOCAB, HIDDEN, HEADS, KV_HEADS, DIM, TURNED, EXPERTS, RUN = 96, 48, 4, 2, 16, 8, 6, 2
CONFIG: dict[str, Any] = {
    "architectures": ["AliceAIForCausalLM"], "model_type": "alice_ai", "vocab_size": VOCAB, "hidden_size": HIDDEN,
    "num_hidden_layers": 5, "num_attention_heads": HEADS, "num_key_value_heads": KV_HEADS, "head_dim": DIM,
    "intermediate_size": 80, "rms_norm_eps": 1e-5, "max_position_embeddings": 256, "hidden_act": "silu", "dtype": "float32",
    "layer_types": ["linear_attention", "full_attention", "linear_attention", "linear_attention", "full_attention"],
    "linear_num_key_heads": 3, "linear_num_value_heads": 3, "linear_key_head_dim": 16, "linear_value_head_dim": 16,
    "linear_conv_kernel_dim": 4, "block_attn_res_block_size": RUN, "num_experts": EXPERTS, "num_experts_per_tok": 2,
    "moe_intermediate_size": 24, "shared_expert_intermediate_size": 32, "norm_topk_prob": True, "tie_word_embeddings": False,
    "rope_parameters": {"rope_type": "default", "rope_theta": 1e4, "partial_rotary_factor": 0.5}, "eos_token_id": 95,
}  # fmt: skip
LINEAR = {
    "linear_attn_config": {
        "num_heads": 3, "head_dim": 16, "short_conv_kernel_size": 4, "gate_lower_bound": None, "use_full_rank_gate": False,
    },
}  # fmt: skip


def shapes() -> dict[str, tuple[int, ...]]:
    out = {
        "model.embed_tokens.weight": (VOCAB, HIDDEN), "lm_head.weight": (VOCAB, HIDDEN), "model.norm.weight": (HIDDEN,),
        "model.attnres_final.res_proj.weight": (1, HIDDEN), "model.attnres_final.res_norm_weight": (HIDDEN,),
    }  # fmt: skip
    for i, kind in enumerate(CONFIG["layer_types"]):
        at, n = f"model.layers.{i}.", 48
        out |= {f"{at}{name}.weight": (HIDDEN,) for name in ("input_layernorm", "post_attention_layernorm")}
        for name in ("attn_res", "mlp_res")[i == 0 :]:
            out |= {f"{at}{name}_proj.weight": (1, HIDDEN), f"{at}{name}_norm_weight": (HIDDEN,)}
        if kind == "linear_attention":
            own = f"{at}linear_attn."
            out |= {f"{own}{p}_proj.weight": (n, HIDDEN) for p in "qkv"} | {f"{own}{p}_conv1d.weight": (n, 1, 4) for p in "qkv"}
            for p in "fg":
                out |= {f"{own}{p}_a_proj.weight": (16, HIDDEN), f"{own}{p}_b_proj.weight": (n, 16)}
            out |= {f"{own}dt_bias": (n,), f"{own}a_log_bias": (3,), f"{own}b_proj.weight": (3, HIDDEN)}
            out |= {f"{own}o_norm.weight": (16,), f"{own}o_proj.weight": (HIDDEN, n)}
        else:
            own, k = f"{at}self_attn.", (KV_HEADS * DIM, HIDDEN)
            out |= {f"{own}q_proj.weight": (2 * HEADS * DIM, HIDDEN), f"{own}k_proj.weight": k, f"{own}v_proj.weight": k}
            out |= {f"{own}o_proj.weight": (HIDDEN, HEADS * DIM)} | {f"{own}{p}_norm.weight": (DIM,) for p in "qk"}
        moe = f"{at}mlp."
        out |= {f"{moe}gate.weight": (EXPERTS, HIDDEN), f"{moe}gate.e_score_correction_bias": (EXPERTS,)}
        out |= {f"{moe}shared_expert_gate.weight": (1, HIDDEN)}
        for name, inner in (*((f"experts.{e}", 24) for e in range(EXPERTS)), ("shared_expert", 32)):
            for p in ("gate", "up", "down"):
                out[f"{moe}{name}.{p}_proj.weight"] = (HIDDEN, inner) if p == "down" else (inner, HIDDEN)
    return out


def write(path: Path) -> AliceAI:
    g, out = torch.Generator().manual_seed(3), {}
    for name, shape in shapes().items():
        drawn = torch.empty(shape).normal_(0, 1, generator=g)
        if "norm" in name:
            one = 0 if "layernorm" in name or name.endswith(("q_norm.weight", "k_norm.weight", "model.norm.weight")) else 1
            out[name] = one + 0.2 * drawn
        elif name.endswith("a_log_bias"):
            out[name] = 0.5 * drawn - 1
        elif name.endswith("dt_bias"):
            out[name] = 0.5 * drawn - 3
        elif name.endswith("bias"):
            out[name] = 0.2 * drawn.abs()
        elif "embed" in name or "lm_head" in name:
            out[name] = 0.25 * drawn
        else:
            size = 0.6 if "conv1d" in name else (3 if ".gate." in name else 0.8) / shape[-1] ** 0.5
            out[name] = size * drawn
    (path / "config.json").write_text(json.dumps(CONFIG))
    save_file(out, path / "model.safetensors", {"format": "pt"})
    names = {name.replace("_norm_weight", "_norm.weight").replace("a_log_bias", "A_log"): t for name, t in out.items()}
    return AliceAI(LINEAR, names)


class AliceAI(Definition):
    """Token ids -> logits [T, vocab]."""

    def __call__(self, ids: list[int]) -> Tensor:
        partial, blocks = self.t["model.embed_tokens.weight"][ids], []
        for i, kind in enumerate(CONFIG["layer_types"]):
            at = f"model.layers.{i}."
            if i and i % RUN == 0:
                blocks, partial = [*blocks, partial], None
            h = self.mean([*blocks, *([] if partial is None else [partial])], f"{at}attn_res") if i else partial
            h = self.near_one(h, f"{at}input_layernorm")
            y = self.delta(h, f"{at}linear_attn.") if kind == "linear_attention" else self.attention(h, f"{at}self_attn.")
            if i == 0:
                blocks, partial = [partial], None
            partial = y if partial is None else partial + y
            h = self.near_one(self.mean([*blocks, partial], f"{at}mlp_res"), f"{at}post_attention_layernorm")
            partial = partial + self.experts(h, f"{at}mlp.")
        last = self.mean([*blocks, partial], "model.attnres_final.res")
        return self.near_one(last, "model.norm") @ self.t["lm_head.weight"].T

    def near_one(self, x: Tensor, name: str) -> Tensor:
        return x * torch.rsqrt(x.square().mean(-1, keepdim=True) + 1e-5) * (1 + self.t[f"{name}.weight"])

    def attention(self, x: Tensor, at: str) -> Tensor:
        q, gate = self.linear(x, f"{at}q_proj").unflatten(-1, (HEADS, 2, DIM)).unbind(2)
        k, v = (self.linear(x, f"{at}{p}_proj").unflatten(-1, (KV_HEADS, DIM)) for p in "kv")
        q, k = self.turn(self.near_one(q, f"{at}q_norm")), self.turn(self.near_one(k, f"{at}k_norm"))
        k, v = (each.repeat_interleave(HEADS // KV_HEADS, 1).transpose(0, 1) for each in (k, v))
        scores = q.transpose(0, 1) @ k.mT * DIM**-0.5 + x.new_full((len(x), len(x)), -torch.inf).triu(1)
        out = (torch.softmax(scores, -1) @ v).transpose(0, 1) * torch.sigmoid(gate)
        return self.linear(out.flatten(1), f"{at}o_proj")

    def turn(self, x: Tensor) -> Tensor:
        rates = 1e4 ** -(torch.arange(0, TURNED, 2, dtype=x.dtype) / TURNED)
        angle = (torch.arange(len(x), dtype=x.dtype)[:, None] * rates)[:, None]
        one, other = x[..., : TURNED // 2], x[..., TURNED // 2 : TURNED]
        turned = one * angle.cos() - other * angle.sin(), other * angle.cos() + one * angle.sin()
        return torch.cat((*turned, x[..., TURNED:]), -1)

    def experts(self, x: Tensor, at: str) -> Tensor:
        def part(name: str) -> Tensor:
            gate, up = (self.linear(x, f"{at}{name}.{p}_proj") for p in ("gate", "up"))
            return self.linear(F.silu(gate) * up, f"{at}{name}.down_proj")

        scores = torch.sigmoid(self.linear(x, f"{at}gate"))
        chosen = (scores + self.t[f"{at}gate.e_score_correction_bias"]).topk(2, -1)[1]
        weights = scores.gather(1, chosen)
        each = torch.stack([part(f"experts.{e}") for e in range(EXPERTS)], 1)
        y = each.gather(1, chosen[..., None].expand(-1, -1, HIDDEN)) * (weights / weights.sum(-1, keepdim=True))[..., None]
        return y.sum(1) + part("shared_expert") * torch.sigmoid(self.linear(x, f"{at}shared_expert_gate"))


def test_tokens_and_logprobs_are_those_of_the_definition(tmp_path: Path) -> None:
    compare(tmp_path, write(tmp_path), VOCAB)


@pytest.mark.slow
def test_chunks_preemption_and_prefix_hits_change_nothing(tmp_path: Path) -> None:
    compare_under_pressure(tmp_path, write(tmp_path), VOCAB, mamba_block_size=8)


@pytest.mark.parametrize(
    ("said", "error", "match"),
    [
        ({"linear_num_value_heads": 6}, CheckpointError, "linear_num_value_heads"),
        ({"block_attn_res_block_size": None}, CheckpointError, "block_attn_res_block_size"),
        ({"attention_bias": True}, UnsupportedModelError, "attention_bias"),
    ],
)
def test_what_is_refused(said: dict[str, Any], error: type[Exception], match: str) -> None:
    config = {**CONFIG, **said}
    with pytest.raises(error, match=match):
        registry.family(config)(config)
