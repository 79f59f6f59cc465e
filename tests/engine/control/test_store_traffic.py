"""Between the cache and a store: what is saved is found by another engine, nobody waits for long, and every fault is a miss."""

import random
import sys
import threading
import time

import numpy as np
import pytest
from stores import FaultyStore
from world import World, make_config

from thalweg.backends.null import SimClock
from thalweg.engine.control.store import mover
from thalweg.engine.control.store.host import HostStore
from thalweg.engine.control.store.lanes import ThreadLane
from thalweg.engine.control.store.names import seal, unseal
from thalweg.engine.messages import EngineRequest, TokenSampling
from thalweg.errors import ConfigError

GROUPS = {"full": (0,), "window": (0, 9), "state": (-1, 0), "all": (0, 6, -1)}


def ask(handle, tokens, max_tokens=3, salt=""):
    tokens = np.array(tokens, np.int32)
    sampling = TokenSampling(max_tokens=max_tokens)
    return EngineRequest(handle=handle, tokens=tokens, prompt_len=tokens.size, sampling=sampling, cache_salt=salt)


def world(store, windows=(0,), **kwargs):
    config = make_config(vocab=101, max_len=128, block_tokens=4, blocks=kwargs.pop("blocks", 60), windows=windows, depth=2)
    return World(config, store=store, clock=SimClock(), poison=True, deferred=True, **kwargs)


def save_all(w):
    """What an engine does when it ends, with its store left open."""
    while w.core._transfers.settle():
        pass


PROMPT = [(7 * i) % 101 for i in range(50)]


@pytest.mark.parametrize(
    ("saves", "loads"), [("kv_consumer", "kv_both"), ("kv_both", "kv_producer"), ("kv_producer", "kv_consumer")]
)
def test_a_producer_only_saves_and_a_consumer_only_loads(saves, loads):
    store = FaultyStore(random.Random(0), {})
    for number, role in enumerate((saves, loads)):
        w = world(store, role=role)
        w.submit(ask(number, PROMPT))
        w.drain()
        save_all(w)
    assert bool(w.core.stats().store_hits) == ((saves, loads) == ("kv_producer", "kv_consumer"))


@pytest.mark.parametrize("windows", GROUPS.values(), ids=GROUPS)
def test_another_engine_finds_what_one_has_computed(windows):
    store = FaultyStore(random.Random(0), {})
    first = world(store, windows)
    first.submit(ask(0, PROMPT))
    first.drain()
    save_all(first)
    second = world(store, windows)
    second.submit(ask(0, [*PROMPT[:40], 1, 2, 3, 4, 5]))
    second.drain()  # the oracle compares every token
    reached = 32 if -1 in windows else 40  # a state is kept where a step ended
    assert second.core.stats().store_hits == reached
    assert second.core.stats().prompt_cached == reached
    assert store.loaded, "blocks came from the store"
    second.submit(ask(1, PROMPT[:40], salt="another tenant's"))
    second.drain()
    assert second.core.stats().store_hits == reached


def test_a_prefix_that_would_leave_no_block_to_go_on_is_computed():
    """Of two engines that share a store one has room for snapshots of states, and the other for a single state."""
    store = FaultyStore(random.Random(0), {})
    large = world(store, (-1, 0))
    large.submit(ask(0, PROMPT))
    large.drain()
    save_all(large)
    small = world(store, (-1, 0), blocks=(2, 60))
    small.submit(ask(0, PROMPT))
    small.drain()
    assert small.core.stats().prompt_cached == 0


def test_others_run_while_a_request_waits_and_a_store_that_hangs_is_asked_no_more():
    store = FaultyStore(random.Random(0), {})
    w = world(store)
    w.submit(ask(0, PROMPT))
    w.drain()
    save_all(w)
    w.boot()
    w.tracked.clear()
    store.faults = {"late": 1.0}
    store.rng.choice = lambda options: options[-1]  # late for ever
    w.submit(ask(1, PROMPT))
    w.submit(ask(2, [9, 8, 7]))
    while w.tracked[2].finished is None:
        w.step()
    assert w.tracked[1].got == 0
    (waiting,) = w.core.scheduler.waiting
    assert waiting.held == "store"
    begin = w.kwargs["clock"]()
    w.drain()
    waited = w.kwargs["clock"]() - begin
    assert 3 < waited < 6, "it waits for the time-out, and is computed"
    assert w.core.stats().store_failed == 1
    w.submit(ask(3, [*PROMPT[::-1], 4]))
    w.drain()
    assert w.kwargs["clock"]() - begin == waited, "a call hangs, so nobody waits behind it"


def test_what_is_evicted_before_it_left_leaves_with_the_step_that_takes_its_place():
    store = FaultyStore(random.Random(0), {})
    store.per_step = 0
    w = world(store, blocks=14)
    w.submit(ask(0, PROMPT[:40]))
    w.drain()
    assert not store.blocks, "nothing has left yet"
    w.submit(ask(1, PROMPT[::-1][:44]))
    w.drain()
    w.core._transfers.departures.collect(wait=True)
    assert len(store.blocks) > 4
    for handle, prompt in ((2, PROMPT[:40]), (3, PROMPT[::-1][:44]), (4, PROMPT[:40])):
        w.submit(ask(handle, prompt))
        w.drain()  # with the right tokens
        w.core._transfers.departures.collect(wait=True)
    assert w.core.stats().store_hits > 40


def test_a_preempted_sequence_takes_its_blocks_from_the_store():
    store = FaultyStore(random.Random(0), {})
    store.per_step = 1 << 20
    w = world(store, blocks=34)
    for handle in range(6):
        w.submit(ask(handle, [handle, *PROMPT[:15]], max_tokens=60))
    w.drain()
    assert w.core.stats().preemptions > 0
    assert w.core.stats().store_hits > 0


def test_an_aborted_request_and_a_reset_leave_nothing_behind():
    store = FaultyStore(random.Random(0), {})
    w = world(store)
    w.submit(ask(0, PROMPT))
    w.drain()
    save_all(w)
    w.boot()
    w.tracked.clear()
    store.rng.choice = lambda options: 2
    w.submit(ask(1, PROMPT))
    w.submit(ask(2, PROMPT))
    w.step()
    w.abort(1)
    w.core.reset_prefix_cache()
    w.drain()
    assert w.core.stats().store_hits == 0, "what was on its way is not found after a reset"


def test_blocks_that_leave_during_a_reset_are_not_found_after_it():
    store = FaultyStore(random.Random(0), {})
    store.clear = store.blocks.clear
    w = world(store)
    w.submit(ask(0, PROMPT))
    w.drain()
    w.core._transfers.flush()
    assert w.core._transfers.departures._copies, "no copy is under way"
    w.core.reset_prefix_cache()
    save_all(w)
    assert not store.blocks


def test_calls_of_a_store_are_made_in_order_on_a_thread_of_their_own():
    lane, seen, go_on = ThreadLane("a store"), [], threading.Event()
    first = lane.submit(lambda: (go_on.wait(), seen.append(threading.current_thread().name))[0])
    second = lane.submit(lambda: 1 / 0)
    assert not first.is_done
    go_on.set()
    while not second.is_done:
        lane.wait(1)
    assert first.result() is True
    assert seen == ["a store"]
    with pytest.raises(ZeroDivisionError):
        second.result()


def test_a_store_is_closed_when_no_call_of_it_is_in_progress():
    """Native clients crash where one thread closes what another uses."""
    store, seen, go_on = FaultyStore(random.Random(0), {}), [], threading.Event()
    store.close = lambda: seen.append("close")
    transfers = world(store).core._transfers
    transfers._reading, transfers._writing = ThreadLane("loads"), ThreadLane("saves")
    transfers._reading.submit(lambda: (go_on.wait(), seen.append("lookup")))
    closing = threading.Thread(target=transfers.close)
    closing.start()
    closing.join(0.2)
    go_on.set()
    closing.join()
    assert seen == ["lookup", "close"]


def test_a_store_that_would_end_its_thread_only_fails_its_call():
    lane = ThreadLane("a store")
    first, second = lane.submit(lambda: sys.exit(3)), lane.submit(lambda: 1)
    deadline = time.monotonic() + 60
    while not second.is_done and time.monotonic() < deadline:
        lane.wait(0.1)
    assert second.is_done, "the thread has ended"
    with pytest.raises(RuntimeError, match="SystemExit: 3"):
        first.result()


def test_the_store_in_host_memory_drops_the_least_recently_used_beyond_its_limit():
    store = HostStore.open({"cpu_bytes_to_use": 10})
    store.save([b"a", b"b"], [b"1234", b"5678"])
    assert store.load([b"a"]) == [b"1234"]
    store.save([b"c"], [b"90"])
    store.save([b"d", b"huge"], [b"ab", bytes(11)])
    assert store.lookup([b"a", b"b", b"c", b"d", b"huge"]) == [True, False, True, True, False]
    store.save([b"a"], [b"1234"])
    assert store.load([b"a", b"b"]) == [b"1234", None]
    store.clear()
    assert store.lookup([b"a", b"c"]) == [False, False]


@pytest.mark.parametrize(
    ("options", "says"),
    [({}, "bytes above 0"), ({"cpu_bytes_to_use": "4GiB"}, "bytes above 0"), ({"cpu_bytes_to_use": 1, "x": 1}, "'x' is not")],
)
def test_options_of_the_store_in_host_memory_are_refused_by_name(options, says):
    with pytest.raises(ConfigError, match=says):
        HostStore.open(options)


def test_a_block_of_another_name_or_length_is_none():
    kept = seal(b"k", b"some bytes")
    assert unseal(b"k", kept, 10) == b"some bytes"
    assert unseal(b"l", kept, 10) is None
    assert unseal(b"k", kept[:-1], 10) is None
    assert unseal(b"k", b"x" + kept[1:], 10) is None
    assert unseal(b"k", None, 10) is None


def test_a_block_of_several_ranks_is_that_of_each_in_turn(monkeypatch):
    monkeypatch.setattr(mover, "MESSAGE", 20)  # two blocks
    calls = []

    class Executor:
        sizes = [[3, 5], [3, 5]]

        def call(self, operation, *args):
            calls.append((operation, *args))
            if operation == "describe_blocks":
                return [(sizes, b"same") for sizes in self.sizes]
            if operation == "export_ready":
                return [True, len(calls) > 4]
            if operation == "take_export":
                return [np.full((2, 5), rank, np.uint8) for rank in range(2)]
            return [None, None]

    made = mover.ExecutorMover(Executor())
    assert list(made.block_bytes) == [6, 10]
    assert made.signature != b"same"
    export = made.export(1, np.array([7, 9], np.int32))
    assert not export.ready()
    assert export.result().tolist() == [[0] * 5 + [1] * 5] * 2
    rows = np.arange(50, dtype=np.uint8).reshape(5, 10)
    made.import_(1, np.arange(5, dtype=np.int32), rows)
    imports = [(blocks.tolist(), part.tolist()) for name, group, blocks, part in (c for c in calls if c[0] == "import_blocks")]
    assert [blocks for blocks, _ in imports] == [[0, 1], [2, 3], [4]]
    assert [row for _, part in imports for row in part] == rows.tolist()
    Executor.sizes = [[3, 5], [3, 4]]
    with pytest.raises(ConfigError, match="ranks have blocks of different sizes"):
        mover.ExecutorMover(Executor())
