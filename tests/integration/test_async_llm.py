"""AsyncLLM over a real engine process: streams, aborts, errors in words, and what is left when a side dies."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import tempfile
import threading

import msgspec
import pytest
import pytest_asyncio

from thalweg import AsyncLLM, EngineArgs, SamplingParams
from thalweg.errors import CheckpointError, ConfigError, EngineDeadError, RequestError, UnsupportedModelError
from thalweg.params import RequestOutputKind
from thalweg.text import stops
from thalweg.text.tokenizer import Tokenizer

ARGS = EngineArgs(
    device="cpu", max_model_len=256, max_num_seqs=16, threads=1, use_tqdm_on_load=False, standby_engine=False
)  # fmt: skip


pytestmark = [pytest.mark.asyncio(loop_scope="module"), pytest.mark.slow]


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def started(tmp_path_factory):
    """An engine, and the names its start left in the folder for temporary files: its own, as others start engines too."""
    folder = tmp_path_factory.mktemp("names")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TMPDIR", str(folder))
        patch.setattr(tempfile, "tempdir", str(folder))
        made = await AsyncLLM.start(ARGS)
        left = [p.name for p in folder.glob("thalweg-*")]
    yield made, left
    await made.shutdown()


@pytest.fixture(scope="module")
def engine(started):
    """One for all tests that leave it as it was."""
    return started[0]


@pytest_asyncio.fixture(loop_scope="module")
async def without_restarts():
    """For a test to kill; whatever becomes of the test, the engine ends with it."""
    made = await AsyncLLM.start(msgspec.structs.replace(ARGS, max_restarts=0))
    yield made
    await made.shutdown()


def params(**fields):
    return SamplingParams(**{"temperature": 0, "max_tokens": 8, "ignore_eos": True, **fields})


async def last(stream):
    outputs = [out async for out in stream]
    return outputs[-1]


async def test_deltas_add_up_to_the_whole(engine):
    whole = await last(engine.generate("The river", params(output_kind=RequestOutputKind.FINAL_ONLY), "whole"))
    text, ids = "", []
    async for out in engine.generate("The river", params(output_kind=RequestOutputKind.DELTA), "parts"):
        text += out.outputs[0].text
        ids += out.outputs[0].token_ids
    assert text == whole.outputs[0].text
    assert ids == list(whole.outputs[0].token_ids)
    assert len(ids) == 8
    assert whole.outputs[0].finish_reason == "length"


async def test_many_at_once_equal_one_by_one(engine):
    prompts = [f"Stone number {i} lies" for i in range(24)]
    together = await asyncio.gather(*(last(engine.generate(p, params(), f"t{i}")) for i, p in enumerate(prompts)))
    for i, p in enumerate(prompts):
        alone = await last(engine.generate(p, params(), f"a{i}"))
        assert list(together[i].outputs[0].token_ids) == list(alone.outputs[0].token_ids)


async def until_idle(engine):
    for _ in range(200):
        stats = engine.stats()
        if stats is not None and stats.running == stats.waiting == stats.blocks_used == 0:
            return
        # Snapshots ride on outputs: give the engine something to say.
        await last(engine.generate("x", params(max_tokens=1), f"poke{_}"))
    raise AssertionError(f"never idle: {engine.stats()}")


async def test_a_reader_that_goes_away_frees_its_blocks(engine):
    stream = engine.generate("The river", params(max_tokens=200), "gone")
    await anext(stream)
    await stream.aclose()
    await until_idle(engine)


async def test_abort_ends_the_stream_with_a_last_word(engine):
    stream = engine.generate("The river", params(max_tokens=200), "stopped")
    await anext(stream)
    await engine.abort("stopped")
    out = await last(stream)
    assert out.finished
    assert out.outputs[0].finish_reason == "abort"
    await until_idle(engine)


async def test_a_wrong_request_is_told_and_harms_nobody(engine):
    good = asyncio.create_task(last(engine.generate("The river", params(), "good")))
    with pytest.raises(RequestError, match="prompt"):
        await last(engine.generate({"prompt_token_ids": [10**9]}, params(), "bad"))
    with pytest.raises(RequestError, match="context"):
        await last(engine.generate({"prompt_token_ids": [5] * 300}, params(), "long"))
    assert (await good).outputs[0].finish_reason == "length"


async def test_without_restarts_a_killed_engine_is_told_to_every_stream(without_restarts):
    engine = without_restarts
    stream = engine.generate("The river", params(max_tokens=200), "cut")
    await anext(stream)
    os.kill(engine.engine_pid, signal.SIGKILL)
    with pytest.raises(EngineDeadError, match=r"SIGKILL.*max_restarts"):
        await last(stream)
    with pytest.raises(EngineDeadError):
        await engine.check_health()
    with pytest.raises(EngineDeadError):
        await last(engine.generate("again", params(), "late"))
    assert engine.state == "failed"


async def test_the_engines_socket_has_no_name(started):
    assert started[1] == []


@pytest.mark.parametrize(
    ("args", "error", "words"),
    [
        (EngineArgs(model="/nowhere/at/all"), CheckpointError, "does not exist"),
        (EngineArgs(device="abacus"), Exception, "abacus"),
        (EngineArgs(device="null", dtype="int3"), ConfigError, "dtype"),  # null: no framework is loaded for it
        (EngineArgs(device="null", max_model_len=10**6), ConfigError, "max_model_len"),
        (EngineArgs(kv_cache_memory_bytes=10), ConfigError, "kv_cache_memory_bytes"),
    ],
)
async def test_what_cannot_start_says_why(args, error, words):
    with pytest.raises(error, match=words):
        await AsyncLLM.start(args)


async def test_an_unknown_architecture_is_refused_with_those_there_are(tmp_path):
    (tmp_path / "config.json").write_text(
        json.dumps({"architectures": ["AbacusForCausalLM"], "model_type": "abacus", "hidden_size": 8, "num_hidden_layers": 1,
                    "num_attention_heads": 1, "vocab_size": 16, "max_position_embeddings": 16, "intermediate_size": 8})
    )  # fmt: skip
    with pytest.raises(UnsupportedModelError, match=r"AbacusForCausalLM.*nearest are \w+ForCausalLM"):
        await AsyncLLM.start(EngineArgs(model=str(tmp_path), device="null", skip_tokenizer_init=True))


async def test_long_stop_strings_and_bad_words_are_read_beside_the_event_loop(engine, monkeypatch):
    """At their limits they take milliseconds, which every other stream would feel."""
    threads = []
    for name in ("StopStrings", "Tokenizer.encode_batch"):
        where = stops if name == "StopStrings" else Tokenizer
        before = getattr(where, name.split(".")[-1])

        def noting(*args, before=before, **options):
            threads.append(threading.current_thread())
            return before(*args, **options)

        monkeypatch.setattr(where, name.split(".")[-1], noting)
    words = [f"word{i} of many" for i in range(1000)]
    for fields in ({"stop": ["x" * 4000]}, {"bad_words": words}):
        threads.clear()
        await last(engine.generate("The river", params(**fields), str(fields)[:8]))
        assert threads
        assert threading.main_thread() not in threads


async def test_tokens_of_a_stream_are_told_together_where_that_is_asked_for():
    made = await AsyncLLM.start(EngineArgs(device="null", stream_interval=8, standby_engine=False))
    try:
        params = SamplingParams(max_tokens=33, output_kind=RequestOutputKind.DELTA, ignore_eos=True)
        sizes = [len(o.outputs[0].token_ids) async for o in made.generate({"prompt_token_ids": [1, 2, 3]}, params, "a")]
        assert sum(sizes) == 33
        assert all(n >= 8 for n in sizes[1:-1])
    finally:
        await made.shutdown()


async def test_counters_tell_of_requests_and_of_nothing_else():
    """The canary that makes an engine ready is no request."""
    frames = []

    class Logger:
        def record(self, outputs):
            frames.append((outputs.step_tokens, outputs.stats))

        def record_request(self, output, params):
            pass

    made = await AsyncLLM.start(ARGS, loggers=[Logger()])
    try:
        assert sum(tokens for tokens, _ in frames) == 0
        done = await last(made.generate({"prompt_token_ids": [5] * 13}, params(max_tokens=10), "one"))
        assert sum(tokens for tokens, _ in frames) == 23
        stats = [s for _, s in frames if s is not None]
        assert max((s.prompt_tokens, s.generated_tokens) for s in stats) == (13, 10)
        assert len(done.outputs[0].token_ids) == 10
    finally:
        await made.shutdown()
