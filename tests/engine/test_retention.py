"""Blocks that a caller asked to keep: found after a flood of other prompts, and no reservation."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from thalweg import LLM, SamplingParams

BLOCKS = 40


@pytest.fixture(scope="module")
def llm() -> Iterator[LLM]:
    made = LLM(device="null", max_model_len=256, block_size=16, num_gpu_blocks_override=BLOCKS, max_num_seqs=2)
    yield made
    made.shutdown()


def run(llm: LLM, first: int, length: int, seconds: float | None = None) -> int:
    """Cached tokens of a prompt."""
    params: Any = SamplingParams(max_tokens=1, ignore_eos=True, cache_retention=seconds)
    prompt = {"prompt_token_ids": [first, *range(10, 9 + length)]}
    cached = llm.generate([prompt], params, use_tqdm=False)[0].num_cached_tokens
    llm.llm_engine.core.check()
    return cached


def flood(llm: LLM, count: int = 12) -> None:
    for n in range(count):
        run(llm, 1000 + n, 200)


def test_a_conversation_is_kept_over_a_flood_for_the_time_it_asked_for(llm: LLM, monkeypatch: pytest.MonkeyPatch) -> None:
    run(llm, 1, 200, seconds=60)
    run(llm, 2, 200)
    flood(llm)
    assert run(llm, 2, 200) == 0
    assert run(llm, 1, 200) == 192
    pool = llm.llm_engine.core.kv.groups[0].pool
    now = pool._clock()
    monkeypatch.setattr(pool, "_clock", lambda: now + 100)
    flood(llm)
    assert run(llm, 1, 200) == 0, "its time is over"


def test_kept_blocks_are_no_reservation(llm: LLM) -> None:
    """Three quarters of the cache at most, and one long prompt gets all of it."""
    for n in range(8):
        run(llm, 10 + n, 200, seconds=3600)
    pool = llm.llm_engine.core.kv.groups[0].pool
    assert 0 < len(pool._kept) <= 0.75 * BLOCKS
    params = SamplingParams(max_tokens=20, ignore_eos=True)
    outs = llm.generate([{"prompt_token_ids": [n] * 230} for n in (3, 4)], params, use_tqdm=False)
    assert [len(o.outputs[0].token_ids) for o in outs] == [20, 20]
    llm.llm_engine.core.check()


def test_an_engine_bounds_the_time(llm: LLM) -> None:
    short = LLM(
        device="null", max_model_len=256, block_size=16, num_gpu_blocks_override=BLOCKS, max_num_seqs=2, max_cache_retention=0
    )
    run(short, 1, 200, seconds=3600)
    flood(short)
    assert run(short, 1, 200) == 0
    short.shutdown()
