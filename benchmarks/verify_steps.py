"""What it costs to verify drafts: seconds of a step of one token per sequence, and of steps that verify K drafts each.

    python benchmarks/verify_steps.py [--model DIR] [--device cpu] [--seqs 1 8] [--drafts 1 3 7] [--steps 60]

"uniform" steps have equally many drafts of every sequence, and are recorded, captured or compiled like steps of one token.
"ragged" ones say nothing of that, and run as they are written. Figures are minima over the steps, in milliseconds, and the
ratio of uniform to plain. The tokens of both are compared, and must be equal.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np

from thalweg import LLM
from thalweg.hal.parts.drafts import Drafts
from thalweg.hal.step import SamplingArrays, StepBatch, features_of

CONTEXT = 64


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", type=Path, help="a directory; default: the bundled model")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--seqs", type=int, nargs="+", default=[1, 8])
    parser.add_argument("--drafts", type=int, nargs="+", default=[1, 3, 7])
    parser.add_argument("--steps", type=int, default=60)
    args = parser.parse_args()
    most = max(args.drafts)
    llm = LLM(
        str(args.model or "thalweg-nano"), device=args.device, skip_tokenizer_init=True, max_model_len=256,
        max_num_seqs=max(args.seqs), use_tqdm_on_load=False,
        speculative_config={"method": "ngram", "num_speculative_tokens": most},
    )  # fmt: skip
    launch = llm.llm_engine.worker.launch
    report = {}
    for seqs in args.seqs:
        plain, _ = timed(launch, verify(llm, seqs, 0, most), args.steps)
        report[f"{seqs} x plain"] = {"ms": 1e3 * plain}
        for k in args.drafts:
            batch = verify(llm, seqs, k, most)
            uniform, tokens = timed(launch, batch, args.steps)
            ragged, same = timed(launch, replace(batch, uniform=0), args.steps)
            if not np.array_equal(tokens, same):
                raise SystemExit(f"{seqs} x {k}: the tokens of uniform and ragged steps differ")
            report[f"{seqs} x {k} drafts"] = {"ms": 1e3 * uniform, "ragged_ms": 1e3 * ragged, "ratio": uniform / plain}
    print(json.dumps(report, indent=2))


def verify(llm: LLM, seqs: int, drafts: int, most: int) -> StepBatch:
    """A step of so many sequences in the middle of their text, each with this number of drafts."""
    each, i32 = 1 + drafts, np.int32
    size = llm.config.cache.block_tokens
    columns = -(-(CONTEXT + each) // size)
    query = np.full(seqs, each, i32)
    ends = np.cumsum(query, dtype=i32)
    row = (np.repeat(ends - drafts, drafts) + np.tile(np.arange(drafts), seqs)).astype(i32)
    pick = np.full((seqs, most + 1), -1, i32)
    pick[:, :drafts] = np.arange(seqs * drafts, dtype=i32).reshape(seqs, drafts)
    parts = (Drafts(row, pick, level=most),) if drafts else ()
    return StepBatch(
        tokens=np.random.default_rng(0).integers(10, llm.config.model.vocab, seqs * each, i32),
        token_seq=np.repeat(np.arange(seqs, dtype=i32), each),
        positions=np.tile(np.arange(CONTEXT, CONTEXT + each, dtype=i32), seqs), slots=np.arange(1, seqs + 1, dtype=i32),
        context=np.full(seqs, CONTEXT, i32), query=query, last_row=ends - i32(1), emit=np.ones(seqs, bool),
        block_tables=(1 + np.arange(seqs * columns, dtype=i32).reshape(seqs, columns),) * len(llm.config.cache.groups),
        sampling=SamplingArrays.greedy(seqs), uniform=each, features=features_of(parts), parts=parts,
    )  # fmt: skip


def timed(launch: Callable[[StepBatch], object], batch: StepBatch, steps: int) -> tuple[float, np.ndarray]:
    """The least seconds of a step, and its tokens."""
    best, tokens = float("inf"), np.empty(0)
    for _ in range(steps):
        begin = time.perf_counter()
        result = launch(batch).result()  # type: ignore[attr-defined]
        best = min(best, time.perf_counter() - begin)
        tokens = np.where(np.arange(result.tokens.shape[1]) < result.counts[:, None], result.tokens, -1)
    return best, tokens


if __name__ == "__main__":
    main()
