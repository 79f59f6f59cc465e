"""Mistral Large 3 as Mistral publishes it: latent attention, a mixture beside an expert for all, queries that grow. What such
a model computes is written down here with the heads' keys and values made one by one, which the engine never makes."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from native_model import _mlp, _norm, save
from test_native import told

from thalweg.checkpoint.config import read_config
from thalweg.errors import CheckpointError, UnsupportedModelError

PARAMS: dict[str, Any] = {
    "dim": 48, "n_layers": 3, "head_dim": 24, "hidden_dim": 80, "n_heads": 4, "n_kv_heads": 4, "norm_eps": 1e-6,
    "vocab_size": 1240, "rope_theta": 1000.0, "max_position_embeddings": 128, "tied_embeddings": False,
    "q_lora_rank": 40, "kv_lora_rank": 32, "qk_nope_head_dim": 24, "qk_rope_head_dim": 16, "v_head_dim": 20,
    "moe": {
        "expert_hidden_dim": 24, "first_k_dense_replace": 1, "num_expert_groups": 1, "num_expert_groups_per_tok": 1,
        "num_experts": 6, "num_experts_per_tok": 2, "num_shared_experts": 1, "route_every_n": 1, "routed_scale": 1.7,
        "expert_parallel": 8, "expert_model_parallel": 1,
    },
    "llama_4_scaling": {"beta": 0.3, "original_max_position_embeddings": 8},
    "yarn": {"alpha": 0.5, "apply_scale": False, "beta": 4.0, "factor": 4.0, "original_max_position_embeddings": 8},
}  # fmt: skip


def make(folder: Path, **changes: Any) -> dict[str, torch.Tensor]:
    p = {**PARAMS, **changes}
    g, d, heads = torch.Generator().manual_seed(6), p["dim"], p["n_heads"]
    nope, turned, value, latent, rank = (
        p[k] for k in ("qk_nope_head_dim", "qk_rope_head_dim", "v_head_dim", "kv_lora_rank", "q_lora_rank")
    )
    shapes = {"tok_embeddings": (p["vocab_size"], d), "output": (p["vocab_size"], d), "norm": (d,)}
    for i in range(p["n_layers"]):
        attention = {
            "wq_a": (rank, d), "q_a_norm": (rank,), "wq_b": (heads * (nope + turned), rank),
            "wkv_a_with_mqa": (latent + turned, d), "kv_a_norm": (latent,), "wkv_b": (heads * (nope + value), latent),
            "wo": (d, heads * value),
        }  # fmt: skip
        at, f, moe = f"layers.{i}", p["hidden_dim"], p["moe"]
        shapes |= {f"{at}.attention.{name}": shape for name, shape in attention.items()}
        shapes |= {f"{at}.attention_norm": (d,), f"{at}.ffn_norm": (d,)}
        parts = ["feed_forward."]
        if i >= moe["first_k_dense_replace"]:
            shapes[f"{at}.gate"], f = (moe["num_experts"], d), moe["expert_hidden_dim"]
            parts = [f"experts.{e}." for e in range(moe["num_experts"])] + ["shared_experts."]
        for part in parts:
            shapes |= {f"{at}.{part}{name}": s for name, s in (("w1", (f, d)), ("w2", (d, f)), ("w3", (f, d)))}
    weights = {}
    for name, shape in shapes.items():
        drawn = torch.empty(shape).normal_(0, 1, generator=g)
        scale = 0.4 if name in ("tok_embeddings", "output") else 1.2 / shape[-1] ** 0.5
        weights[f"{name}.weight"] = 1 + 0.2 * drawn if len(shape) == 1 else drawn * scale
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "params.json").write_text(json.dumps({k: v for k, v in p.items() if v is not None}))
    save(folder, weights)
    return weights


def frequencies(p: dict[str, Any]) -> torch.Tensor:
    """Those that turn more than `beta` times within the original length stay, those below `alpha` times are divided by the
    factor, and between a line leads from the one to the other (Peng et al. 2023)."""
    dim, yarn = p["qk_rope_head_dim"], p["yarn"]
    plain = 1.0 / p["rope_theta"] ** (torch.arange(0, dim, 2, dtype=torch.float64) / dim)

    def place(turns: float) -> float:
        return (
            dim * math.log(yarn["original_max_position_embeddings"] / (turns * 2 * math.pi)) / (2 * math.log(p["rope_theta"]))
        )

    low, high = max(math.floor(place(yarn["beta"])), 0), min(math.ceil(place(yarn["alpha"])), dim - 1)
    ramp = ((torch.arange(dim // 2) - low) / max(high - low, 0.001)).clamp(0, 1)
    return plain / yarn["factor"] * ramp + plain * (1 - ramp)


def attention(p: dict[str, Any], w: dict[str, torch.Tensor], x: torch.Tensor) -> torch.Tensor:
    n, heads, nope, turned = len(x), p["n_heads"], p["qk_nope_head_dim"], p["qk_rope_head_dim"]
    at = torch.arange(n, dtype=torch.float64)
    turn = torch.polar(torch.ones(n, turned // 2, dtype=torch.float64), torch.outer(at, frequencies(p)))[:, None]

    def rotated(t: torch.Tensor) -> torch.Tensor:
        pairs = torch.view_as_complex(t.double().reshape(n, -1, turned // 2, 2))
        return torch.view_as_real(pairs * turn).flatten(2).float()

    q = _norm(x @ w["attention.wq_a.weight"].T, w["attention.q_a_norm.weight"], p) @ w["attention.wq_b.weight"].T
    q = q.view(n, heads, -1)
    grown = 1 + p["llama_4_scaling"]["beta"] * torch.log(
        1 + torch.floor(at / p["llama_4_scaling"]["original_max_position_embeddings"])
    )
    q = torch.cat((q[..., :nope], rotated(q[..., nope:])), -1) * grown[:, None, None].float()
    both = x @ w["attention.wkv_a_with_mqa.weight"].T
    latent, key = both.split((p["kv_lora_rank"], turned), -1)
    up = (_norm(latent, w["attention.kv_a_norm.weight"], p) @ w["attention.wkv_b.weight"].T).view(n, heads, -1)
    k = torch.cat((up[..., :nope], rotated(key[:, None]).expand(n, heads, turned)), -1)
    scale = (nope + turned) ** -0.5
    if p["yarn"]["apply_scale"]:
        scale *= (0.1 * math.log(p["yarn"]["factor"]) + 1) ** 2
    scores = torch.einsum("qhd,khd->hqk", q, k) * scale
    scores = scores.masked_fill(at[None, :] > at[:, None], float("-inf"))
    return torch.einsum("hqk,khd->qhd", scores.softmax(-1), up[..., nope:]).flatten(1) @ w["attention.wo.weight"].T


def mixture(p: dict[str, Any], w: dict[str, torch.Tensor], x: torch.Tensor) -> torch.Tensor:
    shares, chosen = torch.topk((x @ w["gate.weight"].T).softmax(-1), p["moe"]["num_experts_per_tok"])
    shares, out = shares / shares.sum(-1, keepdim=True) * p["moe"]["routed_scale"], _mlp(w, "shared_experts.", x)
    for e in range(p["moe"]["num_experts"]):
        out = out + torch.where(chosen == e, shares, 0.0).sum(-1, keepdim=True) * _mlp(w, f"experts.{e}.", x)
    return out


def log_probabilities(weights: dict[str, torch.Tensor], ids: list[int], **changes: Any) -> torch.Tensor:
    p = {**PARAMS, **changes}
    h = weights["tok_embeddings.weight"][ids]
    for i in range(p["n_layers"]):
        w = {n.removeprefix(f"layers.{i}."): t for n, t in weights.items() if n.startswith(f"layers.{i}.")}
        h = h + attention(p, w, _norm(h, w["attention_norm.weight"], p))
        x = _norm(h, w["ffn_norm.weight"], p)
        h = h + (mixture(p, w, x) if "gate.weight" in w else _mlp(w, "feed_forward.", x))
    return (_norm(h, weights["norm.weight"], p) @ weights["output.weight"].T).log_softmax(-1)


@torch.inference_mode()
@pytest.mark.parametrize("applied", [False, True])
def test_a_model_with_latents_computes_what_its_definition_says(applied, tmp_path):
    changes = {"yarn": {**PARAMS["yarn"], "apply_scale": applied}}
    weights = make(tmp_path, **changes)
    prompt, scores, ids = told(tmp_path, skip_tokenizer_init=True)
    want = log_probabilities(weights, prompt + ids[:-1], **changes)[len(prompt) - 1 :]
    assert want.argmax(-1).tolist() == ids
    np.testing.assert_allclose(scores, want.amax(-1), atol=1e-4)


@pytest.mark.slow
def test_the_text_part_is_read_of_a_model_that_also_sees(tmp_path):
    weights = make(tmp_path, vision_encoder={"hidden_size": 8})
    alone = told(tmp_path, skip_tokenizer_init=True)
    more = {f"{name}.weight": torch.ones(2, 2) for name in ("vision_encoder.ln_pre", "vision_language_adapter.w_in")}
    save(tmp_path, weights | more)
    assert told(tmp_path, skip_tokenizer_init=True) == alone


@pytest.mark.parametrize(
    ("changes", "error", "why"),
    [
        ({"kv_lora_rank": None}, CheckpointError, "kv_lora_rank: missing"),
        ({"moe": None}, CheckpointError, "moe: must be an object with num_experts"),
        ({"moe": {**PARAMS["moe"], "zero_experts": 2}}, UnsupportedModelError, "moe: zero_experts"),
        ({"llama_4_scaling": {"beta": 0.1}}, UnsupportedModelError, "llama_4_scaling: must be an object"),
        (
            {"llama_4_scaling": {"beta": 0.1, "original_max_position_embeddings": 9}}, UnsupportedModelError,
            "llama_4_scaling: original_max_position_embeddings: this version requires yarn's value",
        ),
    ],
)  # fmt: skip
def test_what_is_not_served_is_refused_by_key(changes, error, why, tmp_path):
    (tmp_path / "params.json").write_text(json.dumps({**PARAMS, **changes}))
    with pytest.raises(error, match=why):
        read_config(tmp_path / "params.json")
