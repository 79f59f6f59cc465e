"""Who goes to the engine, and when: bounds that hold at once, turns by tenant, nothing lost when clients leave."""

from __future__ import annotations

import asyncio
import contextlib
import json
import random

import httpx
import pytest
from fake_engine import FakeEngine, token_at

from thalweg.server.core.admission import Admission
from thalweg.server.core.drain import Drain
from thalweg.server.errors import ApiError

TEXT = "/v1/completions"


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


async def settle() -> None:
    for _ in range(5):
        await asyncio.sleep(0)


class Crowd:
    """Requests that run until they are told to end; `order`: who started, in order."""

    def __init__(self, admission: Admission) -> None:
        self.admission = admission
        self.order: list[str] = []
        self.tasks: list[asyncio.Task[None]] = []
        self.ends: dict[str, asyncio.Event] = {}

    def add(self, name: str, tenant: str = "", sequences: int = 1, priority: int = 0, tokens: int = 1) -> None:
        ticket = self.admission.enter(tenant)
        try:
            ticket.charge(1, tokens)
        except ApiError:
            ticket.close()
            raise
        end = self.ends[name] = asyncio.Event()

        async def run() -> None:
            async with self.admission.turn(ticket, sequences, tokens, priority):
                self.order.append(name)
                await end.wait()

        task = asyncio.create_task(run(), name=name)
        task.add_done_callback(lambda _: ticket.close())
        self.tasks.append(task)

    async def end(self, *names: str) -> None:
        for name in names:
            self.ends[name].set()
            await settle()


async def test_tenants_take_turns_whatever_their_numbers():
    crowd = Crowd(Admission(window=2, max_requests=200, max_tokens=10**6))
    for i in range(100):
        crowd.add(f"a{i}", "a")
    await settle()
    crowd.add("b0", "b")
    crowd.add("b1", "b")
    crowd.add("c0", "c")
    await settle()
    assert crowd.order == ["a0", "a1"]
    await crowd.end("a0", "a1", "b0", "a2", "c0")
    assert crowd.order == ["a0", "a1", "b0", "a2", "c0", "b1", "a3"]


async def test_the_urgent_go_first_and_equals_take_turns():
    crowd = Crowd(Admission(window=1, max_requests=99, max_tokens=10**6))
    for name, tenant, priority in (
        ("x", "a", 0),
        ("a1", "a", 1),
        ("a0", "a", 0),
        ("b9", "b", 9),
        ("b0", "b", 0),
        ("c", "c", -5),
    ):
        crowd.add(name, tenant, priority=priority)
        await settle()
    await crowd.end("x", "c", "a0", "b0", "a1")
    assert crowd.order == ["x", "c", "a0", "b0", "a1", "b9"]


async def test_a_full_queue_refuses_at_once_with_the_time_it_will_take():
    clock = Clock()
    admission = Admission(window=2, max_requests=3, max_tokens=100, clock=clock)
    crowd = Crowd(admission)
    for i in range(5):
        crowd.add(str(i), tokens=10)
    await settle()
    with pytest.raises(ApiError) as e:
        admission.enter("someone")
    assert (e.value.status, admission.refused) == (429, 1)
    assert e.value.retry_after >= 1
    clock.now = 20.0
    await crowd.end("0")
    assert (admission.places, admission.tokens) == (2, 20)
    admission.enter("someone").close()
    ticket = admission.enter("someone")
    with pytest.raises(ApiError) as e:
        ticket.charge(1, 81)  # 20 wait already
    assert e.value.status == 429
    assert 10 <= e.value.retry_after <= 60  # one has taken 20 seconds, two run at once, and three are waiting
    with pytest.raises(ApiError):
        ticket.charge(3, 1)
    ticket.close()


async def test_a_tenant_leaves_room_in_the_queue_for_others():
    admission = Admission(window=2, max_requests=90, max_tokens=9000)
    crowd = Crowd(admission)
    for tenant in ("loud", "louder"):
        for i in range(200):
            with contextlib.suppress(ApiError):
                crowd.add(f"{tenant}{i}", tenant, tokens=10)
    with pytest.raises(ApiError):
        crowd.add("more", "loud")
    crowd.add("quiet0", "quiet", tokens=10)
    await settle()
    assert admission.waiting > 80
    await crowd.end("loud0", "loud1", "loud2")
    assert "quiet0" in crowd.order


async def test_a_request_alone_is_never_too_big_to_wait():
    admission = Admission(window=4, max_requests=0, max_tokens=10)
    ticket = admission.enter("")
    ticket.charge(100, 10**6)
    ticket.close()
    crowd = Crowd(admission)
    crowd.add("huge", sequences=1000)
    await settle()
    assert crowd.order == ["huge"]
    await crowd.end("huge")
    assert (admission.running, admission.places, admission.tokens) == (0, 0, 0)


async def test_whoever_waits_is_told_when_the_server_closes():
    admission = Admission(window=1, max_requests=9, max_tokens=99)
    crowd = Crowd(admission)
    for i in range(3):
        crowd.add(str(i))
    await settle()
    admission.close(ApiError("closing", status=503))
    await crowd.end("0")
    results = await asyncio.gather(*crowd.tasks, return_exceptions=True)
    assert [type(r) for r in results] == [type(None), ApiError, ApiError]
    crowd.add("late")
    with pytest.raises(ApiError):
        await crowd.tasks[-1]
    assert (admission.running, admission.places) == (0, 0)


@pytest.mark.parametrize("seed", range(20))
async def test_nothing_leaks_whoever_leaves_when(seed):
    rng = random.Random(seed)
    admission = Admission(window=5, max_requests=40, max_tokens=500)
    crowd = Crowd(admission)
    for i in range(300):
        act = rng.random()
        if act < 0.5:
            with contextlib.suppress(ApiError):
                crowd.add(str(i), rng.choice("abc"), rng.choice([1, 1, 2, 9]), rng.choice([0, 0, 1]), rng.choice([1, 40]))
        elif act < 0.7 and crowd.tasks:
            rng.choice(crowd.tasks).cancel()
        elif crowd.order:
            crowd.ends[rng.choice(crowd.order)].set()
        if rng.random() < 0.5:
            await asyncio.sleep(0)
        assert 0 <= admission.running <= admission.window
        assert admission.places <= 45 + 1
        assert admission.waiting <= admission.places
    await settle()
    for end in crowd.ends.values():
        end.set()
    await asyncio.wait(crowd.tasks, timeout=60)
    await settle()
    assert all(t.done() for t in crowd.tasks)
    assert not admission._held
    assert (admission.running, admission.places, admission.tokens, admission.waiting) == (0, 0, 0, 0)


async def test_a_request_that_was_called_takes_no_place_of_the_queue():
    """Its task runs later than the next request may come."""
    admission = Admission(window=1, max_requests=1, max_tokens=100)
    tickets = [admission.enter("a"), admission.enter("a")]
    first = admission.turn(tickets[0], 1, 5)
    await first.__aenter__()

    async def run() -> None:
        async with admission.turn(tickets[1], 1, 0):
            pass

    second = asyncio.create_task(run())
    await asyncio.sleep(0)
    with pytest.raises(ApiError):
        admission.look("a")
    await first.__aexit__(None, None, None)
    assert not second.done()
    assert (admission.running, admission.places) == (1, 0)
    admission.look("a")
    await second


@pytest.mark.slow
async def test_the_server_refuses_with_429_and_goes_on(start):
    engine = FakeEngine()
    engine.held = True
    running = start(engine, max_queued_requests=4)
    async with httpx.AsyncClient(base_url=running.url, timeout=60, limits=httpx.Limits(max_connections=None)) as client:
        asking = []
        for count in (10, 50):  # before ten are at the engine, one tenant may not hold all places
            asking += [asyncio.create_task(client.post(TEXT, json={"prompt": "abc", "max_tokens": 10})) for _ in range(count)]
            while running.app.serving.admission.running < 10:
                await asyncio.sleep(0.005)
        while sum(a.done() for a in asking) < 46:  # ten are at the engine, and four wait
            await asyncio.sleep(0.005)
        engine.held = False
        answers = await asyncio.gather(*asking)
    statuses = [r.status_code for r in answers]
    assert (statuses.count(200), statuses.count(429)) == (14, 46)
    refused = next(r for r in answers if r.status_code == 429)
    assert int(refused.headers["retry-after"]) >= 1
    assert refused.json()["error"]["type"] == "RateLimitError"
    assert running.post(TEXT, {"prompt": "abc", "max_tokens": 1}).status_code == 200
    assert (running.app.serving.admission.places, running.app.serving.admission.running) == (0, 0)


async def test_one_key_does_not_starve_another(start):
    running = start(FakeEngine(delay=0.01), api_key=["loud", "quiet"])
    running.engine.held = True
    admission = running.app.serving.admission
    order: list[str] = []
    async with httpx.AsyncClient(base_url=running.url, timeout=60, limits=httpx.Limits(max_connections=None)) as client:

        async def ask(key: str) -> None:
            headers = {"authorization": f"Bearer {key}"}
            r = await client.post(TEXT, json={"prompt": "abc", "max_tokens": 5}, headers=headers)
            assert r.status_code == 200
            order.append(key)

        asking = [asyncio.create_task(ask("loud")) for _ in range(34)]
        while admission.waiting < 24:
            await asyncio.sleep(0.005)
        asking += [asyncio.create_task(ask("quiet")) for _ in range(3)]
        while admission.waiting < 27:
            await asyncio.sleep(0.005)
        running.engine.held = False
        await asyncio.gather(*asking)
    assert order.index("quiet") < 22
    assert max(i for i, k in enumerate(order) if k == "quiet") < 35


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.slow
async def test_the_choices_of_a_request_take_turns_like_prompts(start, stream):
    """n=200 of one key is no way past the turns: the engine is given no more than its window, and another key comes next."""
    running = start(FakeEngine(delay=0.002), api_key=["loud", "quiet"])
    running.engine.held = True
    admission = running.app.serving.admission
    order: list[str] = []
    async with httpx.AsyncClient(base_url=running.url, timeout=60) as client:

        async def ask(key: str, n: int) -> httpx.Response:
            headers = {"authorization": f"Bearer {key}"}
            body = {"prompt": "abc", "max_tokens": 8, "n": n, "seed": 5, "stream": stream}
            r = await client.post(TEXT, json=body, headers=headers)
            assert r.status_code == 200
            order.append(key)
            return r

        loud = asyncio.create_task(ask("loud", 200))
        while (before := admission.waiting) < 50:
            await asyncio.sleep(0.005)
        quiet = [asyncio.create_task(ask("quiet", 1)) for _ in range(3)]
        while admission.waiting < before + 3:
            await asyncio.sleep(0.005)
        running.engine.held = False
        await asyncio.gather(*quiet)
        answer = await loud
    assert order == ["quiet"] * 3 + ["loud"]
    assert running.engine.most_running <= admission.window
    frames = [e[6:] for e in answer.text.split("\n\n") if e.startswith("data: {")] if stream else [answer.text]
    events = [json.loads(e) for e in frames]
    texts = dict.fromkeys(range(200), "")
    for choice in (c for e in events for c in e["choices"]):
        texts[choice["index"]] += choice["text"]
    assert texts == {i: "".join(chr(token_at(list(b"abc"), i, k, 5)) for k in range(8)) for i in range(200)}
    assert (admission.running, admission.places, admission.tokens, admission.waiting) == (0, 0, 0, 0)


@pytest.mark.parametrize("seconds", [0.2, 2.0])
@pytest.mark.parametrize("before", [0, 20])
def test_the_time_a_queue_needs_is_told_about_right(before, seconds):
    """A burst of 200 on a server that runs 8 at once; `before`: how many came one by one, an hour ago, ten times as fast."""
    clock = Clock()
    drain = Drain(8, clock)
    for _ in range(before):
        began = drain.start()
        clock.now += seconds / 10
        drain.end(began, 1)
        clock.now += 60
    clock.now += 3600
    left, end = 200, clock.now + 200 / 8 * seconds
    running: list[tuple[float, float]] = []
    told = []
    while left or running:
        while left and len(running) < 8:  # not in step with each other
            running.append((drain.start(), clock.now + seconds * random.Random(left).uniform(0.8, 1.2)))
            left -= 1
        first = min(running, key=lambda r: r[1])
        running.remove(first)
        clock.now = first[1]
        drain.end(first[0], 1)
        if left:
            told.append((drain.seconds(left), end - clock.now))
    assert all(said <= 1.6 * truly + 1 for said, truly in told)
    late = told[20:]  # what was measured an hour ago is forgotten by then
    assert all(said >= 0.5 * truly - 1 for said, truly in late)


def test_a_server_that_knows_nothing_yet_says_more_the_longer_nobody_is_served():
    clock = Clock()
    drain = Drain(2, clock)
    assert drain.seconds(5) == 0
    drain.start()
    drain.start()
    clock.now = 4.0
    assert drain.seconds(5) == 10
