"""Recorded decode steps: the same tokens as steps run as they are written, whatever is asked."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from lora_files import ALL, ATTENTION, write_adapter
from zoo import make_checkpoint

from thalweg import LLM, LoRARequest, SamplingParams
from thalweg.backends.cpu import recording
from thalweg.backends.cpu.native import REPLAYED, NativeLibrary, levels
from thalweg.backends.cpu.recording import Arena, RecordingExecutable, advancing, opaque
from thalweg.engine.control.speculation.gain import Gain
from thalweg.hal.op import Kernel
from thalweg.hal.step import SamplingArrays, StateBox, StepBatch, StepResult

PARAMS: list[dict[str, Any]] = [
    {},
    {"temperature": 0.8, "seed": 5},
    {"temperature": 1.0, "seed": 6, "top_k": 20, "top_p": 0.9},
    {"presence_penalty": 0.5, "repetition_penalty": 1.2},
    {"logit_bias": {5: 4.0, 9: -100.0}, "min_tokens": 6},
    {"logprobs": 3},
]


@pytest.fixture
def best(library: NativeLibrary) -> NativeLibrary:
    """The same list is replayed at every instruction set: one will do for whole models."""
    if library.level != levels()[0]:
        pytest.skip("at the best instruction set only")
    return library


@pytest.fixture
def counts(monkeypatch: pytest.MonkeyPatch) -> dict[str, int]:
    """How many steps were recorded and replayed."""
    seen = {"_record": 0, "_replay": 0}

    def counted(name: str) -> Any:
        inner = getattr(RecordingExecutable, name)

        def call(self: Any, *args: Any) -> Any:
            seen[name] += 1
            return inner(self, *args)

        return call

    for name in seen:
        monkeypatch.setattr(RecordingExecutable, name, counted(name))
    return seen


def _serve(dtype: str, **config: Any) -> list[tuple[list[int], Any]]:
    rng = np.random.default_rng(3)
    llm = LLM(device="cpu", dtype=dtype, max_model_len=256, seed=0, additional_config=config)
    try:
        prompts = [{"prompt_token_ids": rng.integers(1, 200, int(n)).tolist()} for n in rng.integers(3, 90, 12)]
        params = [
            SamplingParams(max_tokens=20 + 9 * i, ignore_eos=True, **{"temperature": 0.0, **PARAMS[i % len(PARAMS)]})
            for i in range(len(prompts))
        ]
        outputs = [o.outputs[0] for o in llm.generate(prompts, params, use_tqdm=False)]
        alone = llm.generate(prompts[0], SamplingParams(max_tokens=150, temperature=0.0, ignore_eos=True), use_tqdm=False)
        return [
            (list(o.token_ids), o.logprobs and [{t: v.logprob for t, v in p.items()} for p in o.logprobs])
            for o in [*outputs, alone[0].outputs[0]]
        ]
    finally:
        llm.shutdown()


@pytest.mark.slow
def test_steps_that_verify_drafts_are_recorded_and_say_the_same(
    best: NativeLibrary, counts: dict[str, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Drafts of several widths and of sequences in any number; each layout is recorded when it comes again."""
    monkeypatch.setattr(Gain, "allows", lambda self, streams: True)  # whatever this machine's clock says
    widths: list[int] = []
    replay = RecordingExecutable._replay
    monkeypatch.setattr(
        RecordingExecutable,
        "_replay",
        lambda self, tape, *more: widths.append(tape.held[0].uniform) or replay(self, tape, *more),
    )
    said, drafts = [], {"method": "ngram", "num_speculative_tokens": 4, "prompt_lookup_min": 1, "prompt_lookup_max": 3}
    for asked in (None, drafts):
        llm = LLM(device="cpu", dtype="float32", max_model_len=256, seed=0, speculative_config=asked, use_tqdm_on_load=False)
        try:
            prompts = [{"prompt_token_ids": [7 + i, 8, 9] * 9} for i in range(3)]
            params = [SamplingParams(max_tokens=60, ignore_eos=True, temperature=0.4 * (i % 2), seed=i) for i in range(3)]
            said.append([list(o.outputs[0].token_ids) for o in llm.generate(prompts, params, use_tqdm=False)])
            accepted = llm.stats().accepted_tokens
        finally:
            llm.shutdown()
    assert said[0] == said[1]
    assert accepted > 30
    assert {2, 4, 5} & set(widths), widths


@pytest.mark.slow
def test_an_eager_engine_records_nothing_and_says_the_same(counts: dict[str, int]) -> None:
    said = []
    for eager in (True, False):
        llm = LLM(device="cpu", dtype="float32", max_model_len=128, enforce_eager=eager)
        try:
            params = SamplingParams(max_tokens=60, temperature=0.0, ignore_eos=True)
            said.append(llm.generate({"prompt_token_ids": [5, 9, 2]}, params, use_tqdm=False)[0].outputs[0].token_ids)
        finally:
            llm.shutdown()
        assert bool(counts["_record"] + counts["_replay"]) is not eager
    assert said[0] == said[1]


@pytest.mark.slow
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_recorded_steps_give_the_tokens_and_logprobs_of_steps_as_written(
    best: NativeLibrary, dtype: str, counts: dict[str, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    got = _serve(dtype, isa=best.level)
    assert counts["_record"] >= 8
    assert counts["_replay"] > 3 * counts["_record"]
    before = dict(counts)
    monkeypatch.setattr(RecordingExecutable, "__call__", lambda self, batch: self._eager(batch))
    assert got == _serve(dtype, isa=best.level)
    assert counts == before


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.slow
def test_a_mixture_s_tokens_go_where_each_batch_sends_them(
    best: NativeLibrary, dtype: str, counts: dict[str, int], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Which experts have rows differs from step to step, and a tape says nothing of it. No call of theirs is torch's."""
    source = make_checkpoint("qwen3-moe", tmp_path, tokenizer=False)
    parts: list[Any] = []
    tape = recording.Recorder.tape
    monkeypatch.setattr(recording.Recorder, "tape", lambda self: parts.append(list(self._parts)) or tape(self))

    def said() -> list[Any]:
        llm = LLM(str(source), device="cpu", dtype=dtype, max_model_len=64, skip_tokenizer_init=True)
        try:
            prompts = [{"prompt_token_ids": list(range(3 + i, 9 + 2 * i))} for i in range(4)]
            params = [
                SamplingParams(max_tokens=30, temperature=t, seed=1, ignore_eos=True, logprobs=1, detokenize=False)
                for t in (0.0, 0.9, 0.0, 1.0)
            ]
            done = [o.outputs[0] for o in llm.generate(prompts, params, use_tqdm=False)]
            return [(list(o.token_ids), [{t: v.logprob for t, v in p.items()} for p in o.logprobs or ()]) for o in done]
        finally:
            llm.shutdown()

    got = said()
    assert counts["_replay"] > 3 * counts["_record"] > 0
    experts = [e for p in parts[0] if isinstance(p, list) for e in p if e[0] == REPLAYED.index("experts")]
    assert len(experts) == 2  # layers that are mixtures
    monkeypatch.setattr(RecordingExecutable, "__call__", lambda self, batch: self._eager(batch))
    assert got == said()


@pytest.mark.slow
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_a_tape_serves_any_adapters_in_any_slots(
    best: NativeLibrary, dtype: str, counts: dict[str, int], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Which row has which adapter changes from step to step, and a slot is written anew between them."""
    base = make_checkpoint("qwen3", tmp_path / "base", tokenizer=False)
    loras = [
        LoRARequest(str(i), i, str(write_adapter(base, tmp_path / str(i), i, rank, modules)))
        for i, (rank, modules) in enumerate([(3, ALL), (8, ATTENTION), (16, ALL)], 1)
    ]
    parts: list[Any] = []
    tape = recording.Recorder.tape
    monkeypatch.setattr(recording.Recorder, "tape", lambda self: parts.append(list(self._parts)) or tape(self))

    def said() -> list[Any]:
        sizes = {"max_model_len": 64, "max_num_seqs": 4, "skip_tokenizer_init": True, "enable_prefix_caching": False}
        llm = LLM(str(base), device="cpu", dtype=dtype, enable_lora=True, max_loras=2, **sizes)
        params = SamplingParams(max_tokens=20, temperature=0, ignore_eos=True, logprobs=1, detokenize=False)
        prompts, done = [{"prompt_token_ids": list(range(3 + i, 9 + 2 * i))} for i in range(3)], []
        try:
            for named in ([loras[0], None, loras[1]], [loras[2], loras[1], None], [None, None, loras[0]]):
                done += llm.generate(prompts, params, use_tqdm=False, lora_request=named)
        finally:
            llm.shutdown()
        first = [o.outputs[0] for o in done]
        return [(list(o.token_ids), [{t: v.logprob for t, v in p.items()} for p in o.logprobs or ()]) for o in first]

    got = said()
    assert counts["_replay"] > 3 * counts["_record"] > 0
    calls = [[e[0] for p in each if isinstance(p, list) for e in p] for each in parts]
    adapted = [c for c in calls if REPLAYED.index("lora_add") in c]
    assert len(adapted) == 1, "one tape of adapters for all"
    assert [adapted[0].count(REPLAYED.index(name)) for name in ("lora_rows", "lora_add")] == [1, 4 * 2]
    monkeypatch.setattr(RecordingExecutable, "__call__", lambda self, batch: self._eager(batch))
    assert got == said()


@pytest.mark.slow
def test_few_tapes_are_kept(best: NativeLibrary, counts: dict[str, int], monkeypatch: pytest.MonkeyPatch) -> None:
    want = _serve("float32", isa=best.level)
    recorded = counts["_record"]
    monkeypatch.setattr(recording, "KEPT", 1)
    assert _serve("float32", isa=best.level) == want
    assert counts["_record"] > recorded, "a tape that was given up is recorded anew"


@pytest.fixture
def arena(library: NativeLibrary) -> Iterator[Arena]:
    made = Arena(library)
    made.restart()
    yield made
    library.tape = None


def test_memory_is_used_again_when_the_last_view_is_gone(arena: Arena) -> None:
    a = arena.like(torch.empty(100, 100))
    address, view = a.data_ptr(), a[3:]
    del a
    b = arena.like(torch.empty(100, 100))
    assert b.data_ptr() >= address + 40_000 or b.data_ptr() + 40_000 <= address
    del view
    c, d = arena.like(torch.empty(48, 100)), arena.like(torch.empty(48, 100))
    assert {c.data_ptr() - address, d.data_ptr() - address} == {0, 19_200}, "in pieces too"
    del b, c, d
    assert arena.like(torch.empty(1000, 1000)).data_ptr() == address, "neighbours were joined"
    assert arena.bytes == recording.CHUNK


def test_memory_of_an_earlier_recording_is_not_given_back_into_a_later_one(arena: Arena) -> None:
    old = arena.like(torch.empty(1000))
    arena.restart()
    new = arena.like(torch.empty(1000))
    assert new.data_ptr() == old.data_ptr()
    del old
    assert arena.like(torch.empty(1000)).data_ptr() != new.data_ptr()


def test_strides_and_empty_tensors(arena: Arena) -> None:
    turned = torch.empty(3, 5).t()
    assert arena.like(turned).stride() == turned.stride()
    assert arena.like(torch.empty(0, 4)).shape == (0, 4)


def _batch(tokens: list[int]) -> StepBatch:
    n = len(tokens)
    i32 = np.int32
    return StepBatch(
        tokens=np.array(tokens, i32), token_seq=np.arange(n, dtype=i32), positions=np.zeros(n, i32),
        slots=np.arange(1, n + 1, dtype=i32), context=np.zeros(n, i32), query=np.ones(n, i32),
        last_row=np.arange(n, dtype=i32), emit=np.ones(n, bool), block_tables=(np.ones((n, 1), i32),),
        sampling=SamplingArrays.greedy(n), uniform=1,
    )  # fmt: skip


def _results(library: NativeLibrary, step: Any, calls: int = 4) -> tuple[list[list[int]], RecordingExecutable]:
    exe = RecordingExecutable(step, {}, StateBox({"kv": [], "history": torch.zeros(4, 4)}), library, Arena(library))
    return [exe(_batch([i, 2 * i])).result().tokens[:, 0].tolist() for i in range(calls)], exe


def test_values_are_those_of_each_batch_and_state_is_written_in_place(library: NativeLibrary) -> None:
    def step(params: Any, state: Any, batch: StepBatch) -> Any:
        state["history"][0] += 1
        return state, StepResult((batch.tokens * 3 + state["history"][0, 0].to(torch.int32))[:, None], batch.emit)

    got, exe = _results(library, step)
    assert got == [[3 * i + i + 1, 6 * i + i + 1] for i in range(4)]
    assert [isinstance(t, recording._RecordedStep) for t in exe._tapes.values()] == [True]


def test_a_step_that_looks_at_a_value_or_brings_one_is_run_as_written(library: NativeLibrary) -> None:
    def looks(params: Any, state: Any, batch: StepBatch) -> Any:
        return state, StepResult((batch.tokens + int(batch.tokens.max()))[:, None], batch.emit)

    def brings(params: Any, state: Any, batch: StepBatch) -> Any:
        return state, StepResult((batch.tokens + torch.tensor([5, 6]))[:, None], batch.emit)

    for step, want in ((looks, [[3 * i, 4 * i] for i in range(4)]), (brings, [[i + 5, 2 * i + 6] for i in range(4)])):
        got, exe = _results(library, step)
        assert got == want
        (why,) = exe._tapes.values()
        assert isinstance(why, str)
        assert why != recording.ONCE


def test_tapes_end_with_the_memory_of_the_state(library: NativeLibrary) -> None:
    """A step that is run as written may return a state elsewhere; what was recorded would still write to the old one."""

    def step(params: Any, state: Any, batch: StepBatch) -> Any:
        history = state["history"]
        history = history + 1 if batch.uniform == 0 else history.add_(1)
        return {"history": history}, StepResult(history[:2, :1].to(torch.int32), batch.emit)

    exe = RecordingExecutable(step, {}, StateBox({"history": torch.zeros(4, 4)}), library, Arena(library))
    seen = []
    for uniform in (1, 1, 1, 0, 1, 1, 1, 1):
        batch = _batch([5, 6])
        batch.uniform = uniform
        seen.append(int(exe(batch).result().tokens[0, 0]))
    assert seen == [1, 2, 3, 4, 5, 6, 7, 8]


def test_an_opaque_kernel_may_look(library: NativeLibrary) -> None:
    def inner(x: torch.Tensor, *, plus: int) -> torch.Tensor:
        return x + int(x.max()) + plus

    kernel = opaque(Kernel("any", "looks", inner), library)

    def step(params: Any, state: Any, batch: StepBatch) -> Any:
        return state, StepResult(kernel.run(batch.tokens, plus=1)[:, None], batch.emit)

    got, exe = _results(library, step)
    assert got == [[3 * i + 1, 4 * i + 1] for i in range(4)]
    assert [isinstance(t, recording._RecordedStep) for t in exe._tapes.values()] == [True]


def test_an_error_is_that_of_the_step_and_the_next_batch_is_served(library: NativeLibrary) -> None:
    fail = {"now": False}

    def inner(x: torch.Tensor) -> torch.Tensor:
        if fail["now"]:
            raise ValueError("no")
        return x + 1

    kernel = opaque(Kernel("any", "fails", inner), library)

    def step(params: Any, state: Any, batch: StepBatch) -> Any:
        return state, StepResult(kernel.run(batch.tokens)[:, None], batch.emit)

    exe = RecordingExecutable(step, {}, StateBox({}), library, Arena(library))
    for i, failing in enumerate((False, True, False, False, True, False)):
        fail["now"] = failing
        pending = exe(_batch([i]))
        if failing:
            with pytest.raises(ValueError, match="no"):
                pending.result()
        else:
            assert pending.result().tokens.tolist() == [[i + 1]]
    assert library.tape is None


def test_a_state_is_not_advanced_twice_where_a_step_turns_out_not_to_be_recordable(best: NativeLibrary) -> None:
    """A step that goes on from a state in place, and then looks at a value: what the failed recording wrote is taken back."""

    def twice(held: torch.Tensor, table: torch.Tensor) -> torch.Tensor:
        blocks = table[:, 1].long()
        return held.index_copy_(0, blocks, 2 * held[table[:, 0].long()] + 1)

    double = advancing(opaque(Kernel("double", "in-place", twice), best), best, 0).run

    def step(params: Any, state: Any, batch: StepBatch) -> tuple[Any, StepResult]:
        held = double(state, batch.block_tables[0])
        return held, StepResult(batch.slots[:, None] + int(params.item()), batch.query)

    box = StateBox(torch.arange(6, dtype=torch.float32))
    run = RecordingExecutable(step, torch.tensor(3), box, best, Arena(best))
    one = np.ones(2, np.int32)
    batch = StepBatch(
        tokens=one, token_seq=np.arange(2, dtype=np.int32), positions=one, slots=np.array([1, 2], np.int32), context=one,
        query=one, last_row=np.arange(2, dtype=np.int32), emit=np.ones(2, bool),
        block_tables=(np.array([[1, 1], [2, 3]], np.int32),), sampling=SamplingArrays.greedy(2), uniform=1,
    )  # fmt: skip
    want = [0.0, 1, 2, 3, 4, 5]
    for _ in range(4):
        assert run(batch).result().tokens.tolist() == [[4], [5]]
        want[1], want[3] = 2 * want[1] + 1, 2 * want[2] + 1
        assert box.value.tolist() == want
    assert "looks at a value" in " ".join(t for t in run._tapes.values() if isinstance(t, str))
