"""Spark 2.5 against its definition, which transformers does not have."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from definitions import compare, compare_under_pressure
from safetensors.torch import save_file
from torch import Tensor

from thalweg.errors import UnsupportedModelError
from thalweg.models import registry

VOCAB, WINDOW = 96, 9
CONFIG: dict[str, Any] = {
    "architectures": ["Spark2_5ForCausalLM"], "model_type": "spark2_5", "vocab_size": VOCAB, "hidden_size": 48,
    "intermediate_size": 80, "num_hidden_layers": 4, "num_attention_heads": 6, "num_key_value_heads": 2, "head_dim": 16,
    "sliding_window": WINDOW, "rms_norm_eps": 1e-6, "max_position_embeddings": 256, "hidden_act": "gelu", "dtype": "float32",
    "gate_attn_act_mode": "sigmoid", "headwise_attn_output_gate": True, "tie_word_embeddings": True, "eos_token_id": 95,
    "rope_parameters": {
        "full_attention": {"rope_type": "default", "rope_theta": 5e5, "partial_rotary_factor": 0.5},
        "sliding_attention": {"rope_type": "default", "rope_theta": 1e4},
    },
}  # fmt: skip


def draw() -> dict[str, Tensor]:
    hidden, inner, q, k = 48, 80, 6 * 16, 2 * 16
    shapes = {"model.embedding.weight": (VOCAB, hidden), "model.norm.weight": (hidden,)}
    for i in range(4):
        at = f"model.layers.{i}."
        shapes |= {
            f"{at}self_attn.q_k_v_proj.weight": (q + 2 * k, hidden), f"{at}self_attn.g_proj.weight": (6, hidden),
            f"{at}self_attn.out_proj.weight": (hidden, q), f"{at}mlp.gate_proj.weight": (inner, hidden),
            f"{at}mlp.up_proj.weight": (inner, hidden), f"{at}mlp.down_proj.weight": (hidden, inner),
            f"{at}input_layernorm.weight": (hidden,), f"{at}post_attention_layernorm.weight": (hidden,),
        }  # fmt: skip
    g, out = torch.Generator().manual_seed(11), {}
    for name, shape in shapes.items():
        drawn = torch.empty(shape).normal_(0, 1, generator=g)
        out[name] = 1 + 0.2 * drawn if "norm" in name else drawn * (0.3 if "embedding" in name else 1.2 / shape[1] ** 0.5)
    return out


class Definition:
    """Token ids -> logits [T, vocab], in float64."""

    def __init__(self, tensors: Mapping[str, Tensor]) -> None:
        self.t = {name: t.to(torch.float64) for name, t in tensors.items()}

    def __call__(self, ids: list[int]) -> Tensor:
        x = self.t["model.embedding.weight"][ids]
        for i in range(4):
            at = f"model.layers.{i}."
            x = x + self.attention(self.norm(x, f"{at}input_layernorm"), f"{at}self_attn.", i % 4 == 3)
            h = self.norm(x, f"{at}post_attention_layernorm")
            gate, up = (h @ self.t[f"{at}mlp.{p}_proj.weight"].T for p in ("gate", "up"))
            x = x + (F.gelu(gate) * up) @ self.t[f"{at}mlp.down_proj.weight"].T
        return self.norm(x, "model.norm") @ self.t["model.embedding.weight"].T

    def norm(self, x: Tensor, name: str) -> Tensor:
        return x * torch.rsqrt(x.square().mean(-1, keepdim=True) + 1e-6) * self.t[f"{name}.weight"]

    def attention(self, x: Tensor, at: str, full: bool) -> Tensor:
        q, k, v = (x @ self.t[f"{at}q_k_v_proj.weight"].T).split((96, 32, 32), -1)
        q, k, v = (part.unflatten(-1, (-1, 16)).transpose(0, 1) for part in (q, k, v))
        q, k = (self.turn(part, 8 if full else 16, 5e5 if full else 1e4) for part in (q, k))
        k, v = (part.repeat_interleave(3, 0) for part in (k, v))
        apart = torch.arange(len(x))[:, None] - torch.arange(len(x))
        hidden = (apart < 0) | (apart >= (len(x) if full else WINDOW))
        weights = torch.softmax((q @ k.mT * 16**-0.5).masked_fill(hidden, -torch.inf), -1)
        out = (weights @ v).transpose(0, 1) * torch.sigmoid(x @ self.t[f"{at}g_proj.weight"].T)[..., None]
        return out.flatten(1) @ self.t[f"{at}out_proj.weight"].T

    def turn(self, x: Tensor, size: int, base: float) -> Tensor:
        rates = base ** -(torch.arange(0, size, 2, dtype=x.dtype) / size)
        angle = torch.arange(x.shape[1], dtype=x.dtype)[:, None] * rates
        one, other = x[..., : size // 2], x[..., size // 2 : size]
        turned = one * angle.cos() - other * angle.sin(), other * angle.cos() + one * angle.sin()
        return torch.cat((*turned, x[..., size:]), -1)


def write(path: Path) -> Definition:
    tensors = draw()
    (path / "config.json").write_text(json.dumps(CONFIG))
    save_file(tensors, path / "model.safetensors", {"format": "pt"})
    return Definition(tensors)


def test_tokens_and_logprobs_are_those_of_the_definition(tmp_path: Path) -> None:
    compare(tmp_path, write(tmp_path), VOCAB)


@pytest.mark.slow
def test_chunks_preemption_and_prefix_hits_change_nothing(tmp_path: Path) -> None:
    compare_under_pressure(tmp_path, write(tmp_path), VOCAB)


@pytest.mark.parametrize(
    "said", [{"gate_attn_act_mode": "silu"}, {"headwise_attn_output_gate": False}, {"attention_bias": True}]
)
def test_what_is_refused(said: dict[str, object]) -> None:
    config = {**CONFIG, **said}
    with pytest.raises(UnsupportedModelError, match=next(iter(said))):
        registry.family(config)(config)
