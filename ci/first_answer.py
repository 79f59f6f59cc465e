"""Waits for a server that a script has started, and asks it for one answer. `ci/images` and `ci/wheels` do so."""

from __future__ import annotations

import contextlib
import json
import subprocess
import time
import urllib.request


def wait_for_answer(process: subprocess.Popen[bytes], port: int, seconds: float = 180) -> str:
    """The text of one chat answer on 127.0.0.1, once /health answers. TimeoutError if it never does, or the process ends."""
    end = time.monotonic() + seconds
    while time.monotonic() < end and process.poll() is None:
        with contextlib.suppress(OSError):
            urllib.request.urlopen(f"http://127.0.0.1:{port}/health", timeout=5)
            break
        time.sleep(0.5)
    else:
        raise TimeoutError("the server was not healthy in time")
    body = {"messages": [{"role": "user", "content": "Sort: pear, apple"}], "max_tokens": 16, "temperature": 0}
    request = urllib.request.Request(
        f"http://127.0.0.1:{port}/v1/chat/completions", json.dumps(body).encode(), {"Content-Type": "application/json"}
    )
    with urllib.request.urlopen(request, timeout=60) as reply:
        return str(json.load(reply)["choices"][0]["message"]["content"])
