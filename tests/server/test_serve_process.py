"""`thalweg serve` as users start it: a process, the bundled model, the real engine behind the official client."""

from __future__ import annotations

import asyncio
import contextlib
import json
import math
import os
import re
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import httpx
import openai
import pytest
from loopback import free_port

pytestmark = pytest.mark.slow  # each starts processes
get, post = partial(httpx.get, timeout=60), partial(httpx.post, timeout=60)
ENVIRONMENT = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONUNBUFFERED": "1"}
MESSAGES = [{"role": "user", "content": "hello"}]


class Process:
    """A server started from the command line; `log` collects what it prints."""

    def __init__(self, *words: str, **variables: str) -> None:
        command = [sys.executable, "-m", "thalweg", "serve", *words]
        env = ENVIRONMENT | variables
        self.process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, env=env)
        self.log: list[str] = []
        threading.Thread(target=self._read, daemon=True).start()

    def _read(self) -> None:
        assert self.process.stdout is not None
        self.log.extend(iter(self.process.stdout.readline, ""))

    def wait_for(self, pattern: str, seconds: float = 90) -> re.Match[str]:
        end = time.monotonic() + seconds
        while time.monotonic() < end and self.process.poll() is None:
            if found := re.search(pattern, "".join(self.log)):
                return found
            time.sleep(0.02)
        raise AssertionError(f"no {pattern!r} in:\n{''.join(self.log)}")

    def url(self) -> str:
        url = self.wait_for(r"serving .* on (http://\S+)")[1]
        return url

    def end(self, number: int = signal.SIGTERM) -> int:
        self.process.send_signal(number)
        try:
            return self.process.wait(60)
        finally:
            self.process.kill()


@pytest.fixture(scope="module")
def bundled() -> Iterator[Process]:
    process = Process("--port", "0", "--enable-prompt-tokens-details", "--scheduling-policy", "priority", "--threads", "1")
    try:
        process.url()
        yield process
    finally:
        process.process.kill()
        print("".join(process.log))  # shown when a test fails


@pytest.fixture(scope="module")
def client(bundled: Process) -> openai.OpenAI:
    return openai.OpenAI(base_url=bundled.url() + "/v1", api_key="none", max_retries=0, timeout=60)


def test_says_that_the_model_is_the_bundled_one(bundled):
    assert "using thalweg-nano, the bundled model: five million parameters" in "".join(bundled.log)


def test_same_seed_same_text_streamed_or_not_alone_or_in_company(client):
    body = {"model": "thalweg-nano", "prompt": "Once", "max_tokens": 12, "seed": 7, "temperature": 2}
    whole = client.completions.create(**body).choices[0].text
    streamed = "".join(c.choices[0].text for c in client.completions.create(**body, stream=True) if c.choices)
    several = client.completions.create(**{**body, "prompt": ["Twice", "Once", "Thrice"]}).choices[1].text
    other = client.completions.create(**{**body, "seed": 8}).choices[0].text
    assert whole == streamed == several
    assert whole != other


@pytest.mark.parametrize("streamed", [False, True])
def test_a_forced_call_is_made_however_hot_the_sampling(client, streamed):
    city = {"type": "string", "pattern": "^[a-z]{1,8}$"}
    schema = {
        "type": "object",
        "properties": {"city": city, "days": {"enum": [1, 2, 3]}},
        "required": ["city", "days"],
        "additionalProperties": False,
    }
    tools = [{"type": "function", "function": {"name": n, "parameters": schema}} for n in ("weather", "tides")]
    named = {"type": "function", "function": {"name": "tides"}}
    for seed, choice in enumerate(("required", named, "required")):
        made = client.chat.completions.create(
            model="thalweg-nano", messages=MESSAGES, tools=tools, tool_choice=choice, max_tokens=120, seed=seed,
            temperature=3, stream=streamed, parallel_tool_calls=False,
        )  # fmt: skip
        if streamed:
            pieces = [c for chunk in made if chunk.choices for c in chunk.choices[0].delta.tool_calls or ()]
            calls = [(pieces[0].function.name, "".join(p.function.arguments or "" for p in pieces))]
        else:
            calls = [(c.function.name, c.function.arguments) for c in made.choices[0].message.tool_calls]
        ((name, arguments),) = calls
        assert name in (("tides",) if choice is named else ("weather", "tides"))
        assert re.fullmatch(r"[a-z]{1,8}", json.loads(arguments)["city"])
        assert json.loads(arguments)["days"] in (1, 2, 3)


def test_chat_n_logprobs_and_usage(client):
    r = client.chat.completions.create(
        model="thalweg-nano",
        messages=MESSAGES,
        n=3,
        max_tokens=5,
        seed=1,
        temperature=20,
        logprobs=True,
        top_logprobs=4,
        extra_body={"ignore_eos": True},
    )
    assert [c.index for c in r.choices] == [0, 1, 2]
    assert len({c.message.content for c in r.choices}) == 3
    for c in r.choices:
        assert c.finish_reason == "length"
        assert len(c.logprobs.content) == 5
        for e in c.logprobs.content:
            values = [t.logprob for t in e.top_logprobs]
            assert len(values) == 4
            assert values == sorted(values, reverse=True)
            assert e.logprob <= values[0] <= 0
        assert b"".join(bytes(e.bytes) for e in c.logprobs.content).decode(errors="replace") == c.message.content
    assert r.usage.completion_tokens == 15


def test_greedy_text_scores_the_same_when_echoed(client):
    made = client.completions.create(
        model="thalweg-nano", prompt="Once", max_tokens=6, temperature=0, logprobs=1, extra_body={"ignore_eos": True}
    )
    ids = post(str(client.base_url).removesuffix("v1/") + "tokenize", json={"prompt": "Once"}).json()["tokens"]
    again = client.completions.create(
        model="thalweg-nano", prompt="Once", max_tokens=6, temperature=0, logprobs=1, echo=True, extra_body={"ignore_eos": True}
    ).choices[0]
    assert again.text == "Once" + made.choices[0].text
    assert again.logprobs.token_logprobs[0] is None
    assert again.logprobs.token_logprobs[len(ids) :] == pytest.approx(made.choices[0].logprobs.token_logprobs, abs=0.05)


def test_stop_string(client):
    text = (
        client.completions.create(
            model="thalweg-nano", prompt="Once", max_tokens=30, temperature=0, extra_body={"ignore_eos": True}
        )
        .choices[0]
        .text
    )
    stop = text[5:8]
    r = client.completions.create(
        model="thalweg-nano", prompt="Once", max_tokens=30, temperature=0, stop=stop, extra_body={"ignore_eos": True}
    )
    assert r.choices[0].text == text[: text.index(stop)]
    assert (r.choices[0].finish_reason, r.choices[0].stop_reason) == ("stop", stop)


def test_a_shared_prefix_is_found_in_the_cache(client):
    prompt = "the same long beginning of every prompt " * 10
    client.completions.create(model="thalweg-nano", prompt=prompt, max_tokens=1)
    r = client.completions.create(model="thalweg-nano", prompt=prompt, max_tokens=1)
    assert r.usage.prompt_tokens_details.cached_tokens > 0
    salted = client.completions.create(
        model="thalweg-nano", prompt=prompt, max_tokens=1, extra_body={"cache_salt": "other tenant"}
    )
    assert salted.usage.prompt_tokens_details.cached_tokens == 0


@pytest.mark.parametrize(
    ("change", "param"),
    [
        ({"prompt": "x " * 5000}, "prompt"),
        ({"prompt": [10**8]}, "prompt"),
        ({"logprobs": 21}, "logprobs"),
        ({"logit_bias": {"99999999": 1}}, "logit_bias"),
        ({"allowed_token_ids": [10**8]}, "allowed_token_ids"),
        ({"stop_token_ids": [10**8]}, "stop_token_ids"),
        ({"min_tokens": 50}, "min_tokens"),
    ],
)
@pytest.mark.parametrize("stream", [True, False])
def test_the_engine_refuses_by_field(bundled, change, param, stream):
    r = post(bundled.url() + "/v1/completions", json={"prompt": "a", "stream": stream, **change}, timeout=30)
    assert r.status_code == 400, r.text
    assert r.json()["error"]["param"].startswith(param)


async def test_many_at_once_with_some_leaving(bundled):
    url = bundled.url()
    async with openai.AsyncOpenAI(base_url=url + "/v1", api_key="none", max_retries=0, timeout=120) as client:

        async def one(i: int) -> str:
            stream = await client.completions.create(
                model="thalweg-nano", prompt=f"number {i}", max_tokens=10, seed=i, stream=True, extra_body={"ignore_eos": True}
            )
            text = ""
            async for chunk in stream:
                text += chunk.choices[0].text
                if i % 3 == 0:
                    await stream.close()
                    return "left"
            return text

        texts = await asyncio.gather(*(one(i) for i in range(12)))
        alone = await one(1)
    assert texts[1] == alone
    end = time.monotonic() + 60
    while 'num_requests_running{engine="0",model_name="thalweg-nano"} 0.0' not in (metrics := get(url + "/metrics").text):
        assert time.monotonic() < end, metrics
        await asyncio.sleep(0.1)
        post(url + "/v1/completions", json={"prompt": "a", "max_tokens": 1})
    assert 'kv_cache_usage_perc{engine="0",model_name="thalweg-nano"}' in metrics


def test_generative_scoring_is_the_models_own_distribution(bundled):
    url = bundled.url()
    prompt = "The capital of France is"
    asked = {"prompt": prompt, "max_tokens": 1, "temperature": 0, "logprobs": 5, "return_tokens_as_token_ids": True}
    top = post(url + "/v1/completions", json=asked).json()["choices"][0]["logprobs"]["top_logprobs"][0]
    chances = {int(t.removeprefix("token_id:")): math.exp(v) for t, v in top.items()}
    labels = sorted(chances)[:3]
    body = {"query": "The capital of", "items": [" France is"], "label_token_ids": labels}
    scored = [post(url + "/generative_scoring", json=body | m).json() for m in ({}, {"apply_softmax": False})]
    normal, alone = (s["data"][0]["score"] for s in scored)
    assert math.isclose(alone, chances[labels[0]], rel_tol=1e-3)
    assert math.isclose(normal, chances[labels[0]] / sum(chances[t] for t in labels), rel_tol=1e-3)


def test_messages(bundled):
    """The counted tokens are the prompt's, what the cache held is taken off them, and a stream says what the whole does."""
    ask = {"model": "thalweg-nano", "system": "Be brief. " * 30, "messages": MESSAGES, "max_tokens": 12, "temperature": 0}
    with httpx.Client(base_url=bundled.url(), timeout=60) as http:
        counted = http.post("/v1/messages/count_tokens", json={k: ask[k] for k in ("model", "system", "messages")}).json()
        first = http.post("/v1/messages", json=ask).json()
        again = http.post("/v1/messages", json={**ask, "stream": True}).text
    assert (first["type"], first["stop_reason"] in ("end_turn", "max_tokens")) == ("message", True)
    assert first["usage"]["input_tokens"] + first["usage"]["cache_read_input_tokens"] == counted["input_tokens"]
    events = [json.loads(line.removeprefix("data: ")) for line in again.splitlines() if line.startswith("data: ")]
    usage = events[0]["message"]["usage"]
    assert usage["cache_read_input_tokens"] > 0
    assert usage["input_tokens"] + usage["cache_read_input_tokens"] == counted["input_tokens"]
    text = "".join(e["delta"].get("text", "") for e in events if e["type"] == "content_block_delta")
    assert [b["text"] for b in first["content"]] == [text]
    assert events[-2]["delta"]["stop_reason"] == first["stop_reason"]


def test_the_port_is_taken(bundled):
    """Told before anything is loaded: nothing listens, and no engine has said a word."""
    port = bundled.url().rsplit(":", 1)[1]
    command = [sys.executable, "-m", "thalweg", "serve", "--port", port]
    second = subprocess.run(command, capture_output=True, text=True, env=ENVIRONMENT)
    assert second.returncode == 2
    assert "in use" in second.stderr
    assert "another with --port" in second.stderr
    assert "listening on" not in second.stderr
    assert "memory: weights" not in second.stderr


def test_chat_command_against_the_server(bundled, client):
    words = ["chat", "--url", bundled.url(), "--quick", "hello", "--max-tokens", "6", "--sampling-seed", "3"]
    said = subprocess.run(
        [sys.executable, "-m", "thalweg", *words], capture_output=True, text=True, timeout=60, env=ENVIRONMENT
    )
    expected = (
        client.chat.completions.create(model="thalweg-nano", messages=MESSAGES, max_tokens=6, seed=3).choices[0].message.content
    )
    assert said.stdout.removesuffix("\n") == expected


def test_the_key_of_a_vllm_deployment_closes_the_server_and_is_not_logged():
    process = Process(
        "--port", "0", "--device", "null", "--enable-log-requests", VLLM_API_KEY="s3cret", VLLM_PORT="tcp://s3cret"
    )
    try:
        url = process.url() + "/v1/models"
        assert get(url).status_code == 401
        assert get(url, headers={"Authorization": "Bearer s3cret"}).status_code == 200
    finally:
        process.end()
    log = "".join(process.log)
    assert "VLLM_PORT" in log
    assert "s3cret" not in log


def test_told_to_stop_it_lets_open_requests_finish_and_ends():
    process = Process("--port", "0", "--device", "null", "--additional-config", json.dumps({"base": 0.05}))
    url = process.url()
    body = {"prompt": "a", "max_tokens": 200, "ignore_eos": True, "stream": True}  # ten seconds
    with httpx.stream("POST", url + "/v1/completions", json=body, timeout=60) as r:
        lines = r.iter_lines()
        assert next(lines).startswith("data: {")
        process.process.send_signal(signal.SIGTERM)
        while get(url + "/readyz").status_code != 503:
            time.sleep(0.01)
        assert get(url + "/livez").status_code == 200
        refused = post(url + "/v1/completions", json={"prompt": "a"})
        assert (refused.status_code, refused.headers["connection"]) == (503, "close")
        assert int(refused.headers["retry-after"]) > 0
        events = [json.loads(line[6:]) for line in lines if line.startswith("data: {")]
    assert events[-1]["choices"][0]["finish_reason"] == "length"
    assert process.process.wait(60) == 0
    assert "Traceback" not in "".join(process.log)


def test_past_the_deadline_streams_end_with_an_error_and_a_second_signal_does_not_wait():
    slow = json.dumps({"base": 0.05})
    for timeout, again in (("1", False), ("40", True)):
        process = Process("--port", "0", "--device", "null", "--additional-config", slow, "--shutdown-timeout", timeout)
        url = process.url()
        body = {"prompt": [1, 2], "max_tokens": 1000, "ignore_eos": True, "stream": True}
        with httpx.stream("POST", url + "/v1/completions", json=body, timeout=60) as r:
            lines = r.iter_lines()
            next(lines)
            start = time.monotonic()
            process.process.send_signal(signal.SIGTERM)
            if again:
                time.sleep(0.3)
                process.process.send_signal(signal.SIGTERM)
            events = [line[6:] for line in lines if line.startswith("data: ")]
        assert json.loads(events[-2])["error"]["code"] == 503
        assert events[-1] == "[DONE]"
        assert process.process.wait(60) == 0
        assert time.monotonic() - start < 30  # its tokens would take 50 seconds, and the second one's deadline 40
        assert "Traceback" not in "".join(process.log)


@pytest.mark.parametrize("after", [0.0, 0.15, 0.4])
def test_told_to_stop_while_loading_it_ends_soon(after):
    process = Process("--port", "0", "--threads", "1")
    process.wait_for("listening on")
    time.sleep(after)
    start = time.monotonic()
    assert process.end() == 0
    assert time.monotonic() - start < 20


def test_a_lost_engine_is_told_to_probes_and_ends_the_server_with_a_failure():
    process = Process("--port", "0", "--device", "null", "--max-restarts", "0")
    url = process.url()
    children = subprocess.run(["pgrep", "-P", str(process.process.pid)], capture_output=True, text=True).stdout.split()
    engines = [c for c in children if "thalweg.engine.main" in open(f"/proc/{c}/cmdline").read()]  # noqa: SIM115
    assert engines
    for child in engines:
        os.kill(int(child), signal.SIGKILL)
    process.wait_for("the engine has died")
    for path in ("/readyz", "/livez"):
        r = get(url + path)
        assert r.status_code == 503
        assert "failed" in r.json()["reason"]
    assert process.end() == 1


def test_unix_socket_is_made_and_removed(tmp_path):
    path = tmp_path / "s.sock"
    dead = socket.socket(socket.AF_UNIX)
    dead.bind(str(path))
    dead.close()  # left behind: nobody listens
    process = Process("--uds", str(path), "--device", "null")
    process.wait_for("serving")
    with httpx.Client(transport=httpx.HTTPTransport(uds=str(path))) as client:
        assert client.get("http://server/health").status_code == 200
    assert process.end(signal.SIGINT) == 0
    assert not path.exists()


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="a device that is always full")
def test_a_full_disk_under_the_log_stops_nothing():
    port = free_port()
    words = ("--port", "1", "--port", str(port), "--device", "null")  # a warning too
    command = [sys.executable, "-m", "thalweg", "serve", *words]
    with open("/dev/full", "w") as full:
        process = subprocess.Popen(command, stdout=full, stderr=full, env=ENVIRONMENT)
    try:
        end = time.monotonic() + 90
        while True:
            assert process.poll() is None, process.returncode
            assert time.monotonic() < end
            with contextlib.suppress(httpx.HTTPError):
                if get(f"http://127.0.0.1:{port}/health").status_code == 200:
                    break
            time.sleep(0.1)
        process.send_signal(signal.SIGTERM)
        assert process.wait(60) == 0
    finally:
        process.kill()


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_processes_that_serve_no_client_get_no_key():
    process = Process("--port", "0", "--device", "null", THALWEG_API_KEY="secret-one", OPENAI_API_KEY="secret-two")
    try:
        url = process.url()
        assert get(f"{url}/v1/models").status_code == 401
        assert get(f"{url}/v1/models", headers={"authorization": "Bearer secret-one"}).status_code == 200
        children = Path(f"/proc/{process.process.pid}/task/{process.process.pid}/children").read_text().split()
        assert children
        for pid in children:
            assert b"secret" not in Path(f"/proc/{pid}/environ").read_bytes()
    finally:
        process.end()
