"""The whole engine on models with recurrent layers: what the prefix cache, preemption and pipelined steps do to a state must
not show in a single bit. That the text is right is test_against_transformers's to say."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from zoo import make_checkpoint

from thalweg import LLM, SamplingParams
from thalweg.cli.plan import as_text
from thalweg.config import EngineArgs
from thalweg.engine.control.speculation.gain import Gain
from thalweg.engine.control.speculation.ngram import NGramDrafter
from thalweg.engine.planning.memory import plan
from thalweg.models import step

NEW = 10
HOST = "thalweg.backends.torch_gpu.testing:HostGpuPlatform"


def prompts() -> list[list[int]]:
    """Three families of prefixes, of which requests have more or less."""
    rng = np.random.default_rng(11)
    stems = [rng.integers(3, 250, 40).tolist() for _ in range(3)]
    return [stems[i % 3][: 5 + 7 * (i % 5)] + rng.integers(3, 250, 1 + i % 4).tolist() for i in range(12)]


def serve(path: Path, rounds: int = 1, **more: Any) -> tuple[list[Any], Any, Any]:
    """(tokens and logprobs of every request and round, statistics, configuration)."""
    said: dict[str, Any] = {
        "device": "cpu", "dtype": "float32", "skip_tokenizer_init": True, "block_size": 4, "max_model_len": 64,
        "max_num_seqs": 6, "max_num_batched_tokens": 16, "mamba_block_size": 8, "use_tqdm_on_load": False,
    }  # fmt: skip
    llm = LLM(str(path), **{k: v for k, v in (said | more).items() if v is not None})
    try:
        out = []
        for _ in range(rounds):
            params = [
                SamplingParams(temperature=0.9 * (i % 2), seed=i, max_tokens=NEW, ignore_eos=True, logprobs=1, detokenize=False)
                for i in range(12)
            ]
            for made in llm.generate([{"prompt_token_ids": p} for p in prompts()], params, use_tqdm=False):
                got = made.outputs[0]
                told = zip(got.logprobs, got.token_ids, strict=True)
                out.append((list(got.token_ids), [by[t].logprob for by, t in told]))
        return out, llm.stats(), llm.config
    finally:
        llm.shutdown()


@pytest.fixture(autouse=True)
def caches(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """Those of the engines a test builds, whose recurrent states begin as NaN: a state read before it was written shows."""
    made: list[Any] = []
    inner = step.make_state

    def poisoned(*args: Any, **said: Any) -> Any:
        state = inner(*args, **said)
        for cache in state["kv"]:
            for part in cache if isinstance(cache, tuple) else ():
                part.fill_(float("nan"))
        made.append(state["kv"])
        return state

    monkeypatch.setattr(step, "make_state", poisoned)
    return made


def held(x: Any) -> int:
    """Bytes."""
    return x.nbytes if isinstance(x, torch.Tensor) else sum(map(held, x))


@pytest.mark.slow
def test_the_plan_counts_what_the_caches_hold_and_shows_every_group(tmp_path, caches):
    path = make_checkpoint("qwen3-next", tmp_path)
    for more in ({}, {"enable_prefix_caching": False, "mamba_block_size": None}, {"kv_cache_memory_bytes": 1 << 20},
                 {"spec_method": "ngram", "spec_tokens": 2}):  # fmt: skip
        _, _, config = serve(path, **more)
        said = {"block_size": 4, "max_model_len": 64, "max_num_seqs": 6, "max_num_batched_tokens": 16, "mamba_block_size": 8}
        said |= more
        planned = plan(EngineArgs(model=str(path), device="cpu", dtype="float32", **said))
        assert planned.kv_cache == held(caches[-1])
        assert [g["blocks"] for g in planned.groups] == list(config.cache.blocks)
        assert planned.block_tokens == config.cache.block_tokens == 4
        assert planned.tokens >= 64
        shown = as_text(planned, "m")
        assert f"5 state: {config.cache.blocks[0]} blocks of" in shown
        assert f"2 full: {config.cache.blocks[1]} blocks of" in shown


@pytest.mark.slow
def test_without_a_number_of_sequences_their_states_leave_half_of_the_cache_to_tokens(tmp_path):
    path = make_checkpoint("qwen3-next", tmp_path)
    _, _, config = serve(path, max_num_seqs=None, max_num_batched_tokens=64, kv_cache_memory_bytes=1 << 21)
    state, _ = config.cache.groups
    assert 1 < config.scheduler.max_seqs < 64
    assert config.scheduler.max_seqs * state.bytes_per_block <= 1 << 20


@pytest.mark.parametrize(
    ("name", "device"),
    [("lfm2", "cpu"), *(pytest.param(n, "cpu", marks=pytest.mark.slow)
                        for n in ("qwen3-next", "nemotron-h", "jamba", "kimi-linear", "minimax", "zaya")),
     *(pytest.param("qwen3-next", d, marks=pytest.mark.slow) for d in ("reference", HOST))],
)  # fmt: skip
def test_text_with_drafts_is_the_text_without(name, device, tmp_path, monkeypatch):
    """A state that had gone on by a wrong draft would show in later tokens; acceptance would not (it looks healthy)."""
    texts: list[list[int]] = []

    def follow(self: NGramDrafter, slot: int, most: int) -> list[int]:
        """What comes next, but for every fourth token."""
        known = self._slots.tokens[slot, : self._slots.known[slot]].tolist()
        text = next(t for t in texts if t[: len(known)] == known)[len(known) :]
        return [token if (len(known) + i) % 4 else token + 1 for i, token in enumerate(text[:most])]

    monkeypatch.setattr(NGramDrafter, "_follow", follow)
    # A sequence waits for its tokens in flight, else it has drafts only when the pipeline happens to be empty.
    monkeypatch.setattr(NGramDrafter, "is_promising", lambda self, slots: np.ones(slots.size, np.bool_))
    monkeypatch.setattr(Gain, "allows", lambda self, streams: True)  # whatever this machine's clock says
    path = make_checkpoint(name, tmp_path)
    for asked in (None, {"method": "ngram", "num_speculative_tokens": 3}):
        llm = LLM(
            str(path), device=device, dtype="float32", skip_tokenizer_init=True, block_size=4, max_model_len=64, max_num_seqs=4,
            max_num_batched_tokens=24, mamba_block_size=8, use_tqdm_on_load=False, speculative_config=asked,
        )  # fmt: skip
        try:
            asks = [rng.tolist() for rng in (np.random.default_rng(i).integers(3, 250, 6 + i) for i in range(6))]
            params = [SamplingParams(temperature=0.5 * (i % 2), seed=i, max_tokens=24, ignore_eos=True) for i in range(6)]
            outs = llm.generate([{"prompt_token_ids": p} for p in asks], params, use_tqdm=False)
            said = [p + list(o.outputs[0].token_ids) for p, o in zip(asks, outs, strict=True)]
            stats = llm.stats()
        finally:
            llm.shutdown()
        texts = texts or said
    assert said == texts
    assert 0.2 * stats.draft_tokens < stats.accepted_tokens < stats.draft_tokens


@pytest.mark.slow
@pytest.mark.parametrize("name", ["qwen3-next", "qwen3.5", "nemotron-h", "jamba", "lfm2", "falcon-h1"])
def test_prefix_hits_preemption_and_chunks_change_no_bit_of_greedy_and_seeded_text(name, tmp_path):
    path = make_checkpoint(name, tmp_path)
    plain, none, _ = serve(path, enable_prefix_caching=False, mamba_block_size=None, max_num_batched_tokens=64)
    assert none.prefix_hits == none.preemptions == 0
    twice, hits, _ = serve(path, rounds=2)
    assert hits.prefix_hits > 100
    pressed, stats, config = serve(path, rounds=2, num_gpu_blocks_override=20)
    assert stats.preemptions > 0
    assert stats.prefix_hits > 0
    assert [g.block_tokens for g in config.cache.groups] == [8, 4]
    assert twice == pressed == plain * 2


@pytest.mark.slow
@pytest.mark.parametrize("name", ["qwen3.5", "nemotron-h"])
def test_a_device_whose_steps_are_pipelined_captured_and_late_says_the_same(name, tmp_path):
    path = make_checkpoint(name, tmp_path)
    want, _, _ = serve(path)
    got, stats, _ = serve(path, device=HOST, num_gpu_blocks_override=20)
    assert stats.prefix_hits > 0
    assert [t for t, _ in got] == [t for t, _ in want]
    for a, b in zip(got, want, strict=True):
        np.testing.assert_allclose(a[1], b[1], atol=1e-4)
