"""What n-gram drafts bring: the same requests with and without, turn by turn, on text that repeats itself and text that
does not.

    python benchmarks/speculation.py [--model DIR | --shape NAME] [--device cpu] [--tokens 4] [--repeats 5]

Prompts loop ("copy") or are drawn at random ("random"). With the bundled model what follows a loop goes on looping; a model
of random weights (`--shape`) loops as soon as it is greedy. Ratios are of medians; 2.0 means twice the tokens per second.
The tokens are compared too, and must be equal.
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

CASES = {
    "copy, 1 stream": (1, True),
    "copy, 8 streams": (8, True),
    "random, 1 stream": (1, False),
    "random, 8 streams": (8, False),
}
PROMPT, NEW = 96, 128


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", type=Path, help="a directory; default: the bundled model")
    parser.add_argument("--shape", help="random weights of this shape instead")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--tokens", type=int, default=4, help="drafts of a sequence in a step")
    parser.add_argument("--repeats", type=int, default=5)
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as scratch:
        model = args.model or (shape_model(args.shape, None, Path(scratch)) if args.shape else "thalweg-nano")
        engines = {on: engine(str(model), args.device, args.tokens if on else 0) for on in (True, False)}
        for llm in engines.values():
            run(llm, 2, True, 0)  # warm
        report = {}
        for name, case in CASES.items():
            times: dict[bool, list[float]] = {True: [], False: []}
            for repeat in range(args.repeats):
                said = {}
                for on, llm in engines.items():
                    seconds, said[on] = run(llm, *case, 1 + repeat)
                    times[on].append(seconds)
                if said[True] != said[False]:
                    raise SystemExit(f"{name}: the text differs with drafts and without")
            on, off = statistics.median(times[True]), statistics.median(times[False])
            report[name] = {"with_seconds": on, "without_seconds": off, "speedup": off / on}
            print(f"{name:20} {on:8.3f} s {off:8.3f} s  {off / on:.2f}x", file=sys.stderr)
        stats = engines[True].stats()
        report["accepted"] = stats.accepted_tokens / max(1, stats.draft_tokens)
    print(json.dumps(report, indent=2))


def engine(model: str, device: str, tokens: int) -> LLM:
    drafts = {"method": "ngram", "num_speculative_tokens": tokens, "prompt_lookup_min": 2, "prompt_lookup_max": 4}
    return LLM(
        model, device=device, skip_tokenizer_init=True, max_model_len=512, max_num_seqs=8, enable_prefix_caching=False,
        use_tqdm_on_load=False, speculative_config=drafts if tokens else None,
    )  # fmt: skip


def run(llm: LLM, requests: int, copy: bool, seed: int) -> tuple[float, list[list[int]]]:
    """Seconds, and the tokens of every request. Half of the streams are greedy; random ones all draw their tokens."""
    rng = np.random.default_rng(seed)
    vocab = llm.config.model.vocab
    prompts, params = [], []
    for i in range(requests):
        loop = rng.integers(10, vocab, int(rng.integers(5, 20)) if copy else PROMPT)
        prompts.append({"prompt_token_ids": np.resize(loop, PROMPT).tolist()})
        hot = not copy or i % 2 == 1
        params.append(
            SamplingParams(max_tokens=NEW, ignore_eos=True, temperature=0.5 + 0.5 * (not copy) if hot else 0, seed=seed + i)
        )
    begin = time.perf_counter()
    outputs = llm.generate(prompts, params, use_tqdm=False)
    return time.perf_counter() - begin, [list(o.outputs[0].token_ids) for o in outputs]


if __name__ == "__main__":
    main()
