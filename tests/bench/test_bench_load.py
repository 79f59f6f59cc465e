"""The load generator's own arithmetic and its reading of streams, against servers that do exactly what the test says."""

from __future__ import annotations

import asyncio
import json
from math import sqrt
from pathlib import Path

import numpy as np
import pytest

from thalweg.bench import datasets, report
from thalweg.bench.client import Address, Client, Outcome
from thalweg.bench.serve import gaps, send_all
from thalweg.cli import main
from thalweg.errors import ConfigError

HEAD = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n"
DONE = b"data: [DONE]\n\n"


def event(text: str, **more: object) -> bytes:
    return b"data: " + json.dumps({"choices": [{"index": 0, "text": text}], **more}).encode() + b"\n\n"


def chunk(data: bytes) -> bytes:
    return f"{len(data):x}\r\n".encode() + data + b"\r\n"


async def ask(answer: list[bytes | float], times: int = 1) -> list[Outcome]:
    """Outcomes of requests to a server that writes these bytes (and sleeps these seconds) for each."""

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while (head := await reader.readuntil(b"\r\n\r\n")) and not reader.at_eof():
            length = int(next(x for x in head.split(b"\r\n") if x.lower().startswith(b"content-length")).split(b":")[1])
            await reader.readexactly(length)
            for part in answer:
                if isinstance(part, float):
                    await asyncio.sleep(part)
                    continue
                writer.write(part)
                await writer.drain()
            if b"chunked" not in b"".join(x for x in answer if isinstance(x, bytes)):
                break
        writer.close()

    async def guarded(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            await serve(reader, writer)
        except (asyncio.IncompleteReadError, ConnectionError):
            writer.close()

    server = await asyncio.start_server(guarded, "127.0.0.1", 0)
    client = Client(Address("127.0.0.1", server.sockets[0].getsockname()[1], "/v1/completions"), {}, keep_text=True)
    out = [await client.stream({}) for _ in range(times)]
    await client.close()
    server.close()
    return out


async def test_times_are_those_the_server_took_and_tokens_those_it_counted() -> None:
    usage = b'data: {"choices":[],"usage":{"prompt_tokens":7,"completion_tokens":5}}\n\n'
    answer = [HEAD, 0.05, chunk(event("a")), 0.03, chunk(event("bc")), chunk(usage + DONE), b"0\r\n\r\n"]
    for o in await ask(answer, times=2):  # the second on the same connection
        assert o.ok, o.error
        assert (o.prompt_tokens, o.output_tokens, o.text) == (7, 5, "abc")
        assert o.ttft >= 0.05
        assert len(o.itls) == 1
        assert o.itls[0] > 0  # of two events that a busy client read late there is less between them than the server waited
        assert o.latency >= 0.08
        assert o.latency == pytest.approx(o.ttft + o.itls[0])
        assert o.tpot == pytest.approx((o.latency - o.ttft) / 4)


async def test_events_cut_anywhere_are_read_whole() -> None:
    stream = event("é") + event("x") + DONE
    pieces: list[bytes | float] = [chunk(bytes([b])) for b in stream]
    (o,) = await ask([HEAD, *pieces, b"0\r\n\r\n"])
    assert o.ok
    assert o.text == "éx"


@pytest.mark.parametrize(
    ("answer", "words"),
    [
        ([HEAD, chunk(event("a")), b"0\r\n\r\n"], "without [DONE]"),
        ([HEAD, chunk(event("a"))[:-9]], "closed before the answer ended"),
        ([HEAD, chunk(b'data: {"error":{"message":"no memory"}}\n\n' + DONE), b"0\r\n\r\n"], "no memory"),
        ([HEAD, chunk(DONE), b"0\r\n\r\n"], "no token"),
        ([b"HTTP/1.1 429 Too Many\r\nContent-Length: 4\r\n\r\nbusy"], "status 429: busy"),
        ([b"nonsense\r\n\r\n"], "unexpected answer"),
    ],
)
async def test_an_answer_that_is_not_whole_counts_as_failed_with_the_reason(answer: list[bytes | float], words: str) -> None:
    if answer[-1] == chunk(event("a"))[:-9]:
        answer = [HEAD.replace(b"Transfer-Encoding: chunked", b"Content-Length: 500"), event("a")]
    (o,) = await ask(answer)
    assert not o.ok
    assert words in o.error


async def test_nobody_listening_is_a_failed_request() -> None:
    o = await Client(Address("127.0.0.1", 9, "/"), {}).stream({})
    assert "refused" in o.error.lower() or "Connect call failed" in o.error


async def test_a_closed_loop_never_has_more_open_than_told() -> None:
    now, most = 0, 0

    class Counting(Client):
        async def stream(self, body: object, request_id: str = "") -> Outcome:  # type: ignore[override]
            nonlocal now, most
            now, most = now + 1, max(most, now + 1)
            await asyncio.sleep(0.001)
            now -= 1
            return Outcome(0.0, ok=True)

    client = Counting(Address("h", 1, "/"), {})
    outcomes, _ = await send_all(client, [{}] * 50, np.zeros(50), 7, "")
    assert (most, len(outcomes)) == (7, 50)


def test_gaps_are_gamma_distributed_with_the_rate_asked_for() -> None:
    for burstiness in (0.5, 1.0, 4.0):
        due = gaps(20_000, rate=50, burstiness=burstiness, seed=1)
        each = np.diff(due)
        assert due[-1] == pytest.approx(400)
        assert each.std() / each.mean() == pytest.approx(1 / sqrt(burstiness), rel=0.05)  # a gamma law's variation
    assert not gaps(5, float("inf"), 1, 0).any()
    ramp = gaps(10_000, float("inf"), 1, 0, ("linear", 1, 100))
    assert np.diff(ramp[:1000]).mean() > 3 * np.diff(ramp[-1000:]).mean()


def test_figures_of_a_run_worked_out_by_hand() -> None:
    a = Outcome(10.0, ok=True, ttft=0.1, itls=[0.1, 0.2], latency=0.4, prompt_tokens=4, output_tokens=3)
    b = Outcome(10.5, ok=True, ttft=0.3, itls=[], latency=0.3, prompt_tokens=6, output_tokens=1)
    c = Outcome(11.0, error="lost")
    got = report.summary([a, b, c], 2.0, percents=[50, 100], metrics=["ttft", "itl"], levels={"ttft": 200, "tpot": 160})
    expected = {
        "completed": 2, "failed": 1, "total_input_tokens": 10, "total_output_tokens": 4, "request_throughput": 1.0,
        "request_goodput": 0.5, "output_throughput": 2.0, "total_token_throughput": 7.0, "max_concurrent_requests": 1,
        "max_output_tokens_per_s": 4.0, "mean_ttft_ms": 200.0, "p50_ttft_ms": 200.0, "p100_ttft_ms": 300.0,
        "mean_itl_ms": 150.0, "mean_tpot_ms": 150.0, "mean_e2el_ms": 350.0,
    }  # fmt: skip
    assert {k: got[k] for k in expected} == pytest.approx(expected)
    assert "p50_e2el_ms" not in got


def test_random_prompts_have_the_lengths_asked_for_and_repeat_by_seed() -> None:
    from thalweg.checkpoint.hub import resolve_model
    from thalweg.text.tokenizer import load_tokenizer

    tokenizer = load_tokenizer(resolve_model("thalweg-nano"))
    spec = datasets.Random(40, 10, ratios=(0.25, 0.5), prefix_len=8)
    asks = datasets.random_asks(spec, 60, 3, tokenizer)
    assert asks == datasets.random_asks(spec, 60, 3, tokenizer) != datasets.random_asks(spec, 60, 4, tokenizer)
    counted = [len(tokenizer.encode(str(x.prompt), add_special_tokens=False)) for x in asks]
    assert counted == [x.input_len for x in asks]
    assert 8 + 28 <= min(counted) < max(counted) <= 8 + 52
    assert {5 <= x.output_len <= 15 for x in asks} == {True}
    plain = datasets.random_asks(datasets.Random(5, 2, prefix_len=3), 4, 0, None)
    assert {tuple(x.prompt[:3]) for x in plain} == {tuple(plain[0].prompt[:3])}


def test_files_are_read_shuffled_and_repeated(tmp_path: Path) -> None:
    file = tmp_path / "d.jsonl"
    file.write_text("".join(json.dumps({"prompt": f"p{i}", "output_tokens": i + 1}) + "\n" for i in range(5)))
    common = {"output_len": None, "shuffle": False, "repeat": False}
    asks = datasets.file_asks("custom", str(file), 9, 0, None, **common)  # type: ignore[arg-type]
    assert [(x.prompt, x.output_len) for x in asks] == [(f"p{i}", i + 1) for i in range(5)]
    assert len(datasets.file_asks("custom", str(file), 9, 0, None, **{**common, "repeat": True})) == 9  # type: ignore[arg-type]
    file.write_text('{"prompt": 5}')
    with pytest.raises(ConfigError, match="line 1"):
        datasets.file_asks("custom", str(file), 1, 0, None, **common)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--profile"], "--profile is not supported"),
        (["--dataset-name", "sonnet"], "--dataset-name"),
        (["--dataset-name", "sharegpt"], "--dataset-path"),
        (["--goodput", "itl:5"], "--goodput"),
        (["--request-rate", "0"], "--request-rate"),
        (["--endpoint", "/v1/embeddings"], "--endpoint"),
        (["--base-url", "ftp://x"], "--base-url"),
        (["--ramp-up-strategy", "linear"], "--ramp-up-strategy"),
        (["--percentile-metrics", "speed"], "--percentile-metrics"),
        (["--random-range-ratio", "2"], "--random-range-ratio"),
        (["--save-detailed"], "--save-result"),
        (["--skip-tokenizer-init", "--backend", "openai-chat"], "--skip-tokenizer-init"),
        (["--insecure"], "--insecure"),
        (["--plot", "x.pdf"], "--plot"),
    ],
)
def test_a_flag_that_cannot_be_honoured_is_refused_before_anything_is_sent(
    words: list[str], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["bench", "serve", "--port", "9", *words]) == 2
    assert said in capsys.readouterr().err
