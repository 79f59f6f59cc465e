"""One LLM for several threads: each gets its own results, one call at a time, whatever another one does or suffers."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from thalweg import LLM, BeamSearchParams, PoolingParams, SamplingParams
from thalweg.errors import UnavailableError
from thalweg.offline.sharing import interrupts_held

SIZES = {"device": "null", "max_model_len": 256, "max_num_seqs": 4, "enable_sleep_mode": True}
PARAMS = SamplingParams(max_tokens=6, ignore_eos=True, seed=1)
GREEDY = SamplingParams(max_tokens=8, temperature=0)
SMALL = {"device": "cpu", "max_model_len": 256, "kv_cache_memory_bytes": 40_000_000}
QUIET = {"use_tqdm": False}


@pytest.fixture
def llm():
    made = LLM(**SIZES)
    yield made
    made.shutdown()


def together(works: list[Callable[[], Any]]) -> list[Any]:
    """What each gives, all begun at once. An exception is a result."""
    begin = threading.Barrier(len(works))

    def run(work: Callable[[], Any]) -> Any:
        begin.wait(60)
        try:
            return work()
        except BaseException as e:
            return e

    with ThreadPoolExecutor(len(works)) as pool:
        return list(pool.map(run, works))


def tokens(outputs: list[Any]) -> list[list[int]]:
    return [list(o.outputs[0].token_ids) for o in outputs]


@pytest.mark.slow
def test_eight_threads_get_the_texts_of_one():
    llm = LLM(**SMALL)
    try:
        hello = [{"role": "user", "content": "Hello"}]
        kinds = [
            lambda: [o.outputs[0].text for o in llm.generate(["Sort: pear, apple", "Hi"], GREEDY, **QUIET)],
            lambda: [o.outputs[0].text for o in llm.chat(hello, GREEDY, **QUIET)],
            lambda: [s.text for s in llm.beam_search("Hi", BeamSearchParams(beam_width=2, max_tokens=3))[0].sequences],
            lambda: [len(llm.enqueue("Hi", GREEDY)), *(o.outputs[0].text for o in llm.wait_for_completion(**QUIET))],
        ]
        want = [kind() for kind in kinds]
        assert together(2 * kinds) == 2 * want
        assert llm.stats().running == 0
    finally:
        llm.shutdown()


def test_threads_of_a_pooling_model_get_their_own_vectors():
    llm = LLM(runner="pooling", dtype="float32", **SMALL)
    try:
        first = PoolingParams(use_activation=False)
        kinds = [
            lambda: [list(o.outputs.embedding) for o in llm.embed(["pear", "a longer text about apples"], **QUIET)],
            lambda: [o.outputs.score for o in llm.score("pear", ["apple", "tractor"], **QUIET)],
            lambda: [o.outputs.data.tolist() for o in llm.encode(["plum"], first, pooling_task="embed", **QUIET)],
        ]
        want = [kind() for kind in kinds]
        assert together(kinds) == want
    finally:
        llm.shutdown()


def test_two_threads_are_never_in_a_step_at_once(llm):
    step, inside, worst = llm._core.step, [], []

    def watched():
        inside.append(1)
        worst.append(len(inside))
        time.sleep(0.001)
        try:
            return step()
        finally:
            inside.pop()

    llm._core.step = watched
    seen = together([lambda: tokens(llm.generate(["a", "b"], PARAMS, **QUIET))] * 4)
    assert max(worst) == 1
    assert seen == [seen[0]] * 4


def test_a_thread_that_takes_its_turn_after_another_enters_the_device(llm, monkeypatch):
    """CUDA keeps the current stream by thread."""
    entered = []
    monkeypatch.setattr(type(llm.device), "enter", lambda self: entered.append(threading.get_ident()))
    llm.generate(["a"], PARAMS, **QUIET)
    assert entered == [], "the thread that made it"
    (other,) = together([lambda: (llm.generate(["a"], PARAMS, **QUIET), threading.get_ident())[1]])
    llm.generate(["a"], PARAMS, **QUIET)
    assert entered == [other, threading.get_ident()]


def test_a_thread_waits_for_what_it_enqueued_and_one_that_did_not_for_everything(llm):
    want = tokens(llm.generate(["a"], PARAMS, **QUIET))[0]

    def both() -> list[str]:
        ids = llm.enqueue(["a", "a"], PARAMS)
        return ids == [o.request_id for o in llm.wait_for_completion(**QUIET)]

    assert together([both] * 4) == [True] * 4
    (ids,) = together([lambda: llm.enqueue(["a"], PARAMS)])
    assert [o.request_id for o in llm.wait_for_completion(**QUIET)] == ids
    assert llm.wait_for_completion(**QUIET) == []
    kept = llm.enqueue(["a"], PARAMS)
    between = llm.generate(["a"], PARAMS, **QUIET)
    assert tokens(between) == [want], "what was enqueued before is not among the results of generate"
    after = llm.wait_for_completion(**QUIET)
    assert (tokens(after), [o.request_id for o in after]) == ([want], kept)


@pytest.fixture
def own_handler():
    """Python's handler of Ctrl-C, also where this process was started with the signal ignored, as in a script's background."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.mark.usefixtures("own_handler")
def test_ctrl_c_ends_the_main_threads_call_between_steps_and_no_others(llm):
    want = tokens(llm.generate(["a", "b"], PARAMS, **QUIET))
    step, main, left = llm._core.step, threading.main_thread(), []

    def struck():
        if threading.current_thread() is main and not left:
            os.kill(os.getpid(), signal.SIGINT)
            for _ in range(50):
                time.sleep(0.001)  # the interpreter looks for signals here: inside the step
            left.append("whole")
        return step()

    llm._core.step = struck
    with ThreadPoolExecutor(3) as pool:
        others = [pool.submit(lambda: tokens(llm.generate(["a", "b"], PARAMS, **QUIET))) for _ in range(3)]
        with pytest.raises(KeyboardInterrupt):
            llm.generate(["a", "b"], PARAMS, **QUIET)
        assert left == ["whole"], "the step in which the signal came was finished"
        assert [o.result(60) for o in others] == [want] * 3
    llm._core.check()
    assert llm.stats().running == 0
    assert tokens(llm.generate(["a", "b"], PARAMS, **QUIET)) == want


@pytest.mark.usefixtures("own_handler")
def test_a_second_ctrl_c_is_not_put_off():
    reached = []

    def struck() -> None:
        with interrupts_held():
            for i in (1, 2):
                os.kill(os.getpid(), signal.SIGINT)
                time.sleep(0.01)
                reached.append(i)

    with pytest.raises(KeyboardInterrupt):
        struck()
    assert reached == [1]
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


def test_an_error_in_one_thread_leaves_the_others_their_results(llm):
    want = tokens(llm.generate(["a"], PARAMS, **QUIET))

    def bar(**_: Any) -> Any:
        raise RuntimeError("no bar")

    bad = lambda: llm.generate(["a"], PARAMS, use_tqdm=bar)  # noqa: E731
    good = lambda: tokens(llm.generate(["a"], PARAMS, **QUIET))  # noqa: E731
    errors = together([bad, good, bad, good])
    assert [type(e) for e in errors[::2]] == [RuntimeError] * 2
    assert errors[1::2] == [want] * 2
    assert not llm.llm_engine.has_unfinished_requests()


def test_sleep_waits_for_its_turn_and_what_comes_while_it_sleeps_is_told(llm):
    want = tokens(llm.generate(["a"], PARAMS, **QUIET))
    step, slow = llm._core.step, threading.Event()

    def stepped():
        slow.set()
        time.sleep(0.005)
        return step()

    llm._core.step = stepped
    with ThreadPoolExecutor(1) as pool:
        running = pool.submit(lambda: tokens(llm.generate(["a"], PARAMS, **QUIET)))
        assert slow.wait(60)
        llm.sleep()  # its mode is abort: nothing of another thread's call is open any more
        assert running.result(60) == want
    with pytest.raises(UnavailableError, match="wake_up"):
        llm.generate(["a"], PARAMS, **QUIET)
    llm.wake_up()
    kept = llm.enqueue(["a"], PARAMS)
    llm.sleep(mode="keep")
    with pytest.raises(UnavailableError, match="wake_up"):
        llm.wait_for_completion(**QUIET)
    llm.wake_up()
    assert [(o.request_id, tokens([o])) for o in llm.wait_for_completion(**QUIET)] == [(kept[0], want)]


def test_calls_after_a_shutdown_by_another_thread_are_refused_in_words(llm):
    together([llm.shutdown])
    with pytest.raises(UnavailableError, match="was shut down"):
        llm.generate(["a"], PARAMS, **QUIET)
