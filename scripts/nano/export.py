"""Write a trained model as a checkpoint every other software reads: config, generation config, bf16 safetensors under the
names of Qwen3ForCausalLM."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import torch
from model import Block, Nano, Shape
from safetensors.torch import save_file
from torch import Tensor

END, PAD = 2, 0
"""Ids of <|im_end|> and <|endoftext|>, the tokenizer's special tokens."""


def hf_state(model: Nano) -> dict[str, Tensor]:
    """The weights under their public names, in bf16, on the host; the output layer is the embedding and not stored twice."""
    s = model.s
    state: dict[str, Tensor] = {"model.embed_tokens.weight": model.embed.weight, "model.norm.weight": model.norm}
    for i, block in enumerate(model.blocks):
        state |= block_state(block, f"model.layers.{i}.", s)
    return {name: t.detach().to("cpu", torch.bfloat16).contiguous().clone() for name, t in sorted(state.items())}


def block_state(block: Block, at: str, s: Shape) -> dict[str, Tensor]:
    """The weights of a layer under their public names. at: their prefix."""
    q, k, v = block.attention.qkv.weight.split(block.attention.split)
    gate, up = block.up.weight.split(s.inner)
    return {
        at + "input_layernorm.weight": block.norm1,
        at + "post_attention_layernorm.weight": block.norm2,
        at + "self_attn.q_proj.weight": q,
        at + "self_attn.k_proj.weight": k,
        at + "self_attn.v_proj.weight": v,
        at + "self_attn.o_proj.weight": block.attention.out.weight,
        at + "self_attn.q_norm.weight": block.attention.q_norm,
        at + "self_attn.k_norm.weight": block.attention.k_norm,
        at + "mlp.gate_proj.weight": gate,
        at + "mlp.up_proj.weight": up,
        at + "mlp.down_proj.weight": block.down.weight,
    }


def config(s: Shape) -> dict[str, Any]:
    return {
        "architectures": ["Qwen3ForCausalLM"],
        "model_type": "qwen3",
        "vocab_size": s.vocab,
        "hidden_size": s.hidden,
        "intermediate_size": s.inner,
        "num_hidden_layers": s.layers,
        "num_attention_heads": s.heads,
        "num_key_value_heads": s.kv_heads,
        "head_dim": s.head_dim,
        "hidden_act": "silu",
        "max_position_embeddings": s.positions,
        "rms_norm_eps": s.eps,
        "rope_theta": s.theta,
        "attention_bias": False,
        "tie_word_embeddings": True,
        "bos_token_id": None,
        "eos_token_id": END,
        "pad_token_id": PAD,
        "dtype": "bfloat16",
    }


def export(model: Nano, out: Path) -> None:
    """Write the checkpoint into `out`, beside the tokenizer's files."""
    out.mkdir(parents=True, exist_ok=True)
    write_json(out / "config.json", config(model.s))
    write_json(out / "generation_config.json", {"eos_token_id": [END, PAD], "pad_token_id": PAD, "temperature": 0.0})
    weights = out / "model.safetensors"
    save_file(hf_state(model), weights, metadata={"format": "pt"})
    weights.chmod(0o644)  # the library makes files only their owner may read


def write_json(file: Path, content: dict[str, Any]) -> None:
    file.write_text(json.dumps(content, indent=2) + "\n", encoding="utf-8")
