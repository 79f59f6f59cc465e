"""One key hoards the engine. Another key is answered meanwhile, and the hog gets the text it would have had alone."""

from __future__ import annotations

import json
import threading
from collections import defaultdict

import httpx
import pytest
from test_serve_process import Process

pytestmark = pytest.mark.slow  # they start a server
SHORT = {"prompt": [9, 9, 9], "max_tokens": 3, "ignore_eos": True}
KEYS = ["hog", "guest", "a", "b", "c", "d", "e"]


@pytest.fixture(scope="module")
def server():
    process = Process(
        "--port", "0", "--device", "null", "--additional-config", json.dumps({"base": 0.003}), "--max-num-seqs", "4",
        "--api-key", *KEYS, "--slow-client-timeout", "600", "--no-standby-engine",
    )  # fmt: skip
    try:
        yield process.url() + "/v1/completions"
    finally:
        process.process.kill()
        print("".join(process.log))  # shown when a test fails


def key(name: str) -> dict[str, str]:
    return {"Authorization": f"Bearer {name}"}


def ask(url: str, name: str) -> httpx.Response:
    """A short answer. The bound is of a test that hangs: the server cuts nobody before."""
    return httpx.post(url, json=SHORT, headers=key(name), timeout=60)


class Reader:
    """Reads a stream on a thread."""

    def __init__(self, url: str, name: str, **fields) -> None:
        self.texts: dict[int, str] = defaultdict(str)
        self.scores: dict[int, list] = defaultdict(list)
        self.ended: list[int] = []
        self.begun = threading.Event()
        self.may_read = threading.Event()
        self.may_read.set()
        self.body = {"prompt": [5, 6, 7], "ignore_eos": True, "stream": True, "seed": 4, **fields}
        self.url, self.name = url, name
        self.thread = threading.Thread(target=self._run, daemon=True)

    def start(self) -> Reader:
        self.thread.start()
        assert self.begun.wait(60)
        return self

    def _run(self) -> None:
        with httpx.stream("POST", self.url, json=self.body, headers=key(self.name), timeout=120) as answer:
            for line in answer.iter_lines():
                self.begun.set()
                self.may_read.wait()
                if not line.startswith("data: {"):
                    continue
                for choice in json.loads(line[6:])["choices"]:
                    self.texts[choice["index"]] += choice["text"]
                    self.scores[choice["index"]] += (choice["logprobs"] or {}).get("token_logprobs", [])
                    if choice["finish_reason"]:
                        self.ended.append(choice["index"])

    def whole(self) -> tuple[dict[int, str], dict[int, list]]:
        """Texts and scores, when the stream has ended."""
        self.thread.join(120)
        assert not self.thread.is_alive(), "the stream has not ended"
        assert len(self.ended) == self.body.get("n", 1)
        return self.texts, self.scores


def test_a_stream_that_nobody_reads_keeps_nobody_waiting(server):
    fields = {"n": 12, "max_tokens": 300, "logprobs": 5}
    hog = Reader(server, "hog", **fields)
    hog.may_read.clear()
    hog.start()
    for name in ("guest", "hog", "guest"):
        assert ask(server, name).status_code == 200
    hog.may_read.set()
    assert hog.whole() == Reader(server, "hog", **fields).start().whole()


def test_a_long_generation_of_many_choices_makes_room_for_another_key(server):
    fields = {"n": 6, "max_tokens": 800}
    hog = Reader(server, "hog", **fields).start()
    for _ in range(5):
        assert ask(server, "guest").status_code == 200
    assert hog.ended == [], "the guest waited for a whole generation"
    assert hog.whole() == Reader(server, "hog", **fields).start().whole()


def test_more_keys_than_the_engine_has_slots_all_get_on(server):
    hogs = [Reader(server, name, max_tokens=1500).start() for name in "abcde"]
    assert ask(server, "guest").status_code == 200
    assert not any(hog.ended for hog in hogs), "the guest waited for a whole generation"
    texts = [hog.whole()[0][0] for hog in hogs]
    assert len(set(texts)) == 1
    assert len(texts[0]) > 1000
