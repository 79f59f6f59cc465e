"""The same requests by engines that differ in options and take turns, each in a process of its own. What a machine's other
tenants take, they take from all. Prints medians of seconds, and of each engine's seconds divided by the first one's in the same
round.

    python benchmarks/turns.py MODEL --engine '{"compress_weights": false}' --engine '{}' [--work 1x64x64 16x128x32]

--engine: options of the platform (`additional_config`). --work: requests x tokens of a prompt x tokens of an answer, all
at once. --args: what else `LLM` is given, the same to all. Prompts are random, and new in every round. The first does not
count.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import random
import statistics
import time
from multiprocessing.connection import Connection
from typing import Any

FIRST, LAST = 100, 2000
"""Prompts are made of tokens between these, which every vocabulary has, that of the bundled model too."""


def serve(requests: Connection, args: dict[str, Any]) -> None:
    """An engine: seconds for each (requests, prompt, answer, seed), until None."""
    from thalweg import LLM, SamplingParams

    llm = LLM(skip_tokenizer_init=True, enable_prefix_caching=False, **args)
    requests.send(None)
    while (work := requests.recv()) is not None:
        count, prompt, answer, seed = work
        rng = random.Random(seed)
        prompts = [{"prompt_token_ids": [rng.randrange(FIRST, LAST) for _ in range(prompt)]} for _ in range(count)]
        params = SamplingParams(temperature=0, max_tokens=answer, ignore_eos=True, detokenize=False)
        began = time.perf_counter()
        llm.generate(prompts, params, use_tqdm=False)
        requests.send(time.perf_counter() - began)
    llm.shutdown()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model")
    parser.add_argument("--engine", action="append", type=json.loads, required=True, help="JSON")
    parser.add_argument("--args", type=json.loads, default={}, help="JSON")
    parser.add_argument("--work", nargs="+", default=["1x32x64", "4x64x32", "16x128x32", "32x128x32", "1x512x1", "4x1024x1"])
    parser.add_argument("--rounds", type=int, default=8)
    a = parser.parse_args()
    shared = {"model": a.model, "device": "cpu", "dtype": "bfloat16", "max_model_len": 4096, **a.args}
    engines = []
    context = multiprocessing.get_context("spawn")
    for options in a.engine:
        here, there = context.Pipe()
        process = context.Process(target=serve, args=(there, {**shared, "additional_config": options}), daemon=True)
        process.start()
        there.close()  # so that an engine that ends is noticed
        here.recv()
        engines.append((here, process))
    for work in a.work:
        took = []
        for seed in range(a.rounds + 1):
            took.append([0.0] * len(engines))
            for i in list(range(len(engines)))[:: 1 if seed % 2 else -1]:
                engines[i][0].send((*map(int, work.split("x")), seed))
                took[-1][i] = engines[i][0].recv()
        for i, options in enumerate(a.engine):
            seconds = statistics.median(t[i] for t in took[1:])
            ratio = statistics.median(t[i] / t[0] for t in took[1:])
            print(f"{work:12} {json.dumps(options):40} {seconds:8.3f} s  {ratio:.3f} of the time", flush=True)
    for requests, process in engines:
        requests.send(None)
        process.join()


if __name__ == "__main__":
    main()
