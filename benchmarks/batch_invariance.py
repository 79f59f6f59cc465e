"""What batch invariance costs: the same model with invariant kernels and with those that follow the batch, turn by turn.

    python benchmarks/batch_invariance.py [--model DIR | --shape qwen3-0.6b] [--repeats 5]

Ratios are of medians; 1.05 means invariance costs 5 %.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import tempfile
import time
from pathlib import Path

import numpy as np
from vs_transformers import shape_model

from thalweg import LLM, SamplingParams

CASES = {"decode, 1 stream": (1, 128, 32), "decode, 16 streams": (16, 128, 32), "prefill, 1,024 tokens": (1, 1024, 1)}
"""name: (requests, prompt tokens, new tokens)"""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", type=Path)
    parser.add_argument("--shape", default="qwen3-0.6b")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--repeats", type=int, default=5)
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as scratch:
        model = args.model or shape_model(args.shape, None, Path(scratch))
        engines = {on: engine(model, args.device, on) for on in (True, False)}
        for llm in engines.values():
            seconds(llm, 2, 64, 4, 0)  # warm
        report = {}
        for name, case in CASES.items():
            times: dict[bool, list[float]] = {True: [], False: []}
            for repeat in range(args.repeats):
                for on, llm in engines.items():
                    times[on].append(seconds(llm, *case, 1 + repeat))
            on, off = statistics.median(times[True]), statistics.median(times[False])
            report[name] = {"invariant_seconds": on, "as_it_comes_seconds": off, "price": on / off}
            print(f"{name:24} {on:8.3f} s {off:8.3f} s  {on / off:.3f}x", file=sys.stderr)
    print(json.dumps(report, indent=2))


def engine(model: Path, device: str, batch_invariant: bool) -> LLM:
    return LLM(
        str(model), device=device, skip_tokenizer_init=True, max_model_len=2048, batch_invariant=batch_invariant,
        enable_prefix_caching=False, use_tqdm_on_load=False,
    )  # fmt: skip


def seconds(llm: LLM, requests: int, prompt: int, new: int, seed: int) -> float:
    rng = np.random.default_rng(seed)
    vocab = llm.config.model.vocab
    prompts = [{"prompt_token_ids": rng.integers(0, vocab, prompt).tolist()} for _ in range(requests)]
    params = SamplingParams(temperature=0, max_tokens=new, ignore_eos=True, detokenize=False)
    start = time.perf_counter()
    llm.generate(prompts, params, use_tqdm=False)
    return time.perf_counter() - start


if __name__ == "__main__":
    main()
