"""Whole servers killed or stopped between the prefill and the end of the answer, by the six fields of `kv_transfer_params`.

The client does as llm-d's sidecar: it waits a bounded time, and then asks the other server. The text is that of one server."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from test_handover import PATHS, SIX, Server, body_of, ids_of, with_limit

pytestmark = [pytest.mark.slow, pytest.mark.nightly]  # servers are processes, and some stand still for seconds
PATH = PATHS[1]
TOKENS = 120
SECONDS = 3.0
"""Bound of each request to a server that may stand still."""
PHASES = ("before", "prefill", "between", "decode")
ASKS = {"do_remote_decode": True, "do_remote_prefill": False, **SIX}


def find_processes(server: Server) -> list[int]:
    """The API process and all of its children."""
    found = [server.process.pid]
    for pid in found:
        found += [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]
    return found


def end(server: Server, number: signal.Signals) -> None:
    for pid in find_processes(server):
        os.kill(pid, number)


@pytest.fixture
def words(tmp_path: Path) -> tuple[str, ...]:
    (tmp_path / "secret").write_text("a secret of sixteen bytes or more")
    config = f'{{"kv_connector": "disk", "kv_connector_extra_config": {{"folder": "{tmp_path}/b", "max_bytes": 100000000}}}}'
    return "--kv-key-secret", str(tmp_path / "secret"), "--kv-transfer-config", config


@pytest.fixture(scope="module")
def wanted() -> Iterator[list[int]]:
    server = Server()
    yield ids_of(server.post(PATH, body_of(PATH, 1, TOKENS)).json())
    server.end()


def ask(server: Server, body: dict[str, Any], seconds: float = SECONDS) -> dict[str, Any] | None:
    """None: no answer in time, or the connection ended."""
    try:
        answer = server.http.post(PATH, json=body, timeout=seconds)
    except httpx.TransportError:
        return None
    assert answer.status_code == 200, answer.text
    return answer.json()


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGSTOP], ids=["killed", "stopped"])
@pytest.mark.parametrize("role", ["prefill", "decode"])
@pytest.mark.parametrize("phase", PHASES)
def test_a_whole_server_ends_and_the_text_is_that_of_one(
    words: tuple[str, ...], wanted: list[int], number: signal.Signals, role: str, phase: str
) -> None:
    servers = {"prefill": Server(*words), "decode": Server(*words)}
    victim = servers[role]
    try:
        body = body_of(PATH, 1, TOKENS)
        if phase == "before":
            end(victim, number)
        if phase == "prefill":
            os.kill(servers["prefill"].engine(), signal.SIGSTOP)  # the prompt is under way until the end
            threading.Timer(0.3, end, [victim, number]).start()
            if role == "decode":
                threading.Timer(0.6, os.kill, [servers["prefill"].engine(), signal.SIGCONT]).start()
        first = ask(servers["prefill"], with_limit({**body, "kv_transfer_params": ASKS}, 1))
        assert (first is None) == (role == "prefill" and phase in ("before", "prefill"))
        if first is not None:
            body["kv_transfer_params"] = first["kv_transfer_params"]
        if phase == "between":
            end(victim, number)
        if phase == "decode":
            threading.Timer(0.3, end, [victim, number]).start()
        answer = ask(servers["decode"], body)
        assert (answer is None) == (role == "decode")
        if answer is None:
            answer = ask(servers["prefill"], body, 30)  # either one serves what the other began
        assert answer is not None
        assert ids_of(answer) == wanted
        if number is signal.SIGSTOP:  # a server that goes on has dropped the requests of those who left
            end(victim, signal.SIGCONT)
            again = ask(victim, body, 30)
            assert again is not None
            assert ids_of(again) == wanted
            check_idle(victim)
    finally:
        for server in servers.values():
            server.end()


def check_idle(server: Server) -> None:
    """No request is left, running or waiting."""
    end = time.monotonic() + 60
    while time.monotonic() < end:
        exposed = server.http.get("/metrics").text
        if all(float(value) == 0 for value in read_gauges(exposed)):
            return
        time.sleep(0.05)
    pytest.fail(f"requests are left: {read_gauges(exposed)}")


def read_gauges(exposed: str) -> list[str]:
    names = ("thalweg:num_requests_running", "thalweg:num_requests_waiting{")
    found = [line.rsplit(" ", 1)[1] for line in exposed.splitlines() if line.startswith(names)]
    assert len(found) >= 2
    return found
