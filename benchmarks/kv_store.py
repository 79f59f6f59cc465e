"""Seconds of a prompt that is computed, and of one whose blocks come from a KV store, with random weights.

Two prompts take turns in a cache with room for one. The first time each is computed, and the second time it is loaded.

    python benchmarks/kv_store.py [--model SHAPE_DIR] [--tokens 8192] [--store host] [--threads N]

SHAPE_DIR needs a `config.json` only. Default: the shape of Qwen3-0.6B.
"""

from __future__ import annotations

import argparse
import json
import statistics
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

from thalweg import LLM, SamplingParams

SHAPE = {
    "architectures": ["Qwen3ForCausalLM"], "model_type": "qwen3", "hidden_size": 1024, "intermediate_size": 3072,
    "num_hidden_layers": 28, "num_attention_heads": 16, "num_key_value_heads": 8, "head_dim": 128, "vocab_size": 151936,
    "tie_word_embeddings": True, "max_position_embeddings": 40960, "rope_theta": 1e6, "rms_norm_eps": 1e-6,
    "hidden_act": "silu", "torch_dtype": "bfloat16",
}  # fmt: skip
BLOCK = 16


def measure(model: str, tokens: int, store: str, folder: Path, threads: int | None) -> dict[str, float]:
    options = {"cpu_bytes_to_use": 8 << 30} if store == "host" else {"folder": str(folder / "blocks"), "max_bytes": 8 << 30}
    (folder / "secret").write_text("a secret of sixteen bytes or more")
    llm = LLM(
        model=model, load_format="dummy", skip_tokenizer_init=True, max_model_len=tokens + 2 * BLOCK, block_size=BLOCK,
        num_gpu_blocks_override=tokens // BLOCK + 8, max_num_seqs=1, threads=threads, kv_key_secret=str(folder / "secret"),
        kv_transfer_config={"kv_connector": store, "kv_connector_extra_config": {"load_timeout": 600, **options}},
    )  # fmt: skip
    params = SamplingParams(max_tokens=8, temperature=0, ignore_eos=True, detokenize=False)
    prompts = [{"prompt_token_ids": [first, *range(10, 9 + tokens)]} for first in (5, 6)]
    seconds: dict[int, list[float]] = {0: [], 1: []}
    texts: list[Sequence[int]] = []
    for turn in range(4):
        at = time.perf_counter()
        (out,) = llm.generate([prompts[turn % 2]], params, use_tqdm=False)
        seconds[turn // 2].append(time.perf_counter() - at)
        texts.append(out.outputs[0].token_ids)
        assert (out.num_cached_tokens or 0) // BLOCK == (turn // 2) * ((tokens - 1) // BLOCK), "what was to be loaded is loaded"
        while llm.llm_engine.core.idle():
            pass
    assert texts[:2] == texts[2:], "one text"
    llm.shutdown()
    computed, loaded = statistics.median(seconds[0]), statistics.median(seconds[1])
    return {"computed_s": round(computed, 3), "loaded_s": round(loaded, 3), "times": round(computed / loaded, 1)}


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model")
    parser.add_argument("--tokens", type=int, default=8192)
    parser.add_argument("--store", choices=("host", "disk"), default="host")
    parser.add_argument("--threads", type=int)
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        (Path(name) / "config.json").write_text(json.dumps(SHAPE))
        print(json.dumps(measure(args.model or name, args.tokens, args.store, Path(name), args.threads)))
