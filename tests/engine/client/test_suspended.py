"""A request that is taken off the engine and put back, at any moment and again and again: the same text, told once."""

from __future__ import annotations

import asyncio
import os
import random
import signal

import pytest

from thalweg import AsyncLLM, EngineArgs, SamplingParams
from thalweg.engine.client.seats import Holder
from thalweg.params import RequestOutputKind, StructuredOutputsParams

pytestmark = pytest.mark.slow  # they start an engine
ARGS = EngineArgs(device="null", max_num_seqs=4, additional_config={"base": 0.0005})
TOKENS = 300
SEEN = 20
"""Times each request is suspended."""


@pytest.fixture(scope="module")
def loop():
    with asyncio.Runner() as runner:
        yield runner


@pytest.fixture(scope="module")
def engine(loop):
    made = loop.run(AsyncLLM.start(ARGS))
    yield made

    async def end() -> None:
        await made.shutdown()

    loop.run(end())


@pytest.fixture(scope="module")
def nano(loop):
    """A model whose logits depend on its tokens."""
    args = EngineArgs(model="thalweg-nano", device="cpu", max_num_seqs=4, max_model_len=512, standby_engine=False)
    made = loop.run(AsyncLLM.start(args))
    yield made

    async def end() -> None:
        await made.shutdown()

    loop.run(end())


class Restless:
    """A seat that is taken and given at random moments."""

    def __init__(self, seed: int) -> None:
        self.rng, self.taken, self.stalls = random.Random(seed), 0, 0
        self.held, self.wanted = True, True

    def attach(self, holder: Holder) -> None:
        self.holder = holder
        self.task = asyncio.create_task(self._run())

    def leave(self) -> None:
        self.held = self.wanted = False
        self.stalls += 1

    async def stalled_again(self) -> None:
        before = self.stalls
        while self.stalls == before:
            await asyncio.sleep(0.005)

    def ask(self) -> None:
        self.wanted = True

    async def _run(self) -> None:
        while self.taken < SEEN:
            await asyncio.sleep(self.rng.uniform(0, 0.02))
            if self.held and self.holder.suspend():
                self.held, self.taken = False, self.taken + 1
            await asyncio.sleep(self.rng.choice([0, 0.001, 0.01]))
            self._give()
        while True:  # what stalls goes on when it is read
            await asyncio.sleep(0.005)
            self._give()

    def _give(self) -> None:
        if not self.held and self.wanted:
            self.held = True
            self.holder.resume()


async def told(engine, name, seat=None, stalls=0, kind=RequestOutputKind.DELTA, **fields):
    """(text, ids, logprobs) of each choice, scores of the prompt, and how each choice ended. stalls: times that the reader
    waits for its request to stop."""
    params = SamplingParams(seed=3, output_kind=kind, **{"max_tokens": TOKENS, "ignore_eos": True} | fields)
    parts, ends, scores = {}, {}, None
    async for out in engine.generate([5, 6, 7, 8], params, name, seat=seat):
        scores = scores or out.prompt_logprobs
        for c in out.outputs:
            text, ids, logprobs = parts.setdefault(c.index, ("", [], []))
            parts[c.index] = (text + c.text, ids + list(c.token_ids), logprobs + list(c.logprobs or ()))
            ends[c.index] = (c.finish_reason, c.stop_reason)
        if seat is not None and seat.stalls < stalls and not out.finished:
            await asyncio.wait_for(seat.stalled_again(), 60)
    if seat is not None:
        seat.task.cancel()
    return parts, scores, ends


@pytest.mark.parametrize(
    "fields",
    [
        {},
        {"n": 3, "temperature": 1.0},
        {"logprobs": 2},
        {"prompt_logprobs": 2},
        {"kind": RequestOutputKind.FINAL_ONLY, "n": 2},
        {"stop": ["never there"], "min_tokens": 5},
    ],
    ids=str,
)
def test_whoever_is_suspended_again_and_again_gets_the_same(loop, engine, fields):
    async def both():
        seat = Restless(7)
        plain = await told(engine, "plain", **fields)
        moved = await told(engine, "moved", seat, **fields)
        return plain, moved, seat

    plain, moved, seat = loop.run(both())
    assert moved == plain
    assert seat.taken > 1
    assert all(len(ids) == TOKENS for _, ids, _ in moved[0].values())


def test_a_slow_reader_whose_seat_is_given_to_others_gets_the_same(loop, engine):
    async def both():
        seat = Restless(5)
        plain = await told(engine, "plain", logprobs=3)
        moved = await told(engine, "moved", seat, 2, logprobs=3)
        return plain, moved, seat

    plain, moved, seat = loop.run(both())
    assert moved == plain
    assert seat.stalls >= 2


def test_an_engine_that_dies_meanwhile_changes_nothing(loop, engine):
    restarts = engine.restarts

    async def both():
        seats = [Restless(i) for i in range(3)]
        plain = await told(engine, "plain")
        moved = [asyncio.create_task(told(engine, f"moved{i}", seat)) for i, seat in enumerate(seats)]
        await asyncio.sleep(0.05)
        os.kill(engine.engine_pid, signal.SIGKILL)
        done = plain, await asyncio.gather(*moved)
        async with asyncio.timeout(60):
            while engine.restarts == restarts:  # the requests may have ended before it was noticed
                await asyncio.sleep(0.01)
        return done

    plain, moved = loop.run(both())
    assert moved == [plain] * 3
    assert engine.restarts == restarts + 1


def test_a_suspended_request_can_be_ended_and_leaves_nothing(loop, engine):
    async def run():
        seat = Restless(0)
        seat.attach = lambda holder: setattr(seat, "holder", holder)
        params = SamplingParams(max_tokens=TOKENS, ignore_eos=True, output_kind=RequestOutputKind.DELTA)
        stream = engine.generate([5, 6, 7], params, "ended", seat=seat)
        await anext(stream)
        assert seat.holder.scheduled_ts is not None
        assert seat.holder.first_token >= seat.holder.scheduled_ts
        assert seat.holder.suspend()
        assert (seat.holder.scheduled_ts, seat.holder.first_token) == (None, None)
        await engine.abort("ended")
        rest = [out async for out in stream]
        assert rest[-1].outputs[0].finish_reason == "abort"
        other = engine.generate([5, 6, 7], params, "left", seat=seat)
        await anext(other)
        seat.holder.suspend()
        await other.aclose()
        await told(engine, "next")
        async with asyncio.timeout(60):
            while (now := engine.stats()).running or now.waiting or engine._client.outputs.open_handles():
                await asyncio.sleep(0.01)
        return engine.stats(), engine._client.outputs.open_requests, engine._client.outputs.open_handles()

    stats, requests, handles = loop.run(run())
    assert (stats.running, stats.waiting, requests, handles) == (0, 0, 0, [])


SCHEMA = {"type": "object", "properties": {"city": {"type": "string"}, "days": {"type": "array", "items": {"type": "integer"}}}}


@pytest.mark.parametrize(
    "fields",
    [
        {"structured_outputs": StructuredOutputsParams(json=SCHEMA), "ignore_eos": False},
        {"structured_outputs": StructuredOutputsParams(regex="[a-f ]{150,200}"), "ignore_eos": False},
        {"repetition_penalty": 1.3, "presence_penalty": 0.5, "frequency_penalty": 0.2, "min_p": 0.01},
        {"logit_bias": {5: 3.0}, "bad_words": ["the", "a"], "logprobs": 2},
    ],
    ids=["json", "regex", "penalties", "bias"],
)
def test_what_a_request_remembers_of_its_tokens_survives(loop, nano, fields):
    """Grammars and penalties go on where they were."""

    async def both():
        seat = Restless(3)
        given = {"temperature": 1.0, "max_tokens": 200, **fields}
        return await told(nano, "plain", **given), await told(nano, "moved", seat, **given), seat.taken

    plain, moved, taken = loop.run(both())
    assert moved == plain
    assert taken > 1
