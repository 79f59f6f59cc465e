"""Make a checkpoint of a real model's shape with random weights, to measure speed without a download.

    python scripts/make_shape_model.py --shape qwen3-0.6b --out DIR [--dtype bfloat16] [--vocab N] [--layers N] [--tokenizer]

With --tokenizer it gets thalweg-nano's tokenizer, filled up to the model's vocabulary; without, use
skip_tokenizer_init.
"""

from __future__ import annotations

import argparse
import json
import random
import shutil
from pathlib import Path
from typing import Any

import weights

NANO = Path(__file__).resolve().parent.parent / "thalweg" / "nano" / "weights"
LONGEST = 11
"""Letters of a token that fills up a vocabulary."""
COMMON: dict[str, Any] = {"hidden_act": "silu", "rms_norm_eps": 1e-6, "bos_token_id": None, "eos_token_id": 2}
SHAPES: dict[str, dict[str, Any]] = {
    "qwen3-0.6b": {
        "architectures": ["Qwen3ForCausalLM"],
        "model_type": "qwen3",
        "vocab_size": 151936,
        "hidden_size": 1024,
        "intermediate_size": 3072,
        "num_hidden_layers": 28,
        "num_attention_heads": 16,
        "num_key_value_heads": 8,
        "head_dim": 128,
        "max_position_embeddings": 40960,
        "rope_theta": 1000000,
        "attention_bias": False,
        "tie_word_embeddings": True,
        "use_sliding_window": False,
    },
    "qwen3-30b-a3b": {
        "architectures": ["Qwen3MoeForCausalLM"],
        "model_type": "qwen3_moe",
        "vocab_size": 151936,
        "hidden_size": 2048,
        "intermediate_size": 6144,
        "moe_intermediate_size": 768,
        "num_experts": 128,
        "num_experts_per_tok": 8,
        "norm_topk_prob": True,
        "decoder_sparse_step": 1,
        "mlp_only_layers": [],
        "num_hidden_layers": 48,
        "num_attention_heads": 32,
        "num_key_value_heads": 4,
        "head_dim": 128,
        "max_position_embeddings": 40960,
        "rope_theta": 1000000,
        "attention_bias": False,
        "tie_word_embeddings": False,
        "use_sliding_window": False,
    },
    "llama-3.2-1b": {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "vocab_size": 128256,
        "hidden_size": 2048,
        "intermediate_size": 8192,
        "num_hidden_layers": 16,
        "num_attention_heads": 32,
        "num_key_value_heads": 8,
        "head_dim": 64,
        "max_position_embeddings": 131072,
        "rope_theta": 500000.0,
        "rope_scaling": {
            "rope_type": "llama3",
            "factor": 32.0,
            "low_freq_factor": 1.0,
            "high_freq_factor": 4.0,
            "original_max_position_embeddings": 8192,
        },
        "attention_bias": False,
        "mlp_bias": False,
        "tie_word_embeddings": True,
    },
}
"""Configurations as published; the values of the weights are not."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--shape", choices=sorted(SHAPES), required=True)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--dtype", choices=sorted(weights.STORED), default="bfloat16")
    parser.add_argument("--vocab", type=int, help="another vocabulary size")
    parser.add_argument("--layers", type=int, help="another number of layers")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--tokenizer", action="store_true")
    args = parser.parse_args()
    if min(args.vocab or 1, args.layers or 1) < 1:
        parser.error("--vocab and --layers must be positive")
    print(make(args.shape, args.out, args.dtype, args.vocab, args.layers, args.seed, args.tokenizer))


def make(
    shape: str,
    out: Path,
    dtype: str = "bfloat16",
    vocab: int | None = None,
    layers: int | None = None,
    seed: int = 0,
    tokenizer: bool = False,
) -> Path:
    """Write config.json, model.safetensors and, if asked, a tokenizer into `out`; returns it."""
    config = {**COMMON, **SHAPES[shape], "dtype": dtype}
    config |= {"vocab_size": vocab or config["vocab_size"], "num_hidden_layers": layers or config["num_hidden_layers"]}
    out.mkdir(parents=True, exist_ok=True)
    (out / "config.json").write_text(json.dumps(config, indent=2) + "\n")
    qk_norm = config["model_type"] in ("qwen3", "qwen3_moe")
    weights.write(out / "model.safetensors", config, weights.shapes(config, qk_norm), seed)
    if tokenizer:
        _tokenizer(out, config["vocab_size"])
    return out


def _tokenizer(out: Path, vocab: int) -> None:
    """As large as the vocabulary by merges of tokens that are there, as trained ones are: added tokens would be looked for in
    every text first."""
    held = json.loads((NANO / "tokenizer.json").read_text())
    added = {t["content"]: t["id"] for t in held["added_tokens"]}
    tokens, merges, rng = held["model"]["vocab"], held["model"]["merges"], random.Random(0)
    parts = [t for t in tokens if t not in added and 2 * len(t) <= LONGEST]
    known = 1 + max({**tokens, **added}.values())
    if vocab < known:
        raise SystemExit(f"--vocab {vocab}: the tokenizer has {known} tokens already")
    while known < vocab:
        pair = rng.choice(parts), rng.choice(parts)
        made = "".join(pair)
        if len(made) <= LONGEST and made not in tokens:
            tokens[made], known = known, known + 1
            merges.append(list(pair))
            if 2 * len(made) <= LONGEST:
                parts.append(made)
    (out / "tokenizer.json").write_text(json.dumps(held, ensure_ascii=False))
    for file in ("tokenizer_config.json", "chat_template.jinja"):
        shutil.copy(NANO / file, out / file)


if __name__ == "__main__":
    main()
