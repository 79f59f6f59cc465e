"""Starts llama.cpp's server and sends it every request of a call at once, each over its own connection."""

from __future__ import annotations

import http.client
import json
import socket
import subprocess
import time
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from protocol import Loaded, serve

GREEDY = {"temperature": 0, "top_k": 1, "samplers": ["top_k"], "ignore_eos": True, "return_tokens": True}
"""One sampler that keeps the likeliest token: the cheapest chain this server has."""


def load(s: dict[str, Any]) -> Loaded:
    port = _free_port()
    flags = [
        "--ctx-size", str(s["kv_tokens"]), "--parallel", str(s["slots"]), "--kv-unified",
        "--threads", str(s["threads"]), "--threads-batch", str(s["threads"]),
    ]  # fmt: skip
    if "draft" in s:
        flags += ["--spec-type", "draft-simple", "--spec-draft-model", s["draft"], "--spec-draft-n-max", str(s["draft_tokens"])]
    command = [s["server"], "--model", s["model"], "--host", "127.0.0.1", "--port", str(port), *flags]
    server = subprocess.Popen(command, stdin=subprocess.DEVNULL)
    try:
        _wait(server, port)
    except BaseException:
        server.kill()
        raise
    pool = ThreadPoolExecutor(s["slots"])

    def generate(prompts: list[list[int]], new: int) -> list[list[int]]:
        return list(pool.map(lambda p: _complete(port, {"prompt": p, "n_predict": new, **GREEDY}), prompts))

    def close() -> None:
        server.terminate()
        server.wait(30)

    return Loaded(generate, s["receipt"], {"command": " ".join(flags), "request": GREEDY}, close)


def _complete(port: int, body: dict[str, Any]) -> list[int]:
    connection = http.client.HTTPConnection("127.0.0.1", port)
    connection.request("POST", "/completion", json.dumps(body), {"Content-Type": "application/json"})
    answer = connection.getresponse()
    text = answer.read()
    connection.close()
    if answer.status != 200:
        raise RuntimeError(f"the server answers {answer.status}: {text[:500]!r}")
    tokens: list[int] = json.loads(text)["tokens"]
    return tokens


def _wait(server: subprocess.Popen[bytes], port: int) -> None:
    while server.poll() is None:
        try:
            connection = http.client.HTTPConnection("127.0.0.1", port, timeout=5)
            connection.request("GET", "/health")
            if connection.getresponse().status == 200:
                return
        except OSError:
            pass
        time.sleep(0.01)
    raise RuntimeError(f"the server ended with status {server.returncode} while loading")


def _free_port() -> int:
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return int(s.getsockname()[1])


if __name__ == "__main__":
    serve(load)
