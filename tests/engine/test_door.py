"""The port where ranks of other machines join: whatever else reaches it is turned away, and costs the engine nothing."""

from __future__ import annotations

import socket
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from thalweg import __version__
from thalweg.config import EngineArgs
from thalweg.engine.client.frontend import locate
from thalweg.engine.executor.messages import Beat, FromRank, Hello, Refused, Welcome
from thalweg.engine.executor.nodes import GREETINGS, gather, model_digest
from thalweg.engine.ipc.codec import HEADER, Codec
from thalweg.engine.ipc.door import MOST_GREETING, Door, connect, has_ended, introduce
from thalweg.engine.ipc.port import listen
from thalweg.errors import ConfigError, DeviceError
from thalweg.hal.platform import Place
from thalweg.host.handshake import NONCE_BYTES

ARGS = locate(EngineArgs(device="null", tensor_parallel_size=2, nnodes=2)).args
PLACES = [Place(rank=1, world=2)]


@pytest.fixture
def door() -> Iterator[Door]:
    with listen("127.0.0.1", 0) as sock:
        yield Door(sock)


def hello(**other: Any) -> Hello:
    given = {"version": __version__, "rank": 1, "world": 2, "nodes": 2, "model": "/m", "digest": model_digest(ARGS)}
    return Hello(**(given | other))


def ask(door: Door, message: Any) -> tuple[socket.socket, Any]:
    sock = connect("127.0.0.1", door.port, time.monotonic() + 5, patient=False)
    return sock, introduce(sock, GREETINGS, message, time.monotonic() + 5)


def test_only_a_fitting_rank_enters_and_a_later_one_replaces_it(door: Door) -> None:
    words = [b"GET / HTTP/1.1\r\n\r\n", HEADER.pack(MOST_GREETING + 1), GREETINGS.encode(Welcome())]
    noise = [socket.create_connection(("127.0.0.1", door.port)) for _ in words]
    for sock, word in zip(noise, words, strict=True):
        sock.sendall(word)
        sock.shutdown(socket.SHUT_WR)
    wrong = {"version": "0", "world": 4, "nodes": 3, "rank": 0, "digest": "x"}
    with ThreadPoolExecutor() as threads:
        gathered = threads.submit(gather, ARGS, [*PLACES, Place(rank=2, world=2)], door, time.monotonic() + 20, str)
        for field, value in wrong.items():
            sock, answer = ask(door, hello(**{field: value}))
            assert isinstance(answer, Refused), field
            sock.close()
        first, answer = ask(door, hello())
        assert answer == Welcome()
        later, answer = ask(door, hello(model="/elsewhere"))
        assert answer == Welcome()
        third, _ = ask(door, hello(rank=2))
        member, _ = gathered.result()
    assert has_ended(first)
    assert not has_ended(later)
    assert member.args.model == "/elsewhere"
    later.sendall(Codec[Any](FromRank).encode(Beat(7)))
    assert member.channel.receive() == Beat(7)
    for sock in (*noise, first, later, third):
        sock.close()


def test_only_processes_with_the_secret_enter() -> None:
    with listen("127.0.0.1", 0) as sock, ThreadPoolExecutor() as threads:
        door, until = Door(sock, b"the secret of all machines"), time.monotonic() + 20
        gathered = threads.submit(gather, ARGS, PLACES, door, until, str)
        for secret in (b"", b"another secret of someone"):
            stranger = connect("127.0.0.1", door.port, until, patient=False)
            with pytest.raises(ConfigError, match="node_secret: machine 0 has another secret"):
                introduce(stranger, GREETINGS, hello(), until, secret)
            stranger.close()
        heard = connect("127.0.0.1", door.port, until, patient=False)  # it repeats what an honest process once said
        heard.sendall(bytes(2 * NONCE_BYTES) + GREETINGS.encode(hello()))
        honest = connect("127.0.0.1", door.port, until, patient=False)
        assert introduce(honest, GREETINGS, hello(), until, b"the secret of all machines") == Welcome()
        gathered.result()[0].channel.shut()
        assert has_ended(heard)
        for each in (heard, honest):
            each.close()
    with pytest.raises(DeviceError, match=r"a process on 127.0.0.1 .* has another secret"):  # the reason, where none came
        gather(ARGS, PLACES, door, time.monotonic(), str)
    with listen("127.0.0.1", 0) as sock, ThreadPoolExecutor() as threads:  # a machine 0 without it gets no rank
        impostor = Door(sock)
        turned_away = threads.submit(impostor.admit, GREETINGS, time.monotonic() + 10)
        guest = connect("127.0.0.1", impostor.port, time.monotonic() + 10, patient=False)
        with pytest.raises(ConfigError, match="another secret"):
            introduce(guest, GREETINGS, hello(), time.monotonic() + 10, b"the secret of all machines")
        assert turned_away.result() is None
        guest.close()


@pytest.mark.slow
def test_missing_ranks_are_named_and_those_that_came_are_sent_away(door: Door) -> None:
    with ThreadPoolExecutor() as threads:
        gathered = threads.submit(
            gather, ARGS, [*PLACES, Place(rank=2, world=2)], door, time.monotonic() + 0.5,
            lambda places: f"{places[0].rank} did not come",
        )  # fmt: skip
        sock, _ = ask(door, hello())
        with pytest.raises(DeviceError, match="device: rank 2 did not come"):
            gathered.result()
    assert has_ended(sock)
    sock.close()
