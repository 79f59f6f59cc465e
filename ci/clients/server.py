"""A server that clients are run against, and what makes a row right."""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from clients.client import DONE, MARK

ROOT = Path(__file__).resolve().parents[2]
LONG = (
    *("--hf-overrides", json.dumps({"max_position_embeddings": 65536, "eos_token_id": list(range(2, 2560, 8))})),
    *("--override-generation-config", '{"temperature": 2.0}', "--max-model-len", "65536", "--served-model-name", "nano"),
)
"""That model knows 2,048 positions. Clients need more, where it says nothing of sense and would not end: so many
tokens end it."""


@dataclass
class Server:
    url: str
    model: str
    prompts: list[str] | None
    """What a scripted model was asked. None: a real one."""
    faults: list[str] = field(default_factory=list)
    """Why a scripted model had nothing to say."""

    def judge(self, status: int, body: str) -> str:
        """Why the row is not right, from the client's exit status and its output. "": it is."""
        if self.faults:
            return self.faults[0]
        if status:
            return f"ended with {status}: {body[-400:]!r}"
        if self.prompts is None:
            return ""
        if not any(MARK in p for p in self.prompts):
            return f"the tool's result never came back, in {len(self.prompts)} requests: {body[-400:]!r}"
        return "" if DONE in body else f"the last text did not arrive: {body[-400:]!r}"


@contextmanager
def nano() -> Iterator[Server]:
    """`thalweg serve` on a free port."""
    import socket

    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    words = [sys.executable, "-m", "thalweg", "serve", str(ROOT / "thalweg/nano/draft"), "--port", str(port), *LONG]
    with tempfile.TemporaryFile() as log:
        process = subprocess.Popen(words, stdout=log, stderr=log, start_new_session=True)
        try:
            _wait(port, process)
            yield Server(f"http://127.0.0.1:{port}", "nano", None)
        finally:
            process.terminate()
            process.wait(60)


def _wait(port: int, process: subprocess.Popen[bytes]) -> None:
    from urllib.error import URLError
    from urllib.request import urlopen

    deadline = time.monotonic() + 120
    while time.monotonic() < deadline and process.poll() is None:
        try:
            with urlopen(f"http://127.0.0.1:{port}/readyz", timeout=5):
                return
        except (URLError, OSError):
            time.sleep(0.1)
    raise SystemExit("the server did not start")
