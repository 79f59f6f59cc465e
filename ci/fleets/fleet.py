"""A fleet: its packages, its processes, and the claims that it can show."""

from __future__ import annotations

import json
import subprocess
import sys
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from fleets.processes import Process, find_ports

ROOT = Path(__file__).resolve().parents[2]
MODEL = "thalweg-nano"
REQUEST_SECONDS = 15
"""Bound of a request that a front is started with, where it has such an option."""


@dataclass
class Environment:
    """A virtual environment of a fleet."""

    folder: Path

    def program(self, name: str) -> str:
        return str(self.folder / "bin" / name)

    @property
    def python(self) -> str:
        return self.program("python")

    def make(self, python: str, packages: Sequence[str], bare: Sequence[str] = (), *, shared: bool) -> None:
        """Install packages, and others without their requirements. shared: the packages of this interpreter are visible,
        thalweg among them."""
        subprocess.run([python, "-m", "venv", str(self.folder)], check=True)
        if shared:
            here = [path for path in sys.path if path.endswith("site-packages")]
            (folder,) = (self.folder / "lib").glob("python*/site-packages")
            (folder / "shared.pth").write_text("\n".join([str(ROOT), *here]) + "\n")
        for words in (packages, ["--no-deps", *bare] if bare else []):
            if words:
                subprocess.run([self.python, "-m", "pip", "install", "-q", *words], check=True)


@dataclass
class Replica:
    """A `thalweg serve` of the bundled model, with KV events."""

    url: str
    events: str
    replay: str
    process: Process

    @classmethod
    def start(cls, work: Path, *words: str) -> Replica:
        """Not yet ready: `process.wait_for` waits."""
        port, events, replay = find_ports(3)
        addresses = {"endpoint": f"tcp://127.0.0.1:{events}", "replay_endpoint": f"tcp://127.0.0.1:{replay}"}
        command = [
            sys.executable, "-m", "thalweg", "serve", "--port", str(port), "--enable-prompt-tokens-details",
            "--kv-events-config", json.dumps({"enable_kv_cache_events": True, **addresses}), *words,
        ]  # fmt: skip
        process = Process(command, work / f"replica-{port}.log", {"PYTHONPATH": str(ROOT)})
        return cls(f"http://127.0.0.1:{port}", addresses["endpoint"], addresses["replay_endpoint"], process)


@dataclass
class Place:
    """Where a fleet runs."""

    environment: Environment
    work: Path
    """Logs and files of the processes."""
    replicas: list[Replica] = field(default_factory=list)
    """Servers behind a router. Ready."""


def share_store(work: Path) -> list[str]:
    """Flags of servers that share a store on disk."""
    (work / "secret").write_text("a secret of sixteen bytes or more")
    options = {"folder": str(work / "blocks"), "max_bytes": 1_000_000_000}
    config = json.dumps({"kv_connector": "disk", "kv_connector_extra_config": options})
    return ["--kv-transfer-config", config, "--kv-key-secret", str(work / "secret")]


class Fleet(ABC):
    """A system in front of thalweg. `start` starts its processes in a place, `end` ends them."""

    name: str
    packages: tuple[str, ...] = ()
    """Requirements of its virtual environment."""
    bare: tuple[str, ...] = ()
    """Packages whose own requirements are not installed."""
    checkout: Path | None = None
    """Its repository, for a fleet that no registry has."""
    modules: tuple[str, ...] = ()
    """Importable in an environment that has it."""
    shared = False
    """Whether it runs thalweg's code, so that its environment needs the packages of this one."""
    oldest = (3, 11)
    """The oldest Python that it runs on."""
    replicas = 2
    """Number of servers that it needs. 0: its workers have engines."""
    forgets = False
    """Whether a server that stood still must be started again: its registration has ended."""
    missing: dict[str, str] = {}
    """Why it cannot show a claim, by claim."""

    def find_source(self) -> str | None:
        """A reason not to run. None: its packages come from the registry."""
        return None

    def find_options(self, work: Path) -> list[str]:
        """Further flags of the servers behind it."""
        return []

    @abstractmethod
    def start(self, place: Place) -> str:
        """The URL of its front, which answers."""

    @abstractmethod
    def end(self) -> None:
        """End every process that was started."""

    @abstractmethod
    def restart_front(self) -> None:
        """Kill the subscriber of KV events, and start another. Engines are left alone."""

    @abstractmethod
    def find_engines(self, place: Place) -> list[int]:
        """Process ids of the engines that serve."""

    def find_roles(self, place: Place) -> dict[str, Process]:
        """Servers that are the only ones of their role, by role. Default: none."""
        return {}

    def find_first(self, place: Place, url: str, number: int) -> str:
        """The server for the first turn of a conversation, by its number. Default: the front, which chooses."""
        return url

    def request(self, body: dict[str, Any]) -> dict[str, Any]:
        """A request as this front accepts it."""
        return body


class Router(Fleet):
    """A router of one process in front of `thalweg serve`."""

    def start(self, place: Place) -> str:
        (self._port,) = find_ports(1)
        self._place = place
        self._run()
        return f"http://127.0.0.1:{self._port}"

    def _run(self) -> None:
        self._process = Process(self.command(self._place, self._port), self._place.work / f"{self.name}.log")
        self._process.wait_for(f"http://127.0.0.1:{self._port}{self.ready}")

    ready = "/health"
    """The path that answers once the router does."""

    @abstractmethod
    def command(self, place: Place, port: int) -> list[str]:
        """The words of the router's command line."""

    def end(self) -> None:
        if hasattr(self, "_process"):
            self._process.end()

    def restart_front(self) -> None:
        self._process.kill()
        self._run()

    def find_engines(self, place: Place) -> list[int]:
        return [pid for replica in place.replicas for pid in replica.process.find_engines()]
