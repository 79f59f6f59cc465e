"""Nomic's encoder with mixtures of experts, against its definition written out in torch: no library has a class for it."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import safetensors.torch
import torch
import torch.nn.functional as F
from rig import Rig
from test_encoders import pooled
from zoo import describe_pooling

from thalweg.checkpoint.config import read_config
from thalweg.errors import UnsupportedModelError
from thalweg.models import registry

HIDDEN, HEADS, INNER, EXPERTS, LAYERS, VOCAB = 48, 4, 80, 5, 4, 200
CONFIG = {
    "architectures": ["NomicBertModel"], "model_type": "nomic_bert", "activation_function": "gelu", "n_embd": HIDDEN,
    "n_head": HEADS, "n_inner": INNER, "n_layer": LAYERS, "n_positions": 256, "max_trained_positions": 256,
    "vocab_size": VOCAB, "type_vocab_size": 1, "layer_norm_epsilon": 1e-5, "rotary_emb_base": 10_000,
    "rotary_emb_fraction": 1.0, "rotary_emb_interleaved": False, "rotary_scaling_factor": None, "prenorm": False,
    "qkv_proj_bias": True, "mlp_fc1_bias": True, "mlp_fc2_bias": True, "use_rms_norm": False, "parallel_block": False,
    "moe_every_n_layers": 2, "num_experts": EXPERTS, "moe_top_k": 2, "moe_normalize_expert_weights": False,
    "expert_choice_router": False, "num_shared_experts": 0, "pad_token_id": 1,
}  # fmt: skip


def make(path: Path) -> dict[str, torch.Tensor]:
    g = torch.Generator().manual_seed(3)
    shapes: dict[str, tuple[int, ...]] = {
        "embeddings.word_embeddings.weight": (VOCAB, HIDDEN),
        "embeddings.token_type_embeddings.weight": (1, HIDDEN),
        "emb_ln.weight": (HIDDEN,),
        "emb_ln.bias": (HIDDEN,),
    }
    for i in range(LAYERS):
        at = f"encoder.layers.{i}."
        shapes |= {f"{at}attn.Wqkv.weight": (3 * HIDDEN, HIDDEN), f"{at}attn.Wqkv.bias": (3 * HIDDEN,)}
        shapes |= {f"{at}attn.out_proj.weight": (HIDDEN, HIDDEN), f"{at}attn.out_proj.bias": (HIDDEN,)}
        shapes |= {f"{at}{norm}.{part}": (HIDDEN,) for norm in ("norm1", "norm2") for part in ("weight", "bias")}
        if i % 2:
            shapes |= {f"{at}mlp.router.layer.weight": (EXPERTS, HIDDEN), f"{at}mlp.experts.bias": (HIDDEN,)}
            shapes |= {f"{at}mlp.experts.mlp.{w}": (EXPERTS * INNER, HIDDEN) for w in ("w1", "w2")}
        else:
            shapes |= {f"{at}mlp.fc1.weight": (INNER, HIDDEN), f"{at}mlp.fc1.bias": (INNER,)}
            shapes |= {f"{at}mlp.fc2.weight": (HIDDEN, INNER), f"{at}mlp.fc2.bias": (HIDDEN,)}
    made = {name: torch.empty(shape).normal_(0, 0.3, generator=g) for name, shape in shapes.items()}
    for name in made:
        if "norm" in name or "emb_ln" in name:
            made[name] += 1.0 if name.endswith("weight") else 0.0
    safetensors.torch.save_file(made, path / "model.safetensors")
    (path / "config.json").write_text(json.dumps(CONFIG))
    return made


def encode(w: dict[str, torch.Tensor], ids: list[int]) -> torch.Tensor:
    """Hidden states [N, hidden]."""

    def norm(x: torch.Tensor, name: str) -> torch.Tensor:
        return F.layer_norm(x, (HIDDEN,), w[f"{name}.weight"], w[f"{name}.bias"], 1e-5)

    size, n = HIDDEN // HEADS, len(ids)
    angle = torch.arange(n)[:, None] * 10_000.0 ** (-torch.arange(0, size, 2) / size)
    cos, sin = (torch.cat([f(angle), f(angle)], 1)[:, None] for f in (torch.cos, torch.sin))

    def turn(x: torch.Tensor) -> torch.Tensor:
        first, second = x.chunk(2, -1)
        return x * cos + torch.cat([-second, first], -1) * sin

    x = norm(w["embeddings.word_embeddings.weight"][ids] + w["embeddings.token_type_embeddings.weight"][0], "emb_ln")
    for i in range(LAYERS):
        at = f"encoder.layers.{i}."
        qkv = F.linear(x, w[f"{at}attn.Wqkv.weight"], w[f"{at}attn.Wqkv.bias"])
        q, k, v = (part.view(n, HEADS, size) for part in qkv.chunk(3, -1))
        scores = torch.einsum("qhd,khd->hqk", turn(q), turn(k)) * size**-0.5
        seen = torch.einsum("hqk,khd->qhd", scores.softmax(-1), v).reshape(n, HIDDEN)
        x = norm(x + F.linear(seen, w[f"{at}attn.out_proj.weight"], w[f"{at}attn.out_proj.bias"]), f"{at}norm1")
        if i % 2:
            up, down = (w[f"{at}mlp.experts.mlp.{name}"].view(EXPERTS, INNER, HIDDEN) for name in ("w1", "w2"))
            shares, chosen = F.linear(x, w[f"{at}mlp.router.layer.weight"]).softmax(-1).topk(2, -1)
            out = w[f"{at}mlp.experts.bias"].repeat(n, 1)
            for row in range(n):
                for share, e in zip(shares[row], chosen[row], strict=True):
                    out[row] += share * (F.gelu(x[row] @ up[e].T) @ down[e])
        else:
            inner = F.gelu(F.linear(x, w[f"{at}mlp.fc1.weight"], w[f"{at}mlp.fc1.bias"]))
            out = F.linear(inner, w[f"{at}mlp.fc2.weight"], w[f"{at}mlp.fc2.bias"])
        x = norm(x + out, f"{at}norm2")
    return x


@pytest.mark.parametrize("platform", ["cpu", pytest.param("reference", marks=pytest.mark.slow)])
def test_vectors_are_those_of_the_definition(platform: str, tmp_path: Path) -> None:
    weights, rng = make(tmp_path), np.random.default_rng(4)
    describe_pooling(tmp_path, "mean_tokens")
    texts = [rng.integers(2, VOCAB, n).tolist() for n in (31, 1, 90, 2)]
    for got, ids in zip(pooled(Rig(tmp_path, platform=platform, max_len=256), texts), texts, strict=True):
        np.testing.assert_allclose(got, encode(weights, ids).mean(0).numpy(), atol=2e-5)


@pytest.mark.parametrize("key", ["expert_choice_router", "moe_normalize_expert_weights", "num_shared_experts"])
def test_other_routers_are_refused(key: str, tmp_path: Path) -> None:
    make(tmp_path)
    config = {**read_config(tmp_path), key: 1}
    with pytest.raises(UnsupportedModelError, match=key):
        registry.family(config)(config)
