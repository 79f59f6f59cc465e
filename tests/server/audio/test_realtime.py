"""/v1/realtime: the events, real clients, and clients that mean harm."""

from __future__ import annotations

import base64
import json
import socket
import time
from contextlib import suppress
from typing import Any

import numpy as np
import openai
import pytest
from fake_recognizer import FakeRecognizer
from whisper_zoo import DE, EN, SECONDS, TRANSCRIBE

pytest.importorskip("websockets")
from websockets.exceptions import ConnectionClosed, InvalidStatus
from websockets.sync.client import connect

RATE = 16_000


def audio(seconds: float, loud: bool = True) -> str:
    samples = np.random.default_rng(1).normal(size=int(RATE * seconds)) * 3000 * loud
    return base64.b64encode(samples.astype("<i2").tobytes()).decode()


@pytest.fixture(scope="module")
def server():
    from conftest import Running  # that of tests/server

    from thalweg.server.settings import ServerSettings

    running = Running(FakeRecognizer(delay=0.001), ServerSettings())
    yield running
    running.stop()


class Talk:
    """A client of the events."""

    def __init__(self, running: Any, **more: Any) -> None:
        self.socket = connect(running.url.replace("http", "ws") + "/v1/realtime?model=fake", open_timeout=60, **more)
        self.first = self.read()

    def say(self, kind: str, **fields: Any) -> None:
        self.socket.send(json.dumps({"type": kind, **fields}))

    def read(self) -> dict[str, Any]:
        found: dict[str, Any] = json.loads(self.socket.recv(timeout=60))
        return found

    def until(self, kind: str) -> list[dict[str, Any]]:
        events = [self.read()]
        while events[-1]["type"] != kind:
            events.append(self.read())
        return events

    def end(self) -> int:
        """The code with which the server ends the connection. 0: none."""
        try:
            while True:
                self.read()
        except ConnectionClosed as e:
            return 0 if e.rcvd is None else int(e.rcvd.code)

    def __enter__(self) -> Talk:
        return self

    def __exit__(self, *_: object) -> None:
        self.socket.close()


def test_a_session(server):
    """Deltas before the last commit, one language for all windows, and a second transcript on the same connection."""
    server.engine.prompts.clear()
    with Talk(server) as talk:
        assert (talk.first["type"], talk.first["id"][:5]) == ("session.created", "sess-")
        talk.say("session.update", model="fake")
        talk.say("input_audio_buffer.append", audio=audio(0.8 * SECONDS))
        talk.say("input_audio_buffer.commit")
        talk.say("input_audio_buffer.append", audio=audio(0.8 * SECONDS))
        early = talk.until("transcription.delta")
        talk.say("input_audio_buffer.append", audio=audio(0.9 * SECONDS))
        talk.say("input_audio_buffer.commit", final=True)
        events = early + talk.until("transcription.done")
        deltas, done = [e["delta"] for e in events[:-1]], events[-1]
        assert "".join(deltas).rstrip() == done["text"] == "a bc a bc a bc"
        assert done["usage"]["completion_tokens"] > len(deltas)
        asked = [p["prompt_token_ids"] for p in server.engine.prompts]
        assert [ids[1:3] for ids in asked if len(ids) > 1] == [[EN, TRANSCRIBE]] * 3
        assert sum(len(ids) == 1 for ids in asked) == 1, "the language was detected again"
        talk.say("session.update", model="fake", language="de")
        talk.say("input_audio_buffer.append", audio=audio(0.2))
        talk.say("input_audio_buffer.commit", final=True)
        assert talk.until("transcription.done")[-1]["text"] == "a bc"
        assert server.engine.prompts[-1]["prompt_token_ids"][1] == DE


def test_the_official_client(server):
    client = openai.OpenAI(base_url=server.url + "/v1", api_key="none", max_retries=0)
    with client.realtime.connect(model="fake") as connection:
        assert connection.recv().type == "session.created"
        connection.send({"type": "session.update", "model": "fake"})  # type: ignore[typeddict-item, typeddict-unknown-key]
        connection.input_audio_buffer.append(audio=audio(0.3))
        connection.send({"type": "input_audio_buffer.commit", "final": True})  # type: ignore[typeddict-unknown-key]
        events = [connection.recv()]
        while events[-1].type != "transcription.done":
            events.append(connection.recv())
        assert events[-1].text == "a bc"


def test_invalid_events(server):
    wrong: list[tuple[str, Any]] = [
        ("invalid_json", "{"),
        ("invalid_event", "[]"),
        ("unknown_event", {"type": "response.create"}),
        ("model_not_validated", {"type": "input_audio_buffer.commit"}),
        ("invalid_event", {"type": "session.update", "model": "other"}),
        ("invalid_event", {"type": "session.update", "model": "fake", "language": "xx"}),
        ("invalid_event", {"type": "session.update", "model": 5}),
        ("invalid_event", {"type": "session.update", "model": "fake", "language": ["en"]}),
        ("invalid_audio", {"type": "input_audio_buffer.append", "audio": "?"}),
        ("invalid_audio", {"type": "input_audio_buffer.append", "audio": base64.b64encode(b"abc").decode()}),
        ("invalid_audio", {"type": "input_audio_buffer.append"}),
    ]
    with Talk(server) as talk:
        for code, event in wrong:
            talk.socket.send(event if isinstance(event, str) else json.dumps(event))
            found = talk.read()
            assert (found["type"], found["code"]) == ("error", code), event
        talk.say("session.update", model="fake")
        talk.say("input_audio_buffer.commit", final="yes")
        assert talk.read()["code"] == "invalid_event"
        for _ in range(40):
            with suppress(ConnectionClosed):
                talk.socket.send("{")
        assert talk.end() == 1008


def test_huge_messages_and_unread_output_harm_nobody(server):
    with Talk(server) as talk:
        with suppress(ConnectionClosed):
            talk.socket.send("x" * (5 << 20))
        assert talk.end() == 1009
    with Talk(server) as greedy:  # audio that nobody committed
        for _ in range(130):
            greedy.say("input_audio_buffer.append", audio=audio(1.0))
        assert greedy.until("error")[-1]["code"] == "invalid_audio"
    stuck = [Talk(server) for _ in range(4)]  # they commit, and read nothing
    for talk in stuck:
        talk.say("session.update", model="fake")
        talk.say("input_audio_buffer.append", audio=audio(3.0))
        talk.say("input_audio_buffer.commit", final=True)
    with Talk(server) as talk:
        talk.say("session.update", model="fake")
        talk.say("input_audio_buffer.append", audio=audio(0.3))
        talk.say("input_audio_buffer.commit", final=True)
        assert talk.until("transcription.done")[-1]["text"] == "a bc"
    for talk in stuck:
        talk.socket.socket.shutdown(socket.SHUT_RDWR)  # without a word
    deadline = time.monotonic() + 60
    while server.engine.running and time.monotonic() < deadline:
        time.sleep(0.01)
    assert not server.engine.running


def test_handshakes_that_are_refused(server, start):
    assert server.http.get("/v1/realtime").status_code == 426
    with pytest.raises(InvalidStatus) as e:
        Talk(server, origin="http://elsewhere.example")
    assert e.value.response.status_code == 403
    locked = start(FakeRecognizer(), api_key=("secret",))
    with pytest.raises(InvalidStatus) as e:
        Talk(locked)
    assert e.value.response.status_code == 401
    with Talk(locked, additional_headers={"Authorization": "Bearer secret"}) as talk:
        assert talk.first["type"] == "session.created"


def test_a_stopping_server_ends_idle_sessions(start):
    running = start(FakeRecognizer())
    talk = Talk(running)
    running.app.lifecycle.drain()
    assert talk.end() == 1001
