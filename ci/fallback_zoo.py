"""Every class of transformers that generates text, tiny and random, through the fallback and through transformers itself.
Compares greedy tokens and their logprobs over mixed batches of prefill chunks and decodes. Prints what was the same, and why
others are refused. Exit status 1 where something differs.

python ci/fallback_zoo.py [NAME ...] [--json]      # names of configurations (model_type); none = all, two minutes
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import tempfile
import warnings
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1] / "tests" / "models"))
os.environ.setdefault("TRANSFORMERS_VERBOSITY", "error")

import numpy as np
import torch
import transformers
from transformers.models.auto.configuration_auto import CONFIG_MAPPING
from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES

from thalweg.errors import ThalwegError

LARGEST = 40_000_000
"""Parameters of a configuration that is still tiny."""
SMALL: dict[str, Any] = {
    "vocab_size": 288, "hidden_size": 64, "intermediate_size": 80, "num_hidden_layers": 2, "num_attention_heads": 4,
    "num_key_value_heads": 2, "max_position_embeddings": 256, "eos_token_id": 256, "bos_token_id": 256, "pad_token_id": 0,
    "head_dim": 16, "num_local_experts": 6, "num_experts": 6, "n_routed_experts": 8, "num_experts_per_tok": 2,
    "moe_intermediate_size": 24, "shared_expert_intermediate_size": 32, "sliding_window": 9, "n_group": 2, "topk_group": 1,
    "q_lora_rank": 24, "kv_lora_rank": 16, "qk_nope_head_dim": 16, "qk_rope_head_dim": 8, "v_head_dim": 12,
    "moe_num_experts": 6, "moe_k": 2, "decoder_start_token_id": 0, "first_k_dense_replace": 1, "num_experts_per_token": 2,
    "ffn_dim": 80, "word_embed_proj_dim": 64, "n_embd": 64, "n_layer": 2, "n_head": 4, "n_positions": 256, "n_inner": 80,
}  # fmt: skip
"""Sizes, given to every configuration that has a key of that name."""
OWN: dict[str, dict[str, Any]] = {
    "gemma3n_text": {
        "num_hidden_layers": 4, "vocab_size_per_layer_input": 288, "hidden_size_per_layer_input": 8, "num_kv_shared_layers": 0,
        "layer_types": ["sliding_attention", "full_attention"] * 2, "intermediate_size": [80] * 4, "laurel_rank": 8,
        "activation_sparsity_pattern": [0.0] * 4, "altup_num_inputs": 2,
    },
    "gemma4_text": {"vocab_size_per_layer_input": 288, "hidden_size_per_layer_input": 8, "num_kv_shared_layers": 0},
    "gemma2": {"attn_logit_softcapping": 3.0, "query_pre_attn_scalar": 24},
    "gpt_neox": {"num_key_value_heads": 4}, "phimoe": {"num_local_experts": 4},
    "llama4_text": {"intermediate_size_mlp": 80, "attention_chunk_size": 8},
    "minimax_m2": {"rotary_dim": 8}, "dots1": {"n_shared_experts": 1}, "zaya": {"num_experts_per_tok": 1},
    "opt": {"do_layer_norm_before": True},
    "youtu": {"pad_token_id": None},  # else transformers clears the row of its embedding when it loads the file
    "dbrx": {
        "d_model": 64, "n_heads": 4, "n_layers": 2, "max_seq_len": 256, "attn_config": {"kv_n_heads": 2, "clip_qkv": 8.0},
        "ffn_config": {"ffn_hidden_size": 80, "moe_num_experts": 4, "moe_top_k": 2, "hidden_size": 64},
    },
    "lfm2_moe": {"layer_types": ["full_attention", "conv"]}, "lfm2": {"layer_types": ["full_attention", "conv"]},
    "codegen": {"rotary_dim": 8}, "gptj": {"rotary_dim": 8},
}  # fmt: skip
"""model_type -> what differs from that."""
PROMPTS = [list(range(1, 20)), [5, 9, 7], [33, 44, 55, 66, 77, 88, 99, 100, 111, 122, 133], [3]]
NEW = 8


def spread(model: Any) -> None:
    """Weights wide enough that a wrong one changes the next token; norms and biases that matter."""
    g = torch.Generator().manual_seed(7)
    buffers = [(n, b) for n, b in model.named_buffers() if n.endswith(("e_score_correction_bias", "router_bias"))]
    for name, p in (*model.named_parameters(), *buffers):
        if name.endswith("A_log"):
            p.uniform_(-3, 0.5, generator=g)
        elif p.dim() < 2:
            p.add_(torch.empty_like(p).normal_(0, 0.25, generator=g))
        elif "embed" in name or "lm_head" in name or ".wte." in name:
            p.normal_(0, 0.4, generator=g)
        else:
            p.normal_(0, 1.2 / p.shape[-1] ** 0.5, generator=g)


def named(kind: str) -> str:
    """The class of a model_type that generates text."""
    found = MODEL_FOR_CAUSAL_LM_MAPPING_NAMES[kind]
    return found if isinstance(found, str) else found[-1]


def settings(kind: str) -> Any:
    """A tiny configuration. Where the sizes do not go together, fewer of them."""
    config = CONFIG_MAPPING[kind]
    there = set(config().to_dict()) | set(config.attribute_map or {})
    sizes = {k: v for k, v in SMALL.items() if k in there} | OWN.get(kind, {})
    if "qk_rope_head_dim" in sizes:
        sizes |= {"head_dim": sizes["qk_rope_head_dim"]} if "head_dim" in there else {}
        sizes |= {"num_key_value_heads": sizes["num_attention_heads"]}
    if sizes.get("layer_types", 0) is None:
        del sizes["layer_types"]
    layers = config().to_dict().get("layer_types")
    if layers and "layer_types" not in sizes:
        period = list(dict.fromkeys(layers))
        sizes |= {"layer_types": period * (1 if len(period) > 1 else 2)}
        sizes["num_hidden_layers"] = len(sizes["layer_types"])
    return config(**sizes)


def judged(kind: str, folder: Path) -> tuple[str, str]:
    """(same, differs, refused or unmade; in words)."""
    from rig import Rig
    from zoo import load_reference

    try:
        config = settings(kind)
        with torch.device("meta"):
            empty = getattr(transformers, named(kind))._from_config(config)
        if (many := sum(p.numel() for p in empty.parameters())) > LARGEST:
            return "unmade", f"{many:,} parameters with these sizes"
        path = folder / kind
        with torch.random.fork_rng(devices=[]), torch.no_grad():
            model = getattr(transformers, named(kind))(config)
            spread(model)
        model.save_pretrained(path)
        oracle = load_reference(path, torch.float32)
        with torch.inference_mode():
            oracle(torch.tensor([PROMPTS[1]]), use_cache=False)
    except Exception as e:
        return "unmade", f"{type(e).__name__}: {_line(e)}"
    try:
        rig = Rig(path, platform="cpu", impl="transformers")
    except ThalwegError as e:
        return "refused", _line(e)
    except Exception as e:
        return "differs", f"{type(e).__name__}: {_line(e)}"
    return _compared(rig, oracle)


@torch.inference_mode()
def _compared(rig: Any, oracle: Any) -> tuple[str, str]:
    worst, other = 0.0, 0
    for s in rig.generate(PROMPTS, NEW, chunk=6, budget=17):
        logp = oracle(torch.tensor([s.tokens]), use_cache=False).logits[0].float().log_softmax(-1)
        other += s.tokens[s.prompt :] != logp[s.prompt - 1 : -1].argmax(-1).tolist()
        chosen = logp[torch.arange(len(s.tokens) - 1), torch.tensor(s.tokens[1:])].numpy()
        worst = max([worst, *np.abs(np.array([*s.scores, *s.logprobs]) - chosen)])
    return ("same" if not other and worst < 1e-3 else "differs"), f"{other} of {len(PROMPTS)} other, logprobs by {worst:.1e}"


def _line(e: Exception) -> str:
    return " ".join(str(e).split())[:240]


def main(words: list[str]) -> int:
    parser = argparse.ArgumentParser(description="Classes of transformers through the fallback, held against transformers.")
    parser.add_argument("names", nargs="*")
    parser.add_argument("--json", action="store_true")
    args = parser.parse_args(words)
    texts = [k for k in MODEL_FOR_CAUSAL_LM_MAPPING_NAMES if not named(k).endswith("ForConditionalGeneration")]
    texts = [k for k in texts if "text_config" not in CONFIG_MAPPING[k].sub_configs]
    rows = []
    warnings.simplefilter("ignore")
    with tempfile.TemporaryDirectory() as folder:
        for kind in args.names or texts:
            verdict, words_of = judged(kind, Path(folder))
            rows.append({"config": kind, "class": named(kind), "verdict": verdict, "what": words_of})
            if not args.json:
                print(f"{verdict:8} {named(kind):34} {words_of}", flush=True)
    if args.json:
        print(json.dumps(rows, indent=1))
    count = {v: sum(r["verdict"] == v for r in rows) for v in ("same", "refused", "differs", "unmade")}
    print(", ".join(f"{n} {v}" for v, n in count.items()), file=sys.stderr)
    return 1 if count["differs"] else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
