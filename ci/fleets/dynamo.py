"""Dynamo: its frontend with KV-aware routing, in front of two workers. Discovery by files, and neither etcd nor NATS."""

from __future__ import annotations

import json
from typing import Any

from fleets.fleet import MODEL, REQUEST_SECONDS, ROOT, Fleet, Place, share_store
from fleets.processes import Process, find_ports

WORKERS = 2
ONE = "it has one worker of each role"


class Dynamo(Fleet):
    name = "dynamo"
    packages = ("aiohttp>=3.14.3", "kubernetes>=32,<33", "pyzmq>=26", "uvloop", "zstandard", "redis")
    bare = ("ai-dynamo==1.6.1", "ai-dynamo-runtime==1.6.1")
    """Its requirement aisimulate, of which the frontend has no need, is in another registry."""
    modules = ("dynamo.frontend",)
    shared = True
    replicas = 0

    def start(self, place: Place) -> str:
        self._place = place
        (self._port,) = find_ports(1)
        self._environment = {
            "DYN_DISCOVERY_BACKEND": "file", "DYN_FILE_KV": str(place.work / "discovery"), "DYN_REQUEST_PLANE": "tcp",
            "DYN_EVENT_PLANE": "zmq", "DYN_TCP_RPC_HOST": "127.0.0.1", "PYTHONPATH": str(ROOT),
            "DYN_HTTP_BACKEND_STREAM_TIMEOUT_SECS": str(REQUEST_SECONDS),
        }  # fmt: skip
        self._front = self._start_front()
        self._workers = [self._start_worker(name, *words) for name, words in self.find_workers().items()]
        url = f"http://127.0.0.1:{self._port}"
        for worker in self._workers:
            worker.wait_until(worker.has_engine, "engine")
        self._front.wait_until(lambda: _lists_model(url), "model in /v1/models")
        return url

    def find_workers(self) -> dict[str, list[str]]:
        """The words of each worker's command line that differ, by the worker's name."""
        return {f"worker-{i}": [] for i in range(WORKERS)}

    def _start_front(self) -> Process:
        words = [self._place.environment.python, "-m", "dynamo.frontend", "--http-host", "127.0.0.1"]
        words += ["--http-port", str(self._port), "--router-mode", "kv"]
        return Process(words, self._place.work / "frontend.log", self._environment)

    def _start_worker(self, name: str, *differing: str) -> Process:
        (events,) = find_ports(1)
        config = {"enable_kv_cache_events": True, "endpoint": f"tcp://127.0.0.1:{events}"}
        words = [self._place.environment.python, "-m", "thalweg.integrations.dynamo", "--served-model-name", MODEL]
        words += ["--dyn-tool-call-parser", "hermes", "--kv-events-config", json.dumps(config)]
        return Process([*words, *differing], self._place.work / f"{name}.log", self._environment)

    def restart_front(self) -> None:
        self._front.kill()
        self._front = self._start_front()
        url = f"http://127.0.0.1:{self._port}"
        self._front.wait_until(lambda: _lists_model(url), "model in /v1/models")

    def end(self) -> None:
        for process in (*getattr(self, "_workers", ()), getattr(self, "_front", None)):
            if process is not None:
                process.end()

    def find_engines(self, place: Place) -> list[int]:
        return [pid for worker in self._workers for pid in worker.find_engines()]


class DynamoHandover(Dynamo):
    """A prefill and a decode worker, which share a store on disk."""

    name = "dynamo-prefill-decode"
    forgets = True
    missing = {"warm": ONE, "warm again": ONE}

    def find_workers(self) -> dict[str, list[str]]:
        words = share_store(self._place.work)
        return {mode: ["--disaggregation-mode", mode, *words] for mode in ("prefill", "decode")}

    def find_roles(self, place: Place) -> dict[str, Process]:
        return dict(zip(self.find_workers(), self._workers, strict=True))


def _lists_model(url: str) -> bool:
    import httpx

    try:
        listed: Any = httpx.get(f"{url}/v1/models", timeout=5).json()
    except (httpx.HTTPError, ValueError):
        return False
    return any(row["id"] == MODEL for row in listed.get("data", ()))
