"""Files and batches of one client among others': turns, one copy, and no work before its turn."""

from __future__ import annotations

import asyncio
import json
import random
import resource
import socket
import threading
import time
from typing import Any

import openai
import pytest
from fake_engine import FakeEngine
from test_batches import CHAT, ended, lines, read, run, send

from thalweg.server.app import make_app
from thalweg.server.batches import batch as batch_module
from thalweg.server.batches.batch import Batch
from thalweg.server.batches.check import MOST_LINES
from thalweg.server.batches.reading import WINDOW, Cursor, LineSpan
from thalweg.server.batches.registry import kept_by
from thalweg.server.batches.store import PER_FILE, PIECE, FileStore
from thalweg.server.errors import ApiError
from thalweg.server.http.multipart import MOST_FIELD, file_of
from thalweg.server.settings import ServerSettings


def start_batch(client: Any, file: str, endpoint: Any = CHAT) -> str:
    return str(client.batches.create(input_file_id=file, endpoint=endpoint, completion_window="24h").id)


def wait_until_answered(client: Any, id: str, some: int = 1) -> None:
    deadline = time.monotonic() + 60
    while client.batches.retrieve(id).request_counts.completed < some:
        assert time.monotonic() < deadline
        time.sleep(0.01)


# ------------------------------------------------------------------ lines by position


@pytest.mark.parametrize("seed", range(20))
@pytest.mark.sampled(5)
def test_a_cursor_finds_the_lines_that_splitting_finds(seed):
    rng = random.Random(seed)
    parts = [b"\n", b" \r\n", b"{}", b"a b\n", b"\t\n", b"x" * rng.randrange(1, 3 * WINDOW), b"\n" * rng.randrange(2 * WINDOW)]
    data = b"".join(rng.choices(parts, k=60))
    cursor, found = Cursor(lambda a, b: data[a:b], len(data)), list[LineSpan]()
    while not cursor.is_done:
        found += cursor.look()
    expected = [(i, line.strip()) for i, line in enumerate(data.split(b"\n"), 1) if line.strip()]
    assert [(s.number, data[s.start : s.end].strip()) for s in found] == expected


def test_a_look_reads_one_window():
    """However blank the file or long its lines: no route waits for more."""
    for data in (b"\n" * 10**6, b"x" * 10**6, b"{}\n" * 10**5):
        asked = list[int]()

        def piece(a: int, b: int, data: bytes = data, asked: list[int] = asked) -> bytes:
            asked.append(b - a)
            return data[a:b]

        cursor = Cursor(piece, len(data))
        while not cursor.is_done:
            before = len(asked)
            cursor.look()
            assert len(asked) == before + 1
        assert sum(asked) == len(data)
        assert max(asked) <= WINDOW


def test_a_file_of_line_ends_fails_with_words(start):
    b = run(start().client(), b"\n \r\n" * 10_000)
    assert (b.status, b.request_counts.total, [e.code for e in b.errors.data]) == ("failed", 0, ["empty_file"])


def test_lines_may_end_as_on_windows_and_the_last_may_have_no_end(start):
    data = lines(3).replace(b"\n", b"\r\n").removesuffix(b"\r\n")
    b = run(start().client(), data)
    assert (b.status, b.request_counts.completed) == ("completed", 3)


def test_too_many_lines_are_not_read_to_their_end(start, monkeypatch):
    monkeypatch.setattr("thalweg.server.batches.check.MOST_LINES", 10)
    running = start()
    seen = count_reads(running, monkeypatch)
    b = run(running.client(), lines(500))
    assert (b.status, b.errors.data[0].code) == ("failed", "too_many_lines")
    assert len(seen) == 10
    assert MOST_LINES == 50_000


def count_reads(running: Any, monkeypatch: Any) -> list[bytes]:
    """Lines that are read from now on."""
    seen, own = list[bytes](), running.app.serving.lines.read
    monkeypatch.setattr(running.app.serving.lines, "read", lambda raw: seen.append(raw) or own(raw))
    return seen


def test_one_check_of_a_file_serves_all_its_batches(start, monkeypatch):
    running = start()
    client, seen = running.client(), count_reads(running, monkeypatch)
    file = send(client, lines(50) + lines(1, "/v1/completions"))
    for _ in range(2):
        for id in [start_batch(client, file.id) for _ in range(5)]:
            b = ended(client, id)
            assert (b.status, b.request_counts.total) == ("failed", 51)
            assert [(e.line, e.param) for e in b.errors.data] == [(51, "url")]
    assert len(seen) == 51
    assert ended(client, start_batch(client, file.id, "/v1/completions")).errors.data[0].line == 1


def test_a_line_that_no_route_would_take_fails_before_anything_runs(start):
    running = start(max_body=10_000)
    client = running.client()
    b = run(client, lines(1) + b'{"custom_id": "x",' + b" " * 20_000 + lines(1)[1:])
    assert (b.status, running.engine.prompts) == ("failed", [])
    assert (b.errors.data[0].line, b.errors.data[0].message.count("--max-body")) == (2, 1)


# ------------------------------------------------------------------ turns


def pad(data: bytes, size: int) -> bytes:
    """The same requests in lines that are so much longer."""
    return data.replace(b'{"custom_id":', b'{"custom_id":' + b" " * size)


def test_keys_take_turns(start):
    running = start(FakeEngine(delay=0.1), api_key=["hog", "guest"])
    hog, guest = running.client("hog"), running.client("guest")
    file = send(hog, lines(100))
    hogs = [start_batch(hog, file.id) for _ in range(4)]
    wait_until_answered(hog, hogs[0])
    done = sum(hog.batches.retrieve(id).request_counts.completed for id in hogs)
    assert run(guest, lines(1)).status == "completed"
    meanwhile = sum(hog.batches.retrieve(id).request_counts.completed for id in hogs) - done
    assert meanwhile < 100, "its one line waited for a turn, not for 400 lines"
    for id in hogs:
        hog.batches.cancel(id)


@pytest.mark.parametrize("padding", [0, 140_000])
def test_a_key_that_has_no_line_under_way_waits_for_none(start, monkeypatch, padding):
    """Lines that take long hold every place of theirs, not others'. Nor the memory for long lines."""
    monkeypatch.setattr(batch_module, "MOST_BYTES", 2 * padding)
    running = start(FakeEngine(delay=300), api_key=["hog", "guest"])
    hog, guest = running.client("hog"), running.client("guest")
    id = start_batch(hog, send(hog, pad(lines(50), padding)).id)
    deadline = time.monotonic() + 60
    while len(running.engine.running) < (1 if padding else 4):
        assert time.monotonic() < deadline
        time.sleep(0.01)
    running.engine.delay = 0.0  # of tokens that begin from now on
    assert run(guest, pad(lines(1), padding)).status == "completed"
    assert hog.batches.retrieve(id).request_counts.completed == 0
    hog.batches.cancel(id)


def test_batches_of_one_key_take_turns(start):
    client = start(FakeEngine(delay=0.1)).client()
    long = start_batch(client, send(client, lines(150)).id)
    wait_until_answered(client, long)
    assert run(client, lines(1)).status == "completed"
    assert client.batches.retrieve(long).request_counts.completed < 100
    client.batches.cancel(long)


def test_long_lines_are_in_memory_a_few_at_a_time(start, monkeypatch):
    monkeypatch.setattr(batch_module, "MOST_BYTES", 300_000)
    running = start(FakeEngine(delay=0.005))
    client = running.client()
    b = run(client, pad(lines(8), 140_000))
    assert (b.status, b.request_counts.completed) == ("completed", 8)
    assert running.engine.most_running <= 2
    running.engine.delay = 300
    id = start_batch(client, send(client, lines(8)).id)
    deadline = time.monotonic() + 60
    while len(running.engine.running) < 4:
        assert time.monotonic() < deadline, "short lines wait for the room of long ones"
        time.sleep(0.01)
    client.batches.cancel(id)


async def test_a_batch_that_is_cancelled_before_it_begins_has_ended():
    engine = FakeEngine()
    app = make_app(engine, ServerSettings())  # type: ignore[arg-type]
    kept = kept_by(app.serving)
    file = await kept.files.add("", "f", "batch", bytearray(lines(1)))
    made = Batch("", file, CHAT, None)
    kept.runner.start(made, "")
    assert made.task is not None
    made.task.cancel()
    await asyncio.wait({made.task})
    assert (made.status, file.users) == ("cancelled", 0)
    engine.chat.close()


async def test_a_cancelled_batch_counts_the_lines_of_its_files(tmp_path, monkeypatch):
    """A line that is on its way to the disk is either in the file and counted, or neither."""
    engine, may_write, write = FakeEngine(), threading.Event(), FileStore._write
    app = make_app(engine, ServerSettings(files_directory=str(tmp_path)))  # type: ignore[arg-type]
    kept = kept_by(app.serving)
    source = await kept.files.add("", "f", "batch", bytearray(lines(3)))
    made = Batch("", source, CHAT, None)
    begun = asyncio.Event()

    def write_later(self: FileStore, file: Any, data: bytes) -> None:
        if data:
            loop.call_soon_threadsafe(begun.set)
            may_write.wait(60)
        write(self, file, data)

    loop = asyncio.get_running_loop()
    monkeypatch.setattr(FileStore, "_write", write_later)
    kept.runner.start(made, "")
    await begun.wait()
    assert made.task is not None
    made.task.cancel()
    loop.call_soon(may_write.set)
    await asyncio.wait({made.task})
    await kept.files._on_disk(lambda: None)  # what was on its way is there
    output = made.files["output"]
    written = b"".join([p async for p in kept.files.pieces(output, output.size)])
    assert (made.status, made.completed, written.count(b"\n")) == ("cancelled", 1, 1)
    engine.chat.close()


# ------------------------------------------------------------------ files


def test_a_file_that_is_read_keeps_its_room_when_it_is_deleted(start, tmp_path):
    """Otherwise a key could have any number of them."""
    for more in ({}, {"files_directory": str(tmp_path)}):
        running = start(FakeEngine(delay=0.05), files_store_bytes=100_000, **more)
        client = running.client()
        data = lines(200)
        file = send(client, data)
        id = start_batch(client, file.id)
        wait_until_answered(client, id)
        client.files.delete(file.id)
        with pytest.raises(openai.NotFoundError):
            client.files.retrieve(file.id)
        with pytest.raises(openai.APIStatusError, match="no room"):
            send(client, b"x" * (100_000 - len(data)))
        wait_until_answered(client, id, client.batches.retrieve(id).request_counts.completed + 3)
        b = client.batches.cancel(id)
        assert all(a["response"]["status_code"] == 200 for a in read(client, b.output_file_id))
        client.files.delete(b.output_file_id)
        assert send(client, b"x" * 99_000).bytes == 99_000


@pytest.mark.parametrize("cancelled", [False, True])
async def test_a_file_grows_when_its_bytes_can_be_read(tmp_path, monkeypatch, cancelled):
    """A download says how many bytes come: those that are still on their way to the disk are not counted."""
    store, may_write, write = FileStore(10_000, str(tmp_path)), threading.Event(), FileStore._write
    file = await store.add("", "f", "batch_output", bytearray(b"one\n"))
    monkeypatch.setattr(FileStore, "_write", lambda *args: may_write.wait(60) and write(*args))
    appending = asyncio.create_task(store.append(file, b"two\n"))
    await asyncio.sleep(0)
    with pytest.raises(ApiError, match="no room"):
        store.check("", 10_000 - 512 - 7)
    assert (file.size, b"".join([p async for p in store.pieces(file, file.size)])) == (4, b"one\n")
    if cancelled:
        appending.cancel()
    may_write.set()
    await asyncio.wait({appending})
    await store.append(file, b"three\n")
    assert b"".join([p async for p in store.pieces(file, file.size)]) == b"one\ntwo\nthree\n"
    store.delete(file)
    store.check("", 10_000)


async def test_a_full_disk_costs_a_file_nothing(tmp_path):
    """Neither a torn line nor room: a batch that fails has the lines it counts, and its owner can go on."""
    store = FileStore(10_000, str(tmp_path))
    file = await store.add("", "f", "batch_output", bytearray(b"one\n"))
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (6, hard))
    try:
        with pytest.raises(ApiError, match=r"file: the server cannot write files: .*--files-directory") as failed:
            await store.append(file, b"two\n")
        with pytest.raises(ApiError, match="cannot write"):
            await store.add("", "g", "batch", bytearray(b"1234567"))
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert (failed.value.status, file.size) == (507, 4)
    store.check("", 10_000 - PER_FILE - 4)
    await store.append(file, b"three\n")
    assert b"".join([p async for p in store.pieces(file, file.size)]) == b"one\nthree\n"
    store.delete(file)
    store.check("", 10_000)


def test_no_room_is_said_before_the_body_comes(start):
    running = start(files_store_bytes=100_000)
    send(running.client(), b"x" * 90_000)
    head = b"POST /v1/files HTTP/1.1\r\nHost: localhost\r\nContent-Type: multipart/form-data; boundary=b\r\n"
    with socket.create_connection(running.sock.getsockname(), timeout=20) as s:
        s.sendall(head + b"Content-Length: 150000\r\n\r\n")
        assert s.recv(1000).startswith(b"HTTP/1.1 413 ")


@pytest.mark.parametrize("disk", [False, True])
def test_a_file_is_sent_a_piece_at_a_time(start, monkeypatch, tmp_path, disk):
    asked, own = list[int](), FileStore.piece
    monkeypatch.setattr(FileStore, "piece", lambda self, file, a, b: asked.append(b - a) or own(self, file, a, b))
    running = start(**({"files_directory": str(tmp_path)} if disk else {}))
    client = running.client()
    data = random.Random(1).randbytes(3 * PIECE + 7)
    file = send(client, data)
    r = running.get(f"/v1/files/{file.id}/content")
    assert (r.content, r.headers["content-length"]) == (data, str(len(data)))
    assert asked == [PIECE] * 3 + [7]
    head = running.http.head(f"/v1/files/{file.id}/content")
    assert (head.content, head.headers["content-length"]) == (b"", str(len(data)))
    deadline = time.monotonic() + 60
    while kept_by(running.app.serving).files.get("", file.id).users:
        assert time.monotonic() < deadline
        time.sleep(0.01)


def test_a_download_that_is_left_gives_its_file_back(start):
    running = start()
    client = running.client()
    file = send(client, b"x" * (8 << 20))
    kept = kept_by(running.app.serving).files.get("", file.id)
    with running.http.stream("GET", f"/v1/files/{file.id}/content") as r:
        pieces = r.iter_raw(1000)  # kept: an iterator that is dropped closes the connection
        next(pieces)
        assert kept.users == 1
    deadline = time.monotonic() + 60
    while kept.users:
        assert time.monotonic() < deadline
        time.sleep(0.01)


def test_what_a_batch_wrote_is_no_batch(start):
    client = start().client()
    b = run(client, lines(1))
    with pytest.raises(openai.BadRequestError, match="batch_output"):
        start_batch(client, b.output_file_id)


@pytest.mark.parametrize("content", [b"", b"\r\n--b", b"a\r\n--b-\r\n\r\n", b"\n" * (3 << 20), b"\r\n--" * 500_000])
def test_the_file_of_a_form_is_what_was_sent(content):
    part = b'--bo\r\nContent-Disposition: form-data; name="%s"%s\r\n\r\n%s\r\n'
    data = bytearray(
        b"preamble\r\n" + part % (b"purpose", b"", b"batch") + part % (b"file", b'; filename="n"', content) + b"--bo--\r\n"
    )
    assert file_of(data, b"bo", "file") == ("n", {"purpose": b"batch"})
    assert data == content


@pytest.mark.parametrize("name", [b"purpose", b"file"])
def test_fields_of_a_form_are_short_and_come_once(name):
    part = b'--bo\r\nContent-Disposition: form-data; name="%s"%s\r\n\r\n%s\r\n'
    file = b'; filename="n"' if name == b"file" else b""
    for body in (part % (name, b"", b"x" * (MOST_FIELD + 1)), (part % (name, file, b"x")) * 2):
        with pytest.raises(ApiError, match=name.decode()):
            file_of(bytearray(body + b"--bo--"), b"bo", "file")


def test_lists_say_only_what_they_show(start, monkeypatch):
    """A key may have thousands of small files."""
    running = start()
    client = running.client()
    for _ in range(20):
        send(client, b"x")
    said, own = list[str](), type(kept_by(running.app.serving).files.get("", client.files.list().data[0].id)).describe
    monkeypatch.setattr("thalweg.server.batches.store.File.describe", lambda self: said.append(self.id) or own(self))
    shown = running.get("/v1/files", params={"limit": 3}).json()
    assert [f["id"] for f in shown["data"]] == said
    assert (len(said), shown["has_more"]) == (3, True)
    assert json.loads(running.get("/v1/files", params={"limit": 3, "after": said[-1]}).text)["data"][0]["id"] not in said[:3]
