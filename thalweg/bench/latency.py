"""`thalweg bench latency`: latency of one fixed batch, repeated."""

from __future__ import annotations

import argparse
import json
import time
from typing import Any

import numpy as np
from tqdm import tqdm

from thalweg.bench.common import at_least, check_output, percentiles, random_prompts, write
from thalweg.config import EngineArgs
from thalweg.params import SamplingParams

REFUSED = ("use-beam-search", "profile")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--input-len", type=int, default=32, help="prompt tokens (default 32)")
    parser.add_argument("--output-len", type=int, default=128, help="generated tokens (default 128)")
    parser.add_argument("--batch-size", type=int, default=8, help="prompts in the batch (default 8)")
    parser.add_argument("--n", type=int, default=1, help="sequences per prompt (default 1)")
    parser.add_argument("--num-iters-warmup", type=int, default=10, help="unmeasured iterations (default 10)")
    parser.add_argument("--num-iters", type=int, default=30, help="measured iterations (default 30)")
    parser.add_argument("--disable-detokenize", action="store_true", help="leave tokens as they are; make no text")
    parser.add_argument("--output-json", metavar="FILE", help="write the results there too")


def main(namespace: argparse.Namespace, args: EngineArgs) -> dict[str, Any]:
    """Run. Returns avg_latency, latencies and percentiles in seconds, tokens_per_second over the whole batch."""
    a = namespace
    at_least(1, input_len=a.input_len, output_len=a.output_len, batch_size=a.batch_size, n=a.n, num_iters=a.num_iters)
    at_least(0, num_iters_warmup=a.num_iters_warmup)
    check_output(a.output_json)
    from thalweg import LLM  # loads the tensor framework

    llm = LLM.from_engine_args(args)
    avoid = frozenset() if args.skip_tokenizer_init else llm.get_tokenizer().special_ids
    prompts = random_prompts([a.input_len] * a.batch_size, llm.config.model.vocab, avoid, args.seed)
    params = SamplingParams(
        n=a.n, temperature=1.0, top_p=1.0, ignore_eos=True, max_tokens=a.output_len, detokenize=not a.disable_detokenize
    )
    seconds = []
    for i in tqdm(range(a.num_iters_warmup + a.num_iters), desc="iterations", unit="batch"):
        llm.reset_prefix_cache()  # every iteration computes its prompts
        start = time.perf_counter()
        llm.generate(prompts, params, use_tqdm=False)
        if i >= a.num_iters_warmup:
            seconds.append(time.perf_counter() - start)
    result = {
        "avg_latency": float(np.mean(seconds)),
        "latencies": seconds,
        "percentiles": percentiles(seconds),
        "tokens_per_second": a.batch_size * a.n * a.output_len / float(np.median(seconds)),
        "kernel_plan": llm.kernel_plan,
    }
    llm.shutdown()
    write(a.output_json, result)
    print(json.dumps({k: v for k, v in result.items() if k != "kernel_plan"}, indent=2))
    return result
