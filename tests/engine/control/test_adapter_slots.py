"""Who runs with which adapter, who waits for a slot, and who shares a prefix. In every step, what a slot holds is compared
with what its sequence asked for (`World.launch`)."""

from __future__ import annotations

import random
import threading
from queue import SimpleQueue

import msgspec
import numpy as np
import pytest
from world import World, make_config, random_config, random_request

from thalweg.engine.control import adapters
from thalweg.engine.control.loading import AdapterLoads, LoadedAdapter
from thalweg.engine.messages import EngineRequest, LoadAdapter, Outputs, TokenSampling

A, B, C = (bytes([n]) * 32 for n in b"ABC")


def world(slots: int = 1, **config: int) -> World:
    return World(make_config(adapter_slots=slots, **config), adapters=slots, loaded=(A, B, C))


def request(handle: int, adapter: bytes = b"", tokens: int = 3, prompt: int = 8, salt: str = "") -> EngineRequest:
    return EngineRequest(
        handle=handle, tokens=np.arange(prompt, dtype=np.int32), prompt_len=prompt, adapter=adapter, cache_salt=salt,
        sampling=TokenSampling(max_tokens=tokens),
    )  # fmt: skip


def frames(w: World) -> list[Outputs]:
    found = []
    while w.core.has_work:
        if (out := w.step()) is not None:
            found.append(out)
    w.idle()
    return found


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.sampled(1)
def test_sequences_run_with_their_own_adapters_whatever_comes_and_goes(seed: int) -> None:
    """With preemption, aborts, drafts, and steps that run after the slot's next owner was decided on."""
    rng = random.Random(seed)
    slots, config = 1 + seed % 3, random_config(rng)
    config = msgspec.structs.replace(config, scheduler=msgspec.structs.replace(config.scheduler, adapter_slots=slots))
    drafts = 0 if any(g.kind == "state" for g in config.cache.groups) else seed % 4
    w = World(config, deferred=seed % 2 == 1, adapters=slots, loaded=(A, B, C), drafts=drafts)
    stems: list[list[int]] = []
    for handle in range(40):
        r = random_request(rng, handle, w.config, stems, w.oracle)
        w.submit(msgspec.structs.replace(r, adapter=rng.choice([b"", A, B, C])))
        w.tracked[handle].may_fail = True  # a prompt that fits no cache
        if rng.random() < 0.1:
            w.abort(rng.randrange(handle + 1))
        for _ in range(rng.randrange(3)):
            w.step()
    w.drain()
    assert len(w.writes) > 2


def test_one_that_waits_for_a_slot_lets_others_pass() -> None:
    w = world(1)
    for r in (request(0, A, 9), request(1, B), request(2, b""), request(3, A)):
        w.submit(r)
    out = frames(w)
    started = [s for o in out for s in o.started]
    assert [(s.handle, s.held) for s in started] == [(0, ""), (2, ""), (3, "prefix"), (1, "adapter")]
    assert w.writes == [(1, A), (1, B)]


def test_one_that_waits_for_a_slot_is_not_overtaken_for_ever(monkeypatch: pytest.MonkeyPatch) -> None:
    """The adapter in the slot has always one more request."""
    monkeypatch.setattr(adapters, "OVERTAKES", 8)
    w = world(1, max_seqs=4)
    w.submit(request(0, A, 9))
    w.submit(request(1, B))
    order: list[int] = []
    for handle in range(2, 24):
        w.submit(request(handle, A, 9))
        for _ in range(4):
            if (out := w.step()) is not None:
                order += [s.handle for s in out.started]
    order += [s.handle for out in frames(w) for s in out.started]
    assert order.index(1) == 1 + 8


def test_the_slot_that_was_left_longest_ago_is_overwritten() -> None:
    w = world(2)
    for handle, adapter in enumerate((A, B, A, C, A, B)):
        w.submit(request(handle, adapter))
        frames(w)
    assert w.writes == [(1, A), (2, B), (2, C), (2, B)]


def test_prefixes_are_shared_with_the_same_adapter_only() -> None:
    w = world(3)
    cached = {}
    for handle, (adapter, salt) in enumerate([(b"", ""), (A, ""), (B, ""), (A, ""), (b"", ""), (A, "x"), (b"", "x")]):
        w.submit(request(handle, adapter, salt=salt))
        cached |= {s.handle: s.cached_tokens for out in frames(w) for s in out.started}
    assert cached == {0: 0, 1: 0, 2: 0, 3: 4, 4: 4, 5: 0, 6: 0}


def test_what_is_not_loaded_is_refused_and_what_is_in_use_is_kept() -> None:
    w = world(1)
    w.submit(request(0, A, 9))
    w.submit(request(1, B, 9))
    w.step()
    assert w.core.unload_adapter(A) == w.core.unload_adapter(B) != ""
    frames(w)
    assert (w.core.unload_adapter(B), w.core.unload_adapter(B)) == ("", "the adapter is not loaded")
    for core in (w.core, World(make_config()).core):
        core.add([request(2, B)])
        (ended,) = core.step().finished
        assert (ended.reason, ended.error) == ("error", "lora_request: the adapter is not loaded")
    w.submit(request(3, A))
    frames(w)
    assert w.writes == [(1, A), (1, B), (1, A)]


def test_one_that_is_unloaded_while_it_is_read_does_not_stay() -> None:
    """A replaced engine is given adapters without anybody waiting for them, so an unload may overtake a read."""
    w, done = world(), SimpleQueue[LoadedAdapter]()
    gate, new = threading.Event(), b"D" * 32
    w.core.read_adapter = lambda path, digest=b"": bytes([gate.wait(60)])  # type: ignore[method-assign]
    loads = AdapterLoads(w.core, done.put)
    held = msgspec.structs.replace(request(1), adapter=new)
    for unloaded, wanted_again in ((True, False), (True, True), (False, False)):
        gate.clear()
        loads.start(LoadAdapter(1, new, "/new"))
        if unloaded:
            assert loads.unload(new) == ""
        if wanted_again:
            loads.start(LoadAdapter(2, new, "/new"))
        waits = loads.hold([held]) == []
        gate.set()
        assert waits
        for _ in range(1 + wanted_again):
            loads.finish(done.get(timeout=60))
        assert (new in w.core.adapters) == (wanted_again or not unloaded)
        loads.unload(new)
        assert new not in w.core.adapters
    assert loads.unload(new) == "the adapter is not loaded"
