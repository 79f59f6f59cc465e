"""Files and batches through the official client: sent, run, read, cancelled, bounded, and each key's own."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import time
from pathlib import Path
from typing import Any

import openai
import pytest
from fake_engine import FakeEngine
from openai.types import Batch, FileObject
from test_serve_process import Process

from thalweg.server.batches import batch as batches_module
from thalweg.server.errors import ApiError
from thalweg.server.http.multipart import boundary_of, parts_of

CHAT = "/v1/chat/completions"
PART = b'--b\r\nContent-Disposition: form-data; name="a"\r\n\r\nx\r\n'


def lines(n: int, url: str = CHAT, **fields: Any) -> bytes:
    body = {"model": "fake", "messages": [{"role": "user", "content": "hi"}], "max_tokens": 4, **fields}
    asked = [{"custom_id": f"c{i}", "method": "POST", "url": url, "body": {**body, "seed": i}} for i in range(n)]
    return b"".join(json.dumps(a).encode() + b"\n" for a in asked)


def send(client: Any, data: bytes) -> FileObject:
    return client.files.create(file=("in.jsonl", data), purpose="batch")


def run(client: Any, data: bytes, endpoint: Any = CHAT, **fields: Any) -> Batch:
    made = client.batches.create(
        input_file_id=send(client, data).id, endpoint=endpoint, completion_window="24h", **fields
    )  # fmt: skip
    assert made.status == "validating"
    return ended(client, made.id)


def ended(client: Any, id: str, seconds: float = 60) -> Batch:
    deadline = time.monotonic() + seconds
    while (b := client.batches.retrieve(id)).status not in ("completed", "failed", "expired", "cancelled"):
        assert time.monotonic() < deadline, b
        time.sleep(0.01)
    return b


def read(client: Any, id: str | None) -> list[dict[str, Any]]:
    return [json.loads(line) for line in client.files.content(id).text.splitlines()]


@pytest.mark.slow
def test_files(start, tmp_path):
    for more in ({}, {"files_directory": str(tmp_path)}):
        client = start(FakeEngine(), **more).client()
        data = b'{"a": 1}\r\n--boundary\r\n\x00\xff\n'
        file = client.files.create(file=('na"me\u00e9.jsonl', data), purpose="batch")
        FileObject.model_validate(file.model_dump())
        assert (file.bytes, file.purpose, file.status) == (len(data), "batch", "processed")
        assert client.files.content(file.id).content == data
        assert client.files.retrieve(file.id) == file
        other = send(client, b"x")
        assert [f.id for f in client.files.list(order="asc", limit=1)] == [file.id, other.id], "the client's own pages"
        assert client.files.delete(file.id).deleted
        for call in (client.files.retrieve, client.files.content, client.files.delete):
            with pytest.raises(openai.NotFoundError):
                call(file.id)
    assert len(list(tmp_path.glob("*/file-*"))) == 1


@pytest.mark.slow
def test_a_batch_answers_every_line_as_the_route_does(start):
    running = start(FakeEngine())
    client = running.client()
    data = lines(30) + json.dumps({"custom_id": "bad", "url": CHAT, "body": {"messages": []}}).encode()
    b = run(client, data, metadata={"a": "b"})
    Batch.model_validate(b.model_dump())
    assert (b.status, b.metadata, b.errors) == ("completed", {"a": "b"}, None)
    assert b.request_counts.model_dump() == {"total": 31, "completed": 30, "failed": 1}
    answers = {a["custom_id"]: a for a in read(client, b.output_file_id)}
    assert answers.keys() == {f"c{i}" for i in range(30)}
    alone = running.post(CHAT, json.loads(lines(8).splitlines()[7])["body"]).json()
    assert answers["c7"]["response"]["body"]["choices"] == alone["choices"]
    assert (answers["c7"]["response"]["status_code"], answers["c7"]["error"]) == (200, None)
    (bad,) = read(client, b.error_file_id)
    assert (bad["custom_id"], bad["response"]["status_code"]) == ("bad", 400)
    assert bad["response"]["body"]["error"]["param"] == "messages"
    assert running.engine.most_running <= 4, "half of the engine's sequences stay others'"
    assert [x.id for x in client.batches.list()] == [b.id]
    assert running.app.serving.admission.places == 0


def test_other_routes(start):
    client = start(FakeEngine()).client()
    b = run(client, lines(2, "/v1/completions", prompt="a"), "/v1/completions")
    assert [a["response"]["body"]["object"] for a in read(client, b.output_file_id)] == ["text_completion"] * 2
    b = run(client, lines(2, "/v1/responses", input="a"), "/v1/responses")
    assert [a["response"]["body"]["object"] for a in read(client, b.output_file_id)] == ["response"] * 2


def test_files_with_wrong_lines_fail_before_anything_runs(start):
    running = start(FakeEngine())
    client = running.client()
    data = lines(2) + b"{nothing\n" + lines(1) + lines(1, "/v1/completions") + b"\n"
    b = run(client, data)
    assert (b.status, running.engine.prompts) == ("failed", [])
    assert [(e.line, e.param) for e in b.errors.data] == [(3, None), (4, "custom_id"), (5, "url")]
    assert run(client, b"\n").errors.data[0].code == "empty_file"


def test_cancelled(start):
    running = start(FakeEngine(delay=0.01))
    client = running.client()
    made = client.batches.create(
        input_file_id=send(client, lines(200)).id, endpoint=CHAT, completion_window="24h"
    )  # fmt: skip
    deadline = time.monotonic() + 60
    while not client.batches.retrieve(made.id).request_counts.completed:
        assert time.monotonic() < deadline
        time.sleep(0.01)
    b = client.batches.cancel(made.id)
    assert b.status == "cancelled"
    assert 0 < b.request_counts.completed < 200
    assert len(read(client, b.output_file_id)) == b.request_counts.completed
    assert client.batches.cancel(made.id).status == "cancelled"
    finished = run(client, lines(1))
    with pytest.raises(openai.BadRequestError, match="ended"):
        client.batches.cancel(finished.id)


def test_late_lines_expire(start, monkeypatch):
    monkeypatch.setattr(batches_module, "WINDOW", -1)
    client = start(FakeEngine()).client()
    b = run(client, lines(3))
    assert (b.status, b.request_counts.failed) == ("expired", 3)
    assert {e["error"]["code"] for e in read(client, b.error_file_id)} == {"batch_expired"}


def test_room_is_each_keys_own(start):
    running = start(FakeEngine(), api_key=["a", "b"], files_store_bytes=10_000)
    a, b = running.client("a"), running.client("b")
    file = send(a, b"x" * 8000)
    with pytest.raises(openai.APIStatusError, match="--files-store-bytes"):
        send(a, b"x" * 8000)
    send(b, b"x" * 8000)
    for call in (b.files.retrieve, b.files.content, b.files.delete):
        with pytest.raises(openai.NotFoundError):
            call(file.id)
    a.files.delete(file.id)
    small = run(a, lines(20))
    assert (small.status, small.errors.data[0].param) == ("failed", "file"), "answers need room too"
    for call in (b.batches.retrieve, b.batches.cancel):
        with pytest.raises(openai.NotFoundError):
            call(small.id)
    with pytest.raises(openai.NotFoundError):
        b.batches.create(input_file_id=small.input_file_id, endpoint=CHAT, completion_window="24h")
    assert not b.batches.list().data
    with pytest.raises(openai.APIStatusError):
        send(a, b"x" * 200_000)


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"endpoint": "/metrics"}, "endpoint"),
        ({"completion_window": "1h"}, "completion_window"),
        ({"input_file_id": "file-x"}, "input_file_id"),
    ],
)
def test_refusals(server, fields, param):
    body = {"input_file_id": "file-x", "endpoint": CHAT, "completion_window": "24h", **fields}
    r = server.post("/v1/batches", body)
    assert r.status_code in (400, 404)
    assert r.json()["error"]["param"] == param


def test_no_files_at_all(start):
    with pytest.raises(openai.NotFoundError, match="--files-store-bytes"):
        send(start(FakeEngine(), files_store_bytes=0).client(), b"x")


def test_uploads_refused(server):
    for files, data, status in (
        ({"file": ("f", b"x")}, {}, 400),
        ({"file": ("f", b"x")}, {"purpose": "vision"}, 400),
        ({"other": ("f", b"x")}, {"purpose": "batch"}, 400),
    ):
        assert server.http.post("/v1/files", files=files, data=data).status_code == status
    assert server.post("/v1/files", {"purpose": "batch"}).status_code == 415


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"--b",
        b"--b--",
        b"--b\r\n\r\nx",
        b"--b\r\n\r\nx\r\n--b--",
        b"--b\r\nContent-Disposition: x\r\n\r\nx\r\n--b--",
        PART * 40 + b"--b--",
    ],
)
def test_broken_bodies(body):
    if body == b"--b--":
        assert parts_of(body, b"b") == {}
    else:
        with pytest.raises(ApiError):
            parts_of(body, b"b") or pytest.fail("it was read")


def test_boundaries():
    assert boundary_of('multipart/form-data; charset=x; boundary="a b"') == b"a b"
    with pytest.raises(ApiError):
        boundary_of("application/json")


@pytest.mark.slow
def test_a_batch_outlives_the_engine():
    process = Process("--port", "0", "--threads", "1", "--max-num-seqs", "8")
    try:
        client = openai.OpenAI(base_url=process.url() + "/v1", api_key="none", max_retries=0, timeout=60)
        data = lines(30, model="thalweg-nano", max_tokens=24, ignore_eos=True)
        file = send(client, data)
        made = client.batches.create(input_file_id=file.id, endpoint=CHAT, completion_window="24h")
        deadline = time.monotonic() + 60
        while not client.batches.retrieve(made.id).request_counts.completed:
            assert time.monotonic() < deadline
            time.sleep(0.05)
        said = subprocess.run(["pgrep", "-P", str(process.process.pid)], capture_output=True, text=True).stdout
        engines = [int(c) for c in said.split() if "thalweg.engine.main" in Path(f"/proc/{c}/cmdline").read_text()]
        for child in engines:
            os.kill(child, signal.SIGKILL)
        assert engines
        assert client.batches.retrieve(made.id).status == "in_progress"
        b = ended(client, made.id, 60)
        assert b.request_counts.model_dump() == {"total": 30, "completed": 30, "failed": 0}
        answers = {a["custom_id"]: a["response"]["body"] for a in read(client, b.output_file_id)}
        assert {a["usage"]["completion_tokens"] for a in answers.values()} == {24}
    finally:
        process.process.kill()
