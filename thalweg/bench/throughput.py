"""`thalweg bench throughput`: how fast many random requests are done, all given at once."""

from __future__ import annotations

import argparse
import json
import time
from typing import Any

import numpy as np

from thalweg.bench.common import at_least, check_output, percentiles, random_prompts, write
from thalweg.config import EngineArgs
from thalweg.errors import ConfigError
from thalweg.params import SamplingParams

REFUSED = (
    "dataset", "dataset-path", "hf-max-batch-size", "hf-enable-torch-compile", "async-engine", "lora-path", "lora-assignment",
    "hf-subset", "hf-split", "hf-name", "profile", "prefix-repetition-prefix-len", "prefix-repetition-suffix-len",
    "prefix-repetition-num-prefixes", "prefix-repetition-output-len", "asr-min-audio-len-sec", "asr-max-audio-len-sec",
    "random-batch-size", "backend",
)  # fmt: skip


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--dataset-name", default="random", help="random, the only one in this version")
    parser.add_argument("--num-prompts", type=int, default=1000, help="requests (default 1000)")
    parser.add_argument("--input-len", type=int, help="prompt tokens; as --random-input-len")
    parser.add_argument("--output-len", type=int, help="generated tokens; as --random-output-len")
    parser.add_argument("--random-input-len", type=int, default=1024, help="prompt tokens (default 1024)")
    parser.add_argument("--random-output-len", type=int, default=128, help="generated tokens (default 128)")
    parser.add_argument(
        "--random-range-ratio", type=float, default=0.0, help="lengths vary by this fraction, up and down (default 0)"
    )
    parser.add_argument("--random-prefix-len", type=int, default=0, help="tokens every prompt begins with (default 0)")
    parser.add_argument("--prefix-len", type=int, help="as --random-prefix-len")
    parser.add_argument("--n", type=int, default=1, help="sequences per prompt (default 1)")
    parser.add_argument("--disable-detokenize", action="store_true", help="leave tokens as they are; make no text")
    parser.add_argument("--output-json", metavar="FILE", help="write the results there too")


def main(namespace: argparse.Namespace, args: EngineArgs) -> dict[str, Any]:
    """Run. Returns elapsed_time, num_requests, total_num_tokens (prompt and output), rates per second, and the
    percentiles of time to first token and of whole requests, in seconds from the common start."""
    a = namespace
    inputs, outputs = _lengths(a, args.seed)
    check_output(a.output_json)
    from thalweg import LLM  # loads the tensor framework

    llm = LLM.from_engine_args(args)
    avoid = frozenset() if args.skip_tokenizer_init else llm.get_tokenizer().special_ids
    prefix = a.random_prefix_len if a.prefix_len is None else a.prefix_len
    prompts = random_prompts(inputs, llm.config.model.vocab, avoid, args.seed, prefix)
    detokenize = not a.disable_detokenize
    params = [SamplingParams(n=a.n, temperature=1.0, ignore_eos=True, max_tokens=o, detokenize=detokenize) for o in outputs]
    start = time.perf_counter()
    done = llm.generate(prompts, params)
    elapsed = time.perf_counter() - start
    built = sum(len(c.token_ids) for o in done for c in o.outputs)
    read = sum(len(p["prompt_token_ids"]) for p in prompts)
    timed = [o.metrics for o in done if o.metrics is not None and o.metrics.first_token_ts]
    result: dict[str, Any] = {
        "elapsed_time": elapsed,
        "num_requests": len(done),
        "total_num_tokens": read + built,
        "requests_per_second": len(done) / elapsed,
        "tokens_per_second": (read + built) / elapsed,
        "output_tokens_per_second": built / elapsed,
        "kernel_plan": llm.kernel_plan,
    }
    if timed:
        result["ttft_percentiles"] = percentiles([m.first_token_ts - m.arrival_time for m in timed])
        result["latency_percentiles"] = percentiles([m.last_token_ts - m.arrival_time for m in timed])
    llm.shutdown()
    write(a.output_json, result)
    print(json.dumps({k: v for k, v in result.items() if k != "kernel_plan"}, indent=2))
    return result


def _lengths(a: argparse.Namespace, seed: int) -> tuple[list[int], list[int]]:
    """Prompt and output lengths of each request, drawn evenly from length * (1 +- ratio)."""
    if a.dataset_name != "random":
        raise ConfigError(f"--dataset-name: {a.dataset_name!r} is not in this version; random is")
    means = [a.random_input_len if a.input_len is None else a.input_len]
    means.append(a.random_output_len if a.output_len is None else a.output_len)
    at_least(1, num_prompts=a.num_prompts, input_len=means[0], output_len=means[1], n=a.n)
    at_least(0, random_prefix_len=a.random_prefix_len, prefix_len=a.prefix_len)
    if not 0 <= a.random_range_ratio < 1:
        raise ConfigError(f"--random-range-ratio: {a.random_range_ratio} must be at least 0 and below 1")
    rng = np.random.default_rng(seed)
    drawn = []
    for mean in means:
        spread = int(mean * a.random_range_ratio)
        drawn.append(np.maximum(1, rng.integers(mean - spread, mean + spread + 1, a.num_prompts)).tolist())
    return drawn[0], drawn[1]
