"""Compiling a model's kernels for an absent device: `python -m thalweg.engine.worker.cross_compile`, once or several times.

Each process builds the model on the platform's absent device, runs steps of every kind on it, and compiles its share of the
kernels they need. It reports progress on a pipe, a JSON object a line; `thalweg.cli.compile` starts it and reads that.
"""

from __future__ import annotations

import logging
import os
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from thalweg.config import EngineArgs, EngineConfig
from thalweg.engine.worker.build import build
from thalweg.engine.worker.rehearsal import asking, rehearsal_parts, sizes, tables
from thalweg.errors import ThalwegError
from thalweg.hal import discovery
from thalweg.hal.parts.bad_words import BadWords
from thalweg.hal.platform import CrossCompiler
from thalweg.hal.step import Features, SamplingArrays, StepBatch

I32 = np.int32
FEW = 64
"""Blocks of every group's cache, in the first of two passes; the second has all that fit. Some targets compile differently
for arrays of more than 2 GiB."""
LOGPROBS = (0, 1, 5, 20)
WORDS = (2, 4, 8, 16)
"""Tokens of the longest bad word."""
ROWS = (1, 3, 16, 40, 100, 200)
"""Sequences of the decode steps."""
PROMPTS = ((20,), (300,), (40, 1, 1), (500, 17, 1))
"""New tokens of the sequences of the steps with prompts."""


class CompileJob(msgspec.Struct, kw_only=True, frozen=True):
    """The task of one process."""

    args: EngineArgs
    platform: str
    arch: str
    cache: str | None = None
    first: int = 0
    count: int = 1
    """Compile every count-th kernel, starting at the first."""


def main(fd: int, text: str) -> int:
    job = msgspec.json.decode(text, type=CompileJob)
    with os.fdopen(fd, "wb", buffering=0) as pipe:

        def tell(**fields: Any) -> None:
            pipe.write(msgspec.json.encode(fields) + b"\n")

        try:
            absent = discovery.load(job.platform).absent(job.arch, Path(job.cache) if job.cache else None)
            rehearse(absent, job.args)
        except ThalwegError as e:
            tell(error=str(e))
            return 1
        _compile(absent, job, tell)
    return 0


def _compile(absent: CrossCompiler, job: CompileJob, tell: Any) -> None:
    kernels = absent.kernels()
    tell(kernels=len(kernels), cache=str(absent.cache))
    for number in range(job.first, len(kernels), job.count):
        key, name = kernels[number]
        tell(begin=number, name=name)
        try:
            result = absent.compile(key)
        except Exception as e:  # any compiler error; the other kernels are still compiled
            while e.__cause__ is not None and isinstance(e.__cause__, Exception):
                e = e.__cause__
            lines = str(e).strip().splitlines() or [""]
            tell(name=name, failed=f"{type(e).__name__}: {lines[-1][:200]}")
        else:
            tell(name=name, seconds=result.seconds, cached=result.cached)
    tell(end=True)


def rehearse(absent: CrossCompiler, args: EngineArgs) -> None:
    """Run steps of every kind that serving with these settings has."""
    logging.getLogger("thalweg").setLevel(logging.WARNING)
    args = msgspec.structs.replace(args, load_format="dummy", use_tqdm_on_load=False)
    small = msgspec.structs.replace(args, num_gpu_blocks_override=FEW, kv_cache_memory_bytes=None, max_model_len=None)
    for some, kinds in ((args, steps), (small, plain)):
        worker = build(some, absent.platform)
        for batch in kinds(worker.config):
            worker.launch(batch)
        worker.close()


def plain(config: EngineConfig) -> Iterator[StepBatch]:
    """Short decodes and prompts."""
    short = min(config.model.max_len - 1, config.cache.block_tokens)
    yield from (make_step(config, [short], [1]), make_step(config, [short, 0], [1, short]))


def steps(config: EngineConfig) -> Iterator[StepBatch]:
    """Decodes and prompts of few and many sequences, short and long, with all features of sampling."""
    most, longest = config.scheduler.max_seqs, config.model.max_len
    counts = sorted({n for n in (*ROWS, most) if n <= most})
    short = min(longest - 1, config.cache.block_tokens)
    for context in (short, longest - 1):
        for n in counts:
            yield make_step(config, [context] * n, [1] * n)
        for query in PROMPTS:
            if len(query) <= most and sum(query) <= config.scheduler.token_budget:
                yield make_step(config, [max(0, context - q) for q in query], [min(q, longest) for q in query])
    two = make_step(config, [short, short], [1, 1])
    for features in list_features(config):
        yield asking(two, features, sizes(config.model.vocab))
    for words in WORDS:
        yield asking(two, Features().plus(BadWords), sizes(config.model.vocab, words))
    for kind, level in rehearsal_parts(prompts=True):
        if kind.prompts:
            yield asking(make_step(config, [0, 0], [short, 1]), Features().plus(kind, level), sizes(config.model.vocab))


def list_features(config: EngineConfig) -> Iterator[Features]:
    """Features of sampling, each of which compiles kernels."""
    yield Features(random=True)
    yield Features(random=True, truncate=True)
    yield from (Features().plus(kind, level) for kind, level in rehearsal_parts(prompts=False))
    for k in LOGPROBS:
        if k <= max(0, config.model.max_logprobs) and k < config.model.vocab:
            yield Features(random=True, logprobs=k)


def make_step(config: EngineConfig, context: Sequence[int], query: Sequence[int]) -> StepBatch:
    """A greedy step of sequences with `context` tokens in the cache and `query` new ones each. All blocks are scratch."""
    seqs, tokens = len(query), sum(query)
    longest = max(c + q for c, q in zip(context, query, strict=True))
    carried = zip(tables(config.cache.groups, 0, 0, False), config.cache.groups, strict=True)
    counts, before = np.array(query, I32), np.array(context, I32)
    start = np.repeat(np.cumsum(counts, dtype=I32) - counts, counts)
    return StepBatch(
        tokens=np.zeros(tokens, I32), token_seq=np.repeat(np.arange(seqs, dtype=I32), counts),
        positions=np.arange(tokens, dtype=I32) - start + np.repeat(before, counts), slots=np.arange(1, seqs + 1, dtype=I32),
        context=before, query=counts, last_row=np.cumsum(counts, dtype=I32) - 1, emit=np.ones(seqs, bool),
        block_tables=tuple(t.scratch(seqs, -(-longest // g.block_tokens)) for t, g in carried),
        sampling=SamplingArrays.greedy(seqs), uniform=1 if max(query) == 1 else 0,
    )  # fmt: skip


if __name__ == "__main__":
    sys.exit(main(int(sys.argv[1]), sys.argv[2]))
