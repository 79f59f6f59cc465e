"""Cost of the control loop: decoding sequences on the null platform, where a step itself costs almost nothing.

Measures one whole turn of the loop: schedule, fill the StepBatch, launch, read, check stops, publish blocks, make Outputs.
Prefill steps are excluded. Times are wall-clock but `mean_cpu_us`, which is the thread's own CPU time: compare that on a
machine that has other work.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from dataclasses import replace
from typing import Any

import numpy as np

from thalweg.config import CacheConfig, DeviceConfig, EngineConfig, ModelConfig, SchedulerConfig
from thalweg.engine.control.core import EngineCore
from thalweg.engine.control.executor import LaunchOnlyExecutor
from thalweg.engine.messages import EngineRequest, TokenSampling
from thalweg.hal.discovery import load
from thalweg.hal.kv import KVSpec
from thalweg.hal.platform import Place
from thalweg.hal.step import StateBox

VOCAB = 32_000
BLOCK_TOKENS = 16
MAX_TOKENS = 8192


def null_config(*, seqs: int, max_len: int, depth: int, blocks: int | None = None) -> EngineConfig:
    """An EngineConfig for the null platform: one full KV group, with blocks for every sequence unless said otherwise."""
    per_seq = -(-max_len // BLOCK_TOKENS)
    return EngineConfig(
        model=ModelConfig(
            path="", architecture="null", dtype="float32", max_len=max_len, vocab=VOCAB, seed=0, load_format="dummy",
            logprobs_mode="raw_logprobs", max_logprobs=20,
        ),
        device=DeviceConfig(platform="null"),
        cache=CacheConfig(
            block_tokens=BLOCK_TOKENS, groups=(KVSpec("full", BLOCK_TOKENS, 8 * BLOCK_TOKENS, (0,)),),
            blocks=(seqs * per_seq + 1 if blocks is None else blocks,),
        ),
        scheduler=SchedulerConfig(max_seqs=seqs, token_budget=MAX_TOKENS, pipeline_depth=depth),
    )  # fmt: skip


def null_executor(config: EngineConfig, **options: Any) -> LaunchOnlyExecutor:
    """An executor of the null platform with the state the configuration needs. `options` are the platform's own."""
    platform = load("null")
    options = {"vocab": config.model.vocab, "windows": tuple(g.window for g in config.cache.groups), **options}
    device = platform.with_options(replace(platform.options, **options)).open(Place())
    layout = [(n, config.cache.block_tokens) for n in config.cache.blocks]
    state = {
        "kv": [np.zeros(shape, np.int64) for shape in layout],
        "history": np.zeros((config.scheduler.max_seqs + 1, config.model.max_len + 1), np.int32),
    }
    return LaunchOnlyExecutor(config, device.compile(None, None, StateBox(state), None, None))  # type: ignore[arg-type]


def run(seqs: int = 256, steps: int = 2000, depth: int = 2, context: int = 128, progress: bool = False) -> dict[str, Any]:
    """Microseconds per turn of the loop with `seqs` sequences decoding, over `steps` turns, from `context` tokens on."""
    warm_up = 16
    lengths = [context + i % BLOCK_TOKENS for i in range(seqs)]  # so that block boundaries spread evenly over the steps
    ramp = sum(lengths) // MAX_TOKENS + seqs // MAX_TOKENS + 8
    output = steps + warm_up + depth + ramp
    config = null_config(seqs=seqs, max_len=max(lengths) + output, depth=depth)
    core = EngineCore(null_executor(config, tokens="fixed", fixed=7))
    rng = np.random.default_rng(0)
    sampling = TokenSampling(max_tokens=output, temperature=0.8, top_p=0.95, eos_ids=(2,), stop_ids=(3, 5))
    prompts = [rng.integers(8, VOCAB, n).astype(np.int32) for n in lengths]
    core.add([EngineRequest(handle=i, tokens=p, prompt_len=p.size, sampling=sampling) for i, p in enumerate(prompts)])
    while core.scheduler.waiting or (core.slots.length - core.slots.scheduled)[1:].max() > 1:
        core.step()
    for _ in range(warm_up):
        core.step()
    times = np.empty(steps)
    cpu = time.thread_time()
    for i in range(steps):
        begin = time.perf_counter()
        out = core.step()
        times[i] = time.perf_counter() - begin
        if out is None or out.tokens.size != seqs:
            raise RuntimeError(f"step {i} returned {0 if out is None else out.tokens.size} tokens, not {seqs}")
        if progress and i % 256 == 0:
            print(f"\rbench host: {i}/{steps} steps", end="", file=sys.stderr, flush=True)
    cpu = time.thread_time() - cpu
    if progress:
        print(f"\rbench host: {steps}/{steps} steps", file=sys.stderr)
    micro = times * 1e6
    median = float(np.median(micro))
    return {
        "benchmark": "host",
        "seqs": seqs,
        "steps": steps,
        "pipeline_depth": depth,
        "context": context,
        "median_us": round(median, 1),
        "mean_us": round(float(micro.mean()), 1),
        "mean_cpu_us": round(cpu / steps * 1e6, 1),
        "p90_us": round(float(np.percentile(micro, 90)), 1),
        "p99_us": round(float(np.percentile(micro, 99)), 1),
        "us_per_seq": round(median / seqs, 3),
        "budget_us": 100 + seqs,
    }


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--seqs", type=int, default=256, help="sequences decoding at once (default 256)")
    parser.add_argument("--steps", type=int, default=2000, help="steps measured (default 2000)")
    parser.add_argument("--depth", type=int, default=2, help="steps launched before the oldest is read (default 2)")
    parser.add_argument("--context", type=int, default=128, help="prompt tokens of each sequence (default 128)")


def main(args: argparse.Namespace) -> dict[str, Any]:
    """Run and print the figures as one JSON object on standard output."""
    for name in ("seqs", "steps", "depth", "context"):
        if getattr(args, name) < 1:
            raise SystemExit(f"bench host: --{name} must be at least 1, not {getattr(args, name)}")
    result = run(args.seqs, args.steps, args.depth, args.context, progress=sys.stderr.isatty())
    print(json.dumps(result))
    return result
