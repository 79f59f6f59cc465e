"""Open WebUI's own server in front of this one, asked as its page asks: a chat with a tool, a title, tags, what to ask next.

Run by ci/clients.py: python open_webui.py PROGRAM ADDRESS MODEL QUESTION. PROGRAM is `open-webui` of an environment of its own.
It loads nothing from anywhere. Prints the chat's title and its last answer. Ends with 1 if the page would show an error.
"""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import time
import uuid
from pathlib import Path
from typing import Any
from urllib.error import URLError
from urllib.request import Request, urlopen

TOOL = '''
import subprocess

class Tools:
    def shell(self, command: str) -> str:
        """
        Run a command.
        :param command: what to run
        """
        return subprocess.run(["sh", "-c", command], capture_output=True, text=True).stdout
'''
SETTINGS = {
    "OFFLINE_MODE": "True", "HF_HUB_OFFLINE": "1", "WEBUI_AUTH": "False", "WEBUI_SECRET_KEY": "of no use to anybody, and long",
    "ENABLE_OLLAMA_API": "False", "ENABLE_OPENAI_API": "True", "OPENAI_API_KEY": "none", "ENABLE_PERSISTENT_CONFIG": "False",
    "BYPASS_EMBEDDING_AND_RETRIEVAL": "True", "RAG_EMBEDDING_ENGINE": "openai", "ANONYMIZED_TELEMETRY": "False",
    "DO_NOT_TRACK": "1", "SCARF_NO_ANALYTICS": "true", "OMP_NUM_THREADS": "1",
}  # fmt: skip
START, ANSWER, TITLE = 120.0, 120.0, 10.0
"""Seconds that it gets to start, to answer, and to find a title after that."""


class Page:
    """What the page in a browser sends."""

    def __init__(self, url: str) -> None:
        self._url, self._token = url, ""

    def send(self, path: str, body: Any = None) -> Any:
        headers = {"Content-Type": "application/json"} | ({"Authorization": f"Bearer {self._token}"} if self._token else {})
        data = None if body is None else json.dumps(body).encode()
        with urlopen(Request(self._url + path, data, headers), timeout=60) as answer:
            return json.loads(answer.read())

    def enter(self) -> None:
        self._token = self.send("/api/v1/auths/signin", {"email": "", "password": ""})["token"]

    def ask(self, model: str, text: str) -> tuple[str, dict[str, Any]]:
        """(title, the answer as the page shows it)."""
        about = {"id": "shelltool", "name": "shelltool", "content": TOOL, "meta": {"description": "a shell"}}
        self.send("/api/v1/tools/create", about)
        requested, answer = str(uuid.uuid4()), str(uuid.uuid4())
        message = {
            "id": requested,
            "role": "user",
            "content": text,
            "parentId": None,
            "childrenIds": [],
            "timestamp": int(time.time()),
        }
        chat = self.send("/api/chat/completions", {
            "model": model, "stream": True, "messages": [{"role": "user", "content": text}], "parent_id": None,
            "user_message": message, "id": answer, "session_id": "page", "tool_ids": ["shelltool"],
            "params": {"function_calling": "native", "max_tokens": 200}, "features": {}, "variables": {},
            "background_tasks": {"title_generation": True, "tags_generation": True, "follow_up_generation": True},
        })["chat_id"]  # fmt: skip
        deadline, ended, found, shown = time.monotonic() + ANSWER, 0.0, {}, {}
        while time.monotonic() < deadline and "error" not in shown:
            time.sleep(0.3)
            found = self.send(f"/api/v1/chats/{chat}")
            shown = found["chat"]["history"]["messages"].get(answer, {})
            if shown.get("done"):
                if found["title"] not in ("New Chat", text):
                    break
                ended = ended or time.monotonic()
                deadline = min(deadline, ended + TITLE)
        return found.get("title", ""), shown


def main(words: list[str]) -> int:
    program, address, model, question = words
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    environment = {**os.environ, **SETTINGS, "OPENAI_API_BASE_URL": f"{address}/v1", "DATA_DIR": str(Path.home() / "data")}
    (Path.home() / "data").mkdir()
    with (Path.home() / "log").open("wb") as log:
        serve = [program, "serve", "--host", "127.0.0.1", "--port", str(port)]
        process = subprocess.Popen(serve, env=environment, stdout=log, stderr=log)
        try:
            page = Page(f"http://127.0.0.1:{port}")
            _wait(page, process)
            page.enter()
            page.send("/api/models")
            title, shown = page.ask(model, question)
        finally:
            process.terminate()
            process.wait(30)
    print(title)
    print(shown.get("content"))
    kinds = [part["type"] for part in shown.get("output", [])]
    print(kinds, shown.get("error", ""))
    return 0 if shown.get("done") and "error" not in shown else 1


def _wait(page: Page, process: subprocess.Popen[bytes]) -> None:
    deadline = time.monotonic() + START
    while time.monotonic() < deadline and process.poll() is None:
        try:
            page.send("/health")
            return
        except (URLError, OSError):
            time.sleep(0.5)
    raise SystemExit(f"Open WebUI did not start: {(Path.home() / 'log').read_text(errors='replace')[-600:]}")


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
