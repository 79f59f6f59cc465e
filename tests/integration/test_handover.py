"""A prompt computed by one server and continued by another, as llm-d's sidecar drives them: the text is that of one server."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest

from thalweg import LLM, SamplingParams
from thalweg.errors import RequestError

pytestmark = pytest.mark.slow  # servers are processes
ENVIRONMENT = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONUNBUFFERED": "1"}
SIX = {"remote_engine_id": None, "remote_block_ids": None, "remote_host": None, "remote_port": None}
WORDS = "the river bends and the boat turns with it " * 8
PATHS = ("/v1/chat/completions", "/v1/completions", "/inference/v1/generate")


class Server:
    """`thalweg serve` on the hash model, whose tokens depend on every key in the cache."""

    def __init__(self, *words: str) -> None:
        command = [
            sys.executable, "-m", "thalweg", "serve", "--port", "0", "--device", "null", "--max-model-len", "1024",
            "--enable-prompt-tokens-details", "--max-restarts", "9", "--no-standby-engine",
            "--additional-config", '{"base": 0.005}', *words,
        ]  # fmt: skip
        self.process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, env=ENVIRONMENT)
        self.log: list[str] = []
        threading.Thread(target=self._read, daemon=True).start()
        end = time.monotonic() + 120
        while not (found := re.search(r"serving .* on (http://\S+)", "".join(self.log))):
            assert self.process.poll() is None, "".join(self.log)
            assert time.monotonic() < end, "".join(self.log)
            time.sleep(0.02)
        self.http = httpx.Client(base_url=found[1], timeout=60)

    def _read(self) -> None:
        assert self.process.stdout is not None
        self.log.extend(iter(self.process.stdout.readline, ""))

    def post(self, path: str, body: dict[str, Any]) -> httpx.Response:
        return self.http.post(path, json=body)

    def engine(self) -> int:
        """The pid of the engine's process."""
        own = self.process.pid
        children = [int(p) for p in Path(f"/proc/{own}/task/{own}/children").read_text().split()]
        return next(p for p in children if b"thalweg.engine.main" in Path(f"/proc/{p}/cmdline").read_bytes())

    def end(self) -> None:
        self.http.close()
        self.process.kill()
        self.process.wait()


@pytest.fixture(scope="module")
def plain() -> Iterator[Server]:
    server = Server()
    yield server
    server.end()


@contextmanager
def two_servers(tmp_path: Path) -> Iterator[tuple[Server, Server]]:
    """With one store."""
    (tmp_path / "secret").write_text("a secret of sixteen bytes or more")
    config = f'{{"kv_connector": "disk", "kv_connector_extra_config": {{"folder": "{tmp_path}/b", "max_bytes": 100000000}}}}'
    words = ("--kv-key-secret", str(tmp_path / "secret"), "--kv-transfer-config", config)
    made: list[Server] = []
    try:
        for _ in range(2):
            made.append(Server(*words))
        yield made[0], made[1]
    finally:
        for server in made:
            server.end()


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Server, Server]]:
    with two_servers(tmp_path_factory.mktemp("pair")) as made:
        yield made


def body_of(path: str, i: int, tokens: int = 12) -> dict[str, Any]:
    text = f"{i}: {WORDS}"
    if path == PATHS[2]:
        ids = [ord(c) + 300 for c in text]
        return {"token_ids": ids, "sampling_params": {"max_tokens": tokens, "temperature": 0.0, "ignore_eos": True}}
    prompt = {"messages": [{"role": "user", "content": text}]} if path == PATHS[0] else {"prompt": text}
    return {**prompt, "max_tokens": tokens, "temperature": 0, "ignore_eos": True, "return_token_ids": True}


def with_limit(body: dict[str, Any], tokens: int) -> dict[str, Any]:
    if "sampling_params" in body:
        return {**body, "sampling_params": {**body["sampling_params"], "max_tokens": tokens}}
    return {**body, "max_tokens": tokens}


def split(prefill: Server, decode: Server, path: str, body: dict[str, Any]) -> dict[str, Any]:
    """As a sidecar does it: a server that fails to prefill costs the time of the prompt."""
    params = {"do_remote_decode": True, "do_remote_prefill": False, **SIX}
    try:
        first = prefill.post(path, with_limit({**body, "kv_transfer_params": params}, 1))
        said = first.json()["kv_transfer_params"] if first.status_code == 200 else None
    except httpx.TransportError:
        said = None
    answer = decode.post(path, body if said is None else {**body, "kv_transfer_params": said})
    assert answer.status_code == 200, answer.text
    return answer.json()


def ids_of(answer: dict[str, Any]) -> list[int]:
    return answer["choices"][0]["token_ids"]


def count_cached(answer: dict[str, Any]) -> int:
    return answer["usage"]["prompt_tokens_details"]["cached_tokens"]


@pytest.mark.parametrize("path", PATHS)
def test_the_text_is_that_of_one_server_and_the_prompt_is_computed_once(plain: Server, pair: Any, path: str) -> None:
    prefill, decode = pair
    for i in range(4):
        body = body_of(path, i)
        want = plain.post(path, body).json()
        got = split(prefill, decode, path, body)
        assert ids_of(got) == ids_of(want)
        prompt = got["usage"]["prompt_tokens"]
        assert count_cached(got) >= prompt - 1 - (prompt - 1) % 32, "the next server has every whole block"
        details = got["usage"]["prompt_tokens_details"]
        assert details["cached_tokens_from_store"] == details["cached_tokens"]
    again = decode.post(path, body).json()["usage"]["prompt_tokens_details"]
    assert again["cached_tokens"]
    assert "cached_tokens_from_store" not in again
    exposed = decode.http.get("/metrics").text
    found = re.search(r'thalweg:prompt_tokens_by_source_total\{[^}]*external_kv_transfer"[^}]*\} (\S+)', exposed)
    assert found
    assert float(found[1]) > 0


@pytest.mark.parametrize("path", PATHS)
def test_a_prompt_that_is_not_cached_enough_is_answered_412(pair: Any, path: str) -> None:
    server = pair[0]
    body = {**body_of(path, 7), "cache_hit_threshold": 0.8}
    for stream in (False, True):
        refused = server.post(path, {**body, "stream": stream, "return_token_ids": None})
        assert refused.status_code == 412, refused.text
        assert refused.json()["error"]["param"] == "cache_hit_threshold"
    assert server.post(path, {**body, "cache_hit_threshold": 0}).status_code == 200
    assert count_cached(server.post(path, body).json()) > 0


def test_what_a_server_cannot_hand_over_is_refused_by_field(plain: Server, pair: Any) -> None:
    path, asks = PATHS[1], {"do_remote_decode": True}
    for server, more in (
        (plain, {"kv_transfer_params": asks}),
        (plain, {"kv_transfer_params": {"do_remote_prefill": True}}),
        (pair[0], {"kv_transfer_params": asks, "stream": True}),
        (pair[0], {"kv_transfer_params": asks, "prompt": ["a", "b"]}),
        (pair[0], {"kv_transfer_params": {**asks, "do_remote_prefill": True}}),
    ):
        refused = server.post(path, {**body_of(path, 1), **more})
        assert refused.status_code == 400, more
        assert refused.json()["error"]["param"] == "kv_transfer_params"
    none = {"do_remote_decode": False, "do_remote_prefill": False, **SIX}
    assert plain.post(path, {**body_of(path, 1), "kv_transfer_params": none}).status_code == 200


def test_offline_requests_say_it_in_extra_args(tmp_path: Path) -> None:
    (tmp_path / "secret").write_text("a secret of sixteen bytes or more")
    store = {"kv_connector": "disk", "kv_connector_extra_config": {"folder": f"{tmp_path}/b", "max_bytes": 10**8}}
    engines = [
        LLM(device="null", max_model_len=512, kv_transfer_config=config, kv_key_secret=f"{tmp_path}/secret")
        for config in (store, store, None)
    ]
    prompt = {"prompt_token_ids": list(range(5, 300))}

    def run(llm: LLM, tokens: int, **said: Any) -> Any:
        params = SamplingParams(max_tokens=tokens, ignore_eos=True, extra_args=said or None)
        return llm.generate([prompt], params, use_tqdm=False)[0]

    want = run(engines[2], 8)
    first = run(engines[0], 1, kv_transfer_params={"do_remote_decode": True})
    assert first.kv_transfer_params["do_remote_prefill"]
    second = run(engines[1], 8, kv_transfer_params=first.kv_transfer_params)
    assert second.num_cached_tokens >= 256
    assert second.kv_transfer_params is None
    assert second.outputs[0].token_ids == want.outputs[0].token_ids
    third = want.outputs[0].token_ids[2]
    stops = [
        llm.generate([prompt], SamplingParams(max_tokens=8, stop_token_ids=[third], kv_transfer_params=said), use_tqdm=False)[
            0
        ].outputs[0]
        for llm, said in ((engines[2], None), (engines[0], {"do_remote_decode": True}))
    ]
    assert stops[0].text == stops[1].text, "a stop token is not text, though its end comes later"
    assert stops[0].stop_reason == stops[1].stop_reason == third
    with pytest.raises(RequestError, match="needs an engine with a store that others share"):
        run(engines[2], 1, kv_transfer_params={"do_remote_decode": True})
    cold = engines[2].generate(
        [{"prompt_token_ids": list(range(400, 500))}], SamplingParams(max_tokens=4, cache_hit_threshold=0.5), use_tqdm=False
    )[0]
    assert (cold.outputs[0].finish_reason, cold.outputs[0].token_ids) == ("cache_threshold", [])


def test_either_server_may_be_killed(plain: Server, tmp_path: Path) -> None:
    with two_servers(tmp_path) as (prefill, decode):
        kill_and_compare(plain, prefill, decode)


def kill_and_compare(plain: Server, prefill: Server, decode: Server) -> None:
    path = PATHS[1]
    want = {i: ids_of(plain.post(path, body_of(path, i, 120)).json()) for i in range(10, 14)}
    os.kill(prefill.engine(), signal.SIGKILL)  # its server gets another
    assert ids_of(split(prefill, decode, path, body_of(path, 10, 120))) == want[10]

    killer = threading.Timer(0.3, lambda: os.kill(decode.engine(), signal.SIGKILL))
    killer.start()
    assert ids_of(split(prefill, decode, path, body_of(path, 11, 120))) == want[11]  # in the middle of the answer
    killer.join()

    prefill.process.send_signal(signal.SIGKILL)
    prefill.process.wait()
    assert ids_of(split(prefill, decode, path, body_of(path, 12, 120))) == want[12]
    last = {**body_of(path, 13, 120), "kv_transfer_params": {"do_remote_prefill": True}}
    assert ids_of(decode.post(path, last).json()) == want[13]
