"""GigaChat 3.5 against its definition, which transformers does not have."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from definitions import compare, compare_under_pressure
from safetensors.torch import save_file
from torch import Tensor

from thalweg.errors import CheckpointError, UnsupportedModelError
from thalweg.models import registry

VOCAB, HIDDEN, HEADS, NOPE, TURNED, VALUE, RANK = 96, 48, 4, 24, 16, 20, 16
KEYS, VALUES, DIM, TAPS, EXPERTS, LIMIT = 2, 4, 16, 4, 8, 0.7
CONFIG: dict[str, Any] = {
    "architectures": ["GigaChat35ForCausalLM"], "model_type": "gigachat3_5", "vocab_size": VOCAB, "hidden_size": HIDDEN,
    "num_hidden_layers": 4, "num_attention_heads": HEADS, "num_key_value_heads": HEADS, "intermediate_size": 80,
    "rms_norm_eps": 1e-6, "max_position_embeddings": 256, "hidden_act": "silu", "dtype": "float32", "eos_token_id": 95,
    "layer_types": ["linear_attention", "attention", "linear_attention", "attention"], "rope_theta": 1e4,
    "q_lora_rank": 40, "kv_lora_rank": 32, "qk_nope_head_dim": NOPE, "qk_rope_head_dim": TURNED, "v_head_dim": VALUE,
    "n_routed_experts": EXPERTS, "n_shared_experts": 2, "num_experts_per_tok": 3, "moe_intermediate_size": 24, "n_group": 4,
    "topk_group": 2, "routed_scaling_factor": 1.7, "first_k_dense_replace": 1, "swiglu_limit": LIMIT,
    "linear_num_key_heads": KEYS, "linear_num_value_heads": VALUES, "linear_key_head_dim": DIM, "linear_value_head_dim": DIM,
    "linear_conv_kernel_dim": TAPS, "linear_sigmoid_gate_scale": 1.6, "layernorm_gating_weight": 1.8,
    "linear_gating_type": "zero_centered_sigmoid", "tie_word_embeddings": False,
}  # fmt: skip
NORMS = ("input_layernorm", "post_self_attn_layernorm", "post_attention_layernorm", "post_feedforward_layernorm")


def shapes() -> dict[str, tuple[int, ...]]:
    out: dict[str, tuple[int, ...]] = {"model.embed_tokens.weight": (VOCAB, HIDDEN), "lm_head.weight": (VOCAB, HIDDEN)}

    def add_gated_norm(name: str, size: int) -> None:
        out[f"{name}.weight"] = (size,)
        out[f"{name}.gate_up_projection.weight"] = RANK, size
        out[f"{name}.gate_down_projection.weight"] = size, RANK

    def add_gated(name: str, inner: int) -> None:
        for p in ("gate", "up", "down"):
            out[f"{name}.{p}_proj.weight"] = (HIDDEN, inner) if p == "down" else (inner, HIDDEN)

    add_gated_norm("model.norm", HIDDEN)
    for i, kind in enumerate(CONFIG["layer_types"]):
        at, own = f"model.layers.{i}.", f"model.layers.{i}.self_attn."
        for name in NORMS:
            add_gated_norm(at + name, HIDDEN)
        if kind == "attention":
            add_gated_norm(f"{own}q_a_layernorm", 40)
            add_gated_norm(f"{own}kv_a_layernorm", 32)
            out |= {
                f"{own}q_a_proj.weight": (40, HIDDEN), f"{own}q_b_proj.weight": (HEADS * (NOPE + TURNED), 40),
                f"{own}kv_a_proj_with_mqa.weight": (32 + TURNED, HIDDEN), f"{own}o_proj.weight": (HIDDEN, HEADS * VALUE),
                f"{own}kv_b_proj.weight": (HEADS * (NOPE + VALUE), 32), f"{own}gate_proj.weight": (HEADS * VALUE, HIDDEN),
            }  # fmt: skip
        else:
            k, v = KEYS * DIM, VALUES * DIM
            out |= {
                f"{own}in_proj_qkvz.weight": (2 * k + 2 * v, HIDDEN), f"{own}in_proj_ba.weight": (2 * VALUES, HIDDEN),
                f"{own}conv1d.weight": (2 * k + v, 1, TAPS), f"{own}dt_bias": (VALUES,), f"{own}A_log": (VALUES,),
                f"{own}norm.weight": (DIM,), f"{own}out_proj.weight": (HIDDEN, v),
            }  # fmt: skip
        if i == 0:
            add_gated(f"{at}mlp", 80)
            continue
        out |= {f"{at}mlp.gate.weight": (EXPERTS, HIDDEN), f"{at}mlp.gate.e_score_correction_bias": (EXPERTS,)}
        add_gated(f"{at}mlp.shared_experts", 48)
        for e in range(EXPERTS):
            add_gated(f"{at}mlp.experts.{e}", 24)
    return out


def write(path: Path) -> GigaChat:
    g, out = torch.Generator().manual_seed(3), {}
    for name, shape in shapes().items():
        drawn = torch.empty(shape).normal_(0, 1, generator=g)
        if len(shape) == 1 and "norm" in name:
            out[name] = 0.2 * drawn
        elif name.endswith("A_log"):
            out[name] = 0.5 * drawn - 1
        elif name.endswith("dt_bias"):
            out[name] = 0.5 * drawn - 2
        elif name.endswith("bias"):
            out[name] = 0.2 * drawn.abs()
        elif "embed" in name or "lm_head" in name:
            out[name] = 0.25 * drawn
        else:
            out[name] = drawn * (0.6 if "conv1d" in name else (3 if "mlp.gate." in name else 1) / shape[-1] ** 0.5)
    (path / "config.json").write_text(json.dumps(CONFIG))
    save_file(out, path / "model.safetensors", {"format": "pt"})
    return GigaChat(out)


class GigaChat:
    """Token ids -> logits [T, vocab], in float64."""

    def __init__(self, tensors: dict[str, Tensor]) -> None:
        self.t = {name: t.to(torch.float64) for name, t in tensors.items()}

    def __call__(self, ids: list[int]) -> Tensor:
        x = self.t["model.embed_tokens.weight"][ids]
        for i, kind in enumerate(CONFIG["layer_types"]):
            at = f"model.layers.{i}."
            mixer, feed = self.delta if kind == "linear_attention" else self.latent, self.experts if i else self.run_gated
            y = mixer(self.norm(x, f"{at}input_layernorm"), f"{at}self_attn.")
            x = x + self.norm(y, f"{at}post_self_attn_layernorm")
            y = feed(self.norm(x, f"{at}post_attention_layernorm"), f"{at}mlp.")
            x = x + self.norm(y, f"{at}post_feedforward_layernorm")
        return self.norm(x, "model.norm") @ self.t["lm_head.weight"].T

    def linear(self, x: Tensor, name: str) -> Tensor:
        return x @ self.t[f"{name}.weight"].T

    def unit(self, x: Tensor) -> Tensor:
        return x * torch.rsqrt(x.square().mean(-1, keepdim=True) + 1e-6)

    def norm(self, x: Tensor, name: str) -> Tensor:
        y = self.unit(x) * (1 + self.t[f"{name}.weight"])
        gate = self.linear(F.silu(self.linear(y, f"{name}.gate_up_projection")), f"{name}.gate_down_projection")
        return y * 1.8 * torch.sigmoid(gate)

    def run_gated(self, x: Tensor, at: str) -> Tensor:
        gate, up = (self.linear(x, f"{at}{p}_proj") for p in ("gate", "up"))
        return self.linear(F.silu(gate.clamp(max=LIMIT)) * up.clamp(-LIMIT, LIMIT), f"{at}down_proj")

    def experts(self, x: Tensor, at: str) -> Tensor:
        scores = torch.sigmoid(self.linear(x, f"{at}gate"))
        by = (scores + self.t[f"{at}gate.e_score_correction_bias"]).unflatten(-1, (4, -1))
        best = by.topk(2, -1)[0].sum(-1).topk(2, -1)[1]
        out = by.new_full(by.shape, -torch.inf).scatter(1, best[..., None].expand(-1, -1, 2), 0.0)
        chosen = (by + out).flatten(1).topk(3, -1)[1]
        weights = scores.gather(1, chosen)
        weights = 1.7 * weights / weights.sum(-1, keepdim=True)
        each = torch.stack([self.run_gated(x, f"{at}experts.{e}.") for e in range(EXPERTS)], 1)
        y = (each.gather(1, chosen[..., None].expand(-1, -1, HIDDEN)) * weights[..., None]).sum(1)
        return y + self.run_gated(x, f"{at}shared_experts.")

    def latent(self, x: Tensor, at: str) -> Tensor:
        q = self.norm(self.linear(x, f"{at}q_a_proj"), f"{at}q_a_layernorm") * (HIDDEN / 40) ** 0.5
        q = self.linear(q, f"{at}q_b_proj").unflatten(-1, (HEADS, -1)).transpose(0, 1)
        low, shared = self.linear(x, f"{at}kv_a_proj_with_mqa").split((32, TURNED), -1)
        low = self.norm(low, f"{at}kv_a_layernorm") * (HIDDEN / 32) ** 0.5
        kv = self.linear(low, f"{at}kv_b_proj").unflatten(-1, (HEADS, -1)).transpose(0, 1)
        q = torch.cat((q[..., :NOPE], self.turn(q[..., NOPE:])), -1)
        k = torch.cat((kv[..., :NOPE], self.turn(shared).expand(HEADS, -1, -1)), -1)
        scores = q @ k.mT * (NOPE + TURNED) ** -0.5 + x.new_full((len(x), len(x)), -torch.inf).triu(1)
        out = (torch.softmax(scores, -1) @ kv[..., NOPE:]).transpose(0, 1).flatten(1)
        return self.linear(out * torch.sigmoid(self.linear(x, f"{at}gate_proj")), f"{at}o_proj")

    def turn(self, x: Tensor) -> Tensor:
        """Neighbouring values are pairs."""
        rates = 1e4 ** -(torch.arange(0, TURNED, 2, dtype=x.dtype) / TURNED)
        angle = torch.arange(x.shape[-2], dtype=x.dtype)[:, None] * rates
        one, other = x[..., 0::2], x[..., 1::2]
        turned = one * angle.cos() - other * angle.sin(), other * angle.cos() + one * angle.sin()
        return torch.stack(turned, -1).flatten(-2)

    def delta(self, x: Tensor, at: str) -> Tensor:
        per = VALUES // KEYS
        each = self.linear(x, f"{at}in_proj_qkvz").unflatten(-1, (KEYS, -1))
        q, k, v, z = (part.flatten(1) for part in each.split((DIM, DIM, per * DIM, per * DIM), -1))
        b, a = (part.flatten(1) for part in self.linear(x, f"{at}in_proj_ba").unflatten(-1, (KEYS, -1)).split((per, per), -1))
        entered = F.pad(torch.cat((q, k, v), -1).T, (TAPS - 1, 0))
        weight = self.t[f"{at}conv1d.weight"]
        mixed = F.silu(F.conv1d(entered, weight, groups=len(weight)).T)
        q, k, v = (part.unflatten(-1, (-1, DIM)) for part in mixed.split((KEYS * DIM, KEYS * DIM, VALUES * DIM), -1))
        q, k = (part * torch.rsqrt(part.square().sum(-1, keepdim=True) + 1e-6) for part in (q, k))
        q, k = (part.repeat_interleave(per, 1) for part in (q, k))
        decay = torch.exp(-self.t[f"{at}A_log"].exp() * F.softplus(a + self.t[f"{at}dt_bias"]))
        beta, state, rows = torch.sigmoid(b), x.new_zeros(VALUES, DIM, DIM), []
        for i in range(len(x)):
            state = state * decay[i][:, None, None]
            wrong = v[i] - torch.einsum("hkv,hk->hv", state, k[i])
            state = state + torch.einsum("hk,hv->hkv", k[i], beta[i][:, None] * wrong)
            rows.append(torch.einsum("hkv,hk->hv", state, q[i] * DIM**-0.5))
        out = self.unit(torch.stack(rows)) * 1.6 * (1 + self.t[f"{at}norm.weight"])
        return self.linear(out.flatten(1) * torch.sigmoid(z), f"{at}out_proj")


def test_tokens_and_logprobs_are_those_of_the_definition(tmp_path: Path) -> None:
    compare(tmp_path, write(tmp_path), VOCAB)


@pytest.mark.slow
def test_chunks_preemption_and_prefix_hits_change_nothing(tmp_path: Path) -> None:
    compare_under_pressure(tmp_path, write(tmp_path), VOCAB, mamba_block_size=8)


def test_layers_with_attention_may_be_numbered() -> None:
    numbered = {**CONFIG, "layer_types": None, "full_attention_layers": [1, 3]}
    assert registry.family(numbered)(numbered) == registry.family(CONFIG)(CONFIG)


@pytest.mark.parametrize(
    ("said", "error"),
    [
        ({"norm_type": "LlamaRMSNorm"}, UnsupportedModelError),
        ({"layernorm_type": "around"}, UnsupportedModelError),
        ({"output_gate_type": "silu"}, UnsupportedModelError),
        ({"use_shared_expert_sigmoid": True}, UnsupportedModelError),
        ({"full_attention_layers": [4], "layer_types": None}, CheckpointError),
    ],
)
def test_what_is_refused(said: dict[str, Any], error: type[Exception]) -> None:
    config = {**CONFIG, **said}
    with pytest.raises(error, match=next(iter(said))):
        registry.family(config)(config)
