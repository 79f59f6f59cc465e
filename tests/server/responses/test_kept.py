"""Responses that are kept: fetched, listed, run in the background, cancelled, and forgotten in time."""

from __future__ import annotations

import asyncio
import time
import tracemalloc
from typing import Any

import openai
import pytest
from fake_engine import FakeEngine
from scripted import CALLS, Scripted
from test_responses import TOOLS, ask, frames, put_together

from thalweg.server.responses.store import SEGMENT, EventLog, ResponseStore, StoredResponse


def settled(client: Any, id: str) -> Any:
    deadline = time.monotonic() + 60
    while (r := client.responses.retrieve(id)).status in ("queued", "in_progress"):
        assert time.monotonic() < deadline, "it did not end"
        time.sleep(0.01)
    return r


@pytest.mark.slow
def test_fetched_and_forgotten(start):
    running = start(Scripted(CALLS, "<think>x</think>b"))
    client = running.client()
    r = ask(running, tools=TOOLS)
    assert client.responses.retrieve(r.id) == r
    unkept = ask(running, store=False)
    assert unkept.store is False
    for gone in (unkept.id, "resp_none"):
        with pytest.raises(openai.NotFoundError):
            client.responses.retrieve(gone)
    client.responses.delete(r.id)
    for call in (
        client.responses.retrieve,
        client.responses.delete,
        client.responses.cancel,
        client.responses.input_items.list,
    ):
        with pytest.raises(openai.NotFoundError):
            call(r.id)
    with pytest.raises(openai.NotFoundError, match="previous_response_id"):
        ask(running, previous_response_id=r.id)


def test_streamed_responses_are_kept_as_they_were_streamed(start):
    running = start(Scripted(CALLS))
    body = {"model": "fake", "input": "weather?", "stream": True, "tools": TOOLS}
    final = frames(running.post("/v1/responses", body).text)[-1]["response"]
    assert running.get(f"/v1/responses/{final['id']}").json() == final
    assert "background" in running.get(f"/v1/responses/{final['id']}?stream=true").json()["error"]["message"]


def test_a_chain_survives_the_deletion_of_its_beginning(start):
    running = start(FakeEngine())
    first = ask(running, input="one", max_output_tokens=2)
    second = ask(running, input="two", previous_response_id=first.id, max_output_tokens=2)
    running.client().responses.delete(first.id)
    ask(running, input="three", previous_response_id=second.id, max_output_tokens=2)
    said = [f"<user>one<assistant>{first.output_text}", f"<user>two<assistant>{second.output_text}", "<user>three"]
    prompt = running.engine.prompts[-1]["prompt"].replace("\n", "")
    assert prompt == "".join(said) + "<assistant>"


def test_input_items(start):
    running = start(FakeEngine())
    items: list[Any] = [{"role": "user", "content": str(i)} for i in range(3)]
    r = ask(running, input=items, max_output_tokens=2)
    listing = running.client().responses.input_items
    texts = [i.content[0].text for i in listing.list(r.id)]
    assert texts == ["2", "1", "0"]
    page = listing.list(r.id, order="asc", limit=2)
    assert ([i.content[0].text for i in page.data], page.has_more) == (["0", "1"], True)
    assert [i.content[0].text for i in listing.list(r.id, order="asc", limit=1)] == ["0", "1", "2"], "the client's own pages"
    for wrong in ({"limit": 0}, {"order": "up"}, {"after": "msg_x"}):
        with pytest.raises(openai.BadRequestError):
            listing.list(r.id, **wrong)


def test_keys_do_not_see_each_others_responses(start):
    running = start(FakeEngine(), api_key=["a", "b"])
    a, b = running.client("a"), running.client("b")
    r = a.responses.create(model="fake", input="secret", max_output_tokens=2)
    assert a.responses.retrieve(r.id).id == r.id
    for call in (b.responses.retrieve, b.responses.delete, b.responses.cancel):
        with pytest.raises(openai.NotFoundError):
            call(r.id)
    with pytest.raises(openai.NotFoundError):
        b.responses.create(model="fake", input="x", previous_response_id=r.id)


def test_in_the_background(start):
    running = start(Scripted(CALLS))
    client = running.client()
    r = client.responses.create(model="fake", input="weather?", tools=TOOLS, background=True)
    assert (r.status, r.background, r.output) == ("queued", True, [])
    done = settled(client, r.id)
    assert done.status == "completed"
    assert done.output_text == "One moment."
    events = frames(running.get(f"/v1/responses/{r.id}?stream=true").text)
    assert [e["type"] for e in events[:3]] == ["response.created", "response.queued", "response.in_progress"]
    assert [e["sequence_number"] for e in events] == list(range(len(events)))
    assert put_together(events) == [i.model_dump(exclude_unset=True) for i in done.output]
    rest = list(client.responses.retrieve(r.id, stream=True, starting_after=4))
    assert [e.sequence_number for e in rest] == list(range(5, len(events)))
    assert running.get(f"/v1/responses/{r.id}?stream=true&starting_after=x").status_code == 400
    nothing = running.get(f"/v1/responses/{r.id}?stream=true&starting_after={events[-1]['sequence_number']}")
    assert (nothing.status_code, nothing.text) == (200, "")
    assert running.app.serving.admission.places == 0


def test_a_stream_that_was_left_goes_on_in_the_background(start):
    running = start(FakeEngine(delay=0.005))
    client = running.client()
    with client.responses.create(model="fake", input="hi", background=True, stream=True, max_output_tokens=40) as stream:
        seen = [next(stream) for _ in range(6)]
    rest = list(client.responses.retrieve(seen[0].response.id, stream=True, starting_after=seen[-1].sequence_number))
    assert [e.sequence_number for e in (*seen, *rest)] == list(range(6 + len(rest)))
    assert rest[-1].response.usage.output_tokens == 40
    text = "".join(e.delta for e in (*seen, *rest) if e.type == "response.output_text.delta")
    assert text == rest[-1].response.output_text


def test_cancelled_in_the_background(start):
    running = start(FakeEngine(delay=0.2))
    client = running.client()
    r = client.responses.create(model="fake", input="hi", background=True)
    assert client.responses.cancel(r.id).status == "cancelled"
    assert client.responses.cancel(r.id).status == "cancelled"
    assert client.responses.retrieve(r.id).status == "cancelled"
    deleted = client.responses.create(model="fake", input="hi", background=True)
    client.responses.delete(deleted.id)
    deadline = time.monotonic() + 60
    while running.engine.running:
        assert time.monotonic() < deadline, "it still runs"
        time.sleep(0.01)
    finished = ask(running, max_output_tokens=1)
    with pytest.raises(openai.BadRequestError, match="background"):
        client.responses.cancel(finished.id)
    failed = settled(client, client.responses.create(model="fake", input="!fail", background=True).id)
    assert (failed.status, failed.error.code) == ("failed", "server_error")
    with pytest.raises(openai.BadRequestError, match="failed"):
        client.responses.cancel(failed.id)


def test_a_server_that_keeps_nothing(start):
    running = start(FakeEngine(), responses_store_bytes=0)
    r = ask(running, max_output_tokens=1)
    assert r.store is False
    with pytest.raises(openai.NotFoundError, match="--responses-store-bytes"):
        ask(running, previous_response_id=r.id)
    with pytest.raises(openai.BadRequestError, match="--responses-store-bytes"):
        ask(running, background=True)


def turn(i: int, size: int = 1000, parent: StoredResponse | None = None) -> StoredResponse:
    return StoredResponse(f"resp_{i}", b"[" + b" " * size + b"]", b'{"output": []}', parent)


def test_memory_stays_flat():
    store = ResponseStore(100_000)
    parent = None
    for i in range(5000):
        parent = turn(i, parent=parent if i % 50 else None)
        store.put("a" if i // 50 % 3 else "b", parent)
        assert store.bytes <= 100_000
    held = turn(9999)
    store.put("a", held)
    store.delete("a", held.id)
    store.put("a", turn(10_000, parent=held))
    alive = store._counted
    assert held in alive, "pushed out, and counted again with what follows it"
    assert sum(t.bytes for t in alive) == sum(alive.values()) == store.bytes == sum(store._of.values())
    assert 0 < len(alive) < 100
    for owner in list(store._kept):
        for id in list(store._kept[owner]):
            store.delete(owner, id)
    assert (store.bytes, len(store._counted), store._kept, store._of) == (0, 0, {}, {})


def test_who_keeps_most_loses_first_and_what_was_used_stays():
    store = ResponseStore(10 * 2000)
    store.put("small", turn(1000))
    for i in range(50):
        store.put("big", turn(i))
        assert i == 0 or store.get("big", "resp_0") is not None, "it is used all the time"
    assert store.get("small", "resp_1000") is not None
    assert store.get("big", "resp_1") is None


def test_one_that_is_too_large_pushes_out_only_itself():
    store = ResponseStore(10_000)
    store.put("b", turn(1))
    store.put("a", turn(2, size=50_000))
    assert store.get("a", "resp_2") is None
    assert store.get("b", "resp_1") is not None


def test_a_log_is_read_from_anywhere_while_it_grows():
    async def main() -> None:
        log, frames = EventLog(), [b"frame %d" % i for i in range(3 * SEGMENT + 7)]

        async def read(at: int) -> list[bytes]:
            return [f async for f in log.read(at)]

        readers = [asyncio.create_task(read(at)) for at in (0, 5, SEGMENT, 2 * SEGMENT + 1, len(frames), 10**6)]
        for i, frame in enumerate(frames):
            log.add(frame)
            if i % 100 == 0:
                await asyncio.sleep(0)
        log.end()
        for at, reader in zip((0, 5, SEGMENT, 2 * SEGMENT + 1, len(frames), 10**6), readers, strict=True):
            assert await reader == frames[at:]
        assert await read(3) == frames[3:]
        assert log.bytes < sum(map(len, frames)), "packed"

    asyncio.run(main())


def test_the_bound_is_what_memory_shows():
    """Thousands of responses, six to a conversation: bytes of Python, as they are counted."""
    store, before = ResponseStore(1 << 18), None
    tracemalloc.start()
    try:
        for i in range(1000):
            turn = StoredResponse(f"resp_{i:032x}", b"i" * 100 + b"%d" % i, b"o" * 400 + b"%d" % i, before if i % 6 else None)
            store.put("owner", turn)
            before = turn
        held = tracemalloc.get_traced_memory()[0]
    finally:
        tracemalloc.stop()
    assert 0.9 * store.limit < store.bytes <= store.limit
    assert held < 1.25 * store.limit
