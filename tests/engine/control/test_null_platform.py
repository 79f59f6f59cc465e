"""The null platform: what it says of itself, its clock, and that it needs no tensor framework."""

import subprocess
import sys

import numpy as np
import pytest
from oracle import expected

from thalweg.backends.null import NullOptions, SimClock
from thalweg.bench.host import null_config, null_executor, run
from thalweg.engine.control.core import EngineCore
from thalweg.engine.messages import EngineRequest, TokenSampling
from thalweg.errors import DeviceError
from thalweg.hal import discovery
from thalweg.hal.attention import AttnSpec
from thalweg.hal.parts.scores import Scores
from thalweg.hal.platform import Place
from thalweg.hal.step import SamplingArrays, StateBox, StepBatch, StepShape


def one_step(tokens, slot=1, context=0) -> StepBatch:
    n = len(tokens)
    return StepBatch(
        tokens=np.array(tokens, np.int32), token_seq=np.zeros(n, np.int32),
        positions=np.arange(context, context + n, dtype=np.int32), slots=np.array([slot], np.int32),
        context=np.array([context], np.int32), query=np.array([n], np.int32), last_row=np.array([n - 1], np.int32),
        emit=np.array([True]), block_tables=(np.array([[1, 2, 3]], np.int32),), sampling=SamplingArrays.greedy(1),
    )  # fmt: skip


def hash_executable(**options):
    device = discovery.load("null").with_options(NullOptions(vocab=100, **options)).open(Place())
    layout = device.attention[0].layout(AttnSpec(1, 1, 1, 1.0, "float32"), 4)
    state = StateBox({"kv": [device.alloc_kv(layout, 6)], "history": device.alloc((3, 20), "int32")})
    return device.compile(None, None, state, None, None)


def test_it_can_be_named_and_is_not_the_automatic_choice_before_a_real_one():
    assert discovery.choose("null").name == "null"
    assert discovery.load("null").probe().score == 1
    assert not discovery.load("null").runs_models


def test_it_agrees_with_the_oracle_in_chunks_and_from_history():
    exe = hash_executable()
    prompt = [3, 1, 4, 1, 5, 9]
    want = expected(0, prompt, 3, 100)
    first = one_step(prompt[:4])
    first.emit[:] = False
    assert exe(first).result().counts.tolist() == [0]
    assert exe(one_step(prompt[4:], context=4)).result().tokens.tolist() == [want[:1]]
    assert exe(one_step([-1], context=6)).result().tokens.tolist() == [[want[1]]]
    assert exe(one_step([want[1]], context=7)).result().tokens.tolist() == [[want[2]]]


def test_a_padded_step_gives_the_same_tokens():
    prompt = [3, 1, 4, 1, 5, 9]
    padded = one_step(prompt).pad(StepShape(tokens=16, seqs=4, blocks=5))
    assert hash_executable()(padded).result().tokens[0, 0] == expected(0, prompt, 1, 100)[0]


def test_a_poisoned_block_shows_as_a_wrong_token():
    device = discovery.load("null").with_options(NullOptions(vocab=100_000)).open(Place())
    kv = np.zeros((6, 4), np.int64)
    exe = device.compile(None, None, StateBox({"kv": [kv], "history": np.zeros((3, 20), np.int32)}), None, None)
    want = expected(0, [3, 1, 4, 1, 5, 9], 2, 100_000)
    exe(one_step([3, 1, 4, 1, 5, 9]))
    device.poison(kv, 1)
    assert exe(one_step(want[:1], context=6)).result().tokens[0, 0] != want[1]


def test_two_salts_are_two_models():
    batch = one_step([1, 2, 3])
    seen = {int(hash_executable(salt=s)(batch).result().tokens[0, 0]) for s in range(20)}
    assert len(seen) > 10


def test_logprob_answers_have_the_asked_shape():
    batch = one_step([1, 2, 3])
    batch.parts = (Scores(np.array([0, 1], np.int32), np.array([2, 3], np.int32), level=1),)
    batch.features = batch.infer_features(logprobs=2)
    for options in ({}, {"tokens": "fixed", "fixed": 7}):
        result = hash_executable(**options)(batch).result()
        assert result.logprobs.tokens.shape == (1, 3)
        assert result.logprobs.tokens[0, 0] == result.tokens[0, 0]
        assert result.score.tokens[:, 0].tolist() == [2, 3]


def test_steps_take_their_time_on_a_simulated_clock_one_after_another():
    clock = SimClock(10.0)
    exe = hash_executable(base=1.0, per_token=0.1, per_seq=0.5, clock=clock)
    first, second = exe(one_step([1, 2, 3])), exe(one_step([4], context=3))
    assert not first.ready()
    first.result()
    assert clock() == pytest.approx(11.8)
    second.result()
    assert clock() == pytest.approx(13.4)


def test_bad_options_are_refused_in_words():
    platform = discovery.load("null")
    with pytest.raises(DeviceError, match="NullOptions"):
        platform.with_options({"tokens": "hash"}).open(Place())
    with pytest.raises(DeviceError, match="fixed"):
        platform.with_options(NullOptions(tokens="random")).open(Place())
    with pytest.raises(DeviceError, match="window"):
        platform.with_options(NullOptions(windows=(1,))).open(Place())


def test_the_host_benchmark_reports_every_step():
    result = run(seqs=4, steps=20, depth=2, context=20)
    assert result["seqs"] == 4
    assert result["steps"] == 20
    assert 0 < result["median_us"] <= result["p99_us"]


def test_times_in_outputs_are_those_of_the_given_clock():
    config = null_config(seqs=2, max_len=32, depth=2)
    clock = SimClock(5.0)
    core = EngineCore(null_executor(config, base=2.0, clock=clock), clock=clock)
    core.add([EngineRequest(handle=1, tokens=np.array([1], np.int32), prompt_len=1, sampling=TokenSampling(max_tokens=2))])
    frame = core.step()
    assert frame.time == 7.0
    assert (frame.started[0].queued_ts, frame.started[0].scheduled_ts) == (5.0, 5.0)


def test_the_control_plane_and_the_null_platform_import_no_tensor_framework():
    code = (
        "import sys, thalweg.engine.control, thalweg.backends.null, thalweg.bench.host; "
        "thalweg.bench.host.run(seqs=2, steps=2); assert 'torch' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
