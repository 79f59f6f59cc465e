"""A folder as Mistral publishes models, with random weights, and what such a model computes: attention whose neighbouring
values turn together as complex numbers, by mistral-inference's definition. Nothing here knows transformers' names or orders."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file

DATA = Path(__file__).parent / "data"
PARAMS: dict[str, Any] = {
    "dim": 48, "n_layers": 2, "head_dim": 16, "hidden_dim": 80, "n_heads": 4, "n_kv_heads": 2, "norm_eps": 1e-5,
    "vocab_size": 1240, "rope_theta": 1000.0, "max_seq_len": 128,
}  # fmt: skip
MOE = {"moe": {"num_experts": 4, "num_experts_per_tok": 2}}


def make(folder: Path, *, tokenizer: str = "tekken.json", files: int = 1, **changes: Any) -> dict[str, torch.Tensor]:
    """The weights. changes: of PARAMS."""
    params = {k: v for k, v in {**PARAMS, **changes}.items() if v is not None}
    weights = _weights(params)
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "params.json").write_text(json.dumps(params))
    if tokenizer:
        shutil.copy(DATA / tokenizer, folder)
    save(folder, weights, files)
    return weights


def save(folder: Path, weights: dict[str, torch.Tensor], files: int = 1) -> None:
    names = sorted(weights)
    if files == 1:
        save_file(weights, folder / "consolidated.safetensors")
        return
    where = {n: f"consolidated-{i * files // len(names) + 1:05}-of-{files:05}.safetensors" for i, n in enumerate(names)}
    for file in set(where.values()):
        save_file({n: weights[n] for n in names if where[n] == file}, folder / file)
    (folder / "consolidated.safetensors.index.json").write_text(json.dumps({"weight_map": where}))


def _weights(p: dict[str, Any]) -> dict[str, torch.Tensor]:
    g, d, f = torch.Generator().manual_seed(5), p["dim"], p["hidden_dim"]
    q, kv = p["n_heads"] * p["head_dim"], p["n_kv_heads"] * p["head_dim"]
    shapes = {"tok_embeddings": (p["vocab_size"], d), "output": (p["vocab_size"], d), "norm": (d,)}
    for i in range(p["n_layers"]):
        at = f"layers.{i}"
        shapes |= {f"{at}.attention_norm": (d,), f"{at}.ffn_norm": (d,)}
        shapes |= {f"{at}.attention.{n}": s for n, s in (("wq", (q, d)), ("wk", (kv, d)), ("wv", (kv, d)), ("wo", (d, q)))}
        experts = (p.get("moe") or {}).get("num_experts", 0)
        for part in [f"experts.{e}." for e in range(experts)] or [""]:
            shapes |= {f"{at}.feed_forward.{part}{n}": s for n, s in (("w1", (f, d)), ("w2", (d, f)), ("w3", (f, d)))}
        if experts:
            shapes[f"{at}.feed_forward.gate"] = (experts, d)
    made = {}
    for name, shape in shapes.items():
        drawn = torch.empty(shape).normal_(0, 1, generator=g)
        scale = 0.4 if name in ("tok_embeddings", "output") else 1.2 / shape[-1] ** 0.5
        made[f"{name}.weight"] = 1 + 0.2 * drawn if len(shape) == 1 else drawn * scale
    return made


def log_probabilities(
    weights: dict[str, torch.Tensor], ids: list[int], laid: tuple[int, torch.Tensor] | None = None, **changes: Any
) -> torch.Tensor:
    """[len, vocab], of a model with these weights after each token. laid: an id, and vectors in place of its embeddings."""
    p = {**PARAMS, **changes}
    h = weights["tok_embeddings.weight"][ids]
    if laid is not None:
        h[torch.tensor(ids) == laid[0]] = laid[1]
    for i in range(p["n_layers"]):
        w = {n.removeprefix(f"layers.{i}."): t for n, t in weights.items() if n.startswith(f"layers.{i}.")}
        window = p.get("sliding_window")
        window = window[i % len(window)] if isinstance(window, list) else window
        h = h + _attention(p, w, _norm(h, w["attention_norm.weight"], p), window)
        x = _norm(h, w["ffn_norm.weight"], p)
        h = h + (_mixture(p, w, x) if p.get("moe") else _mlp(w, "feed_forward.", x))
    return (_norm(h, weights["norm.weight"], p) @ weights["output.weight"].T).log_softmax(-1)


def _norm(x: torch.Tensor, weight: torch.Tensor, p: dict[str, Any]) -> torch.Tensor:
    return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + p["norm_eps"]) * weight


def _attention(p: dict[str, Any], w: dict[str, torch.Tensor], x: torch.Tensor, window: int | None) -> torch.Tensor:
    n, dim = len(x), p["head_dim"]
    q, k, v = ((x @ w[f"attention.{name}.weight"].T).view(n, -1, dim) for name in ("wq", "wk", "wv"))
    freqs = 1.0 / p["rope_theta"] ** (torch.arange(0, dim, 2).float() / dim)
    turn = torch.polar(torch.ones(n, dim // 2), torch.outer(torch.arange(n).float(), freqs))[:, None]
    q, k = (torch.view_as_real(torch.view_as_complex(t.reshape(n, -1, dim // 2, 2)) * turn).flatten(2) for t in (q, k))
    k, v = (t.repeat_interleave(p["n_heads"] // p["n_kv_heads"], dim=1) for t in (k, v))
    scores = torch.einsum("qhd,khd->hqk", q, k) / dim**0.5
    ago = torch.arange(n)[:, None] - torch.arange(n)[None]
    hidden = (ago < 0) | (ago >= (window or n))
    out = torch.einsum("hqk,khd->qhd", scores.masked_fill(hidden, float("-inf")).softmax(-1), v)
    return out.flatten(1) @ w["attention.wo.weight"].T


def _mlp(w: dict[str, torch.Tensor], at: str, x: torch.Tensor) -> torch.Tensor:
    gate, up = x @ w[f"{at}w1.weight"].T, x @ w[f"{at}w3.weight"].T
    return (torch.nn.functional.silu(gate) * up) @ w[f"{at}w2.weight"].T


def _mixture(p: dict[str, Any], w: dict[str, torch.Tensor], x: torch.Tensor) -> torch.Tensor:
    best, chosen = torch.topk(x @ w["feed_forward.gate.weight"].T, p["moe"]["num_experts_per_tok"])
    shares, out = best.softmax(-1), torch.zeros_like(x)
    for e in range(p["moe"]["num_experts"]):
        share = torch.where(chosen == e, shares, 0.0).sum(-1, keepdim=True)
        out = out + share * _mlp(w, f"feed_forward.experts.{e}.", x)
    return out
