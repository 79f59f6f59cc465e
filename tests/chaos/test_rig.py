"""The rig itself: it sees a lost, doubled or wrong token, leaves nothing running, and passes nothing it could not measure."""

import asyncio
import json
import os
import random
import signal
import socket
import subprocess
import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[1] / "rigs"))

import oracle
from chaosrig import proc
from chaosrig.audited import audit
from chaosrig.context import Context, Row
from chaosrig.http import ask, dechunk, raw, split, whole
from chaosrig.load import Crowd, Stream, draw, play
from chaosrig.proxy import Faults, Proxy
from chaosrig.server import Probing, Server
from chaosrig.table import Figure, RowFailedError, as_json, at_least, at_most, none_of, percentile, render
from chaosrig.truth import continuation, plain_tokens, random_prompt, text_of
from rows import ROWS

HERE = Path(__file__).parent


def finished(prompt=(400, 401), n=12) -> Stream:
    tokens = continuation(prompt, n)
    return Stream(list(prompt), n, status=200, tokens=tokens, text=text_of(tokens), finish="length", ended="done")


# ------------------------------------------------------------------ judging


def test_the_one_pass_oracle_is_the_plain_one():
    rng = random.Random(5)
    for salt, vocab in ((0, 1024), (9, 64)):
        prompt = [rng.randrange(vocab) for _ in range(17)]
        assert continuation(prompt, 40, salt, vocab) == oracle.expected(salt, prompt, 40, vocab)


def test_the_right_stream_is_right():
    assert finished().broken() is None


@pytest.mark.parametrize("spoil", ["lost", "doubled", "swapped", "changed", "extra", "short"])
def test_one_spoiled_token_is_seen(spoil):
    stream = finished()
    t = stream.tokens
    {
        "lost": lambda: t.pop(5),
        "doubled": lambda: t.insert(5, t[5]),
        "swapped": lambda: t.__setitem__(slice(4, 6), [t[5], t[4]]),
        "changed": lambda: t.__setitem__(3, (t[3] + 1) % 1024),
        "extra": lambda: t.append(t[-1]),
        "short": lambda: t.pop(),
    }[spoil]()
    assert stream.wrong()


def test_wrong_text_and_wrong_ends_are_seen():
    stream = finished()
    stream.text = stream.text[:-1]
    assert "text differs" in stream.wrong()
    for ended in ("cut", "timeout", "error", "refused", "reset", "aborted", ""):
        stream = finished()
        stream.ended = ended
        assert stream.broken()


def test_prompts_are_whole_characters():
    assert len(plain_tokens()) > 500
    assert all(t in plain_tokens() for t in random_prompt(random.Random(1), 50))


# ------------------------------------------------------------------ figures


def test_nothing_measured_never_passes():
    assert percentile([], 99) == float("inf")
    assert not at_most("X1", "ms", 50, percentile([], 99), 0).ok


def test_figures_pass_on_their_targets_side():
    assert at_most("X1", "a", 5, 5, 1).ok
    assert not at_most("X1", "a", 5, 5.1, 1).ok
    assert at_least("X1", "a", 5, 5, 1).ok
    assert not at_least("X1", "a", 5, 4.9, 1).ok
    assert none_of("X1", "a", [], 3).ok
    bad = none_of("X1", "a", ["first", "second"], 3)
    assert (bad.ok, bad.value) == (False, 2)
    assert "first" in bad.note
    assert [percentile([3, 1, 2], p) for p in (0, 50, 100)] == [1, 2, 3]


def test_table_and_json_name_the_failed_rows():
    figures = [at_most("X1", "a", 5, 1, 7), none_of("X2", "b", ["why it failed"], 1), at_most("X3", "c", 1, float("inf"), 0)]
    text = render(figures)
    assert "why it failed" in text
    assert text.endswith("3 rows, 1 pass, 2 FAIL: X2 X3")
    read = json.loads(as_json(figures, {"seed": 4}), parse_constant=lambda c: pytest.fail(c))
    assert read["seed"] == 4
    assert read["figures"][2]["value"] == "inf"


def main_module():
    import importlib.util

    spec = importlib.util.spec_from_file_location("chaos_main", HERE / "__main__.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


async def test_a_row_that_cannot_run_fails_with_the_reason_and_the_others_go_on():
    async def crashes(ctx):
        raise RowFailedError("the server did not start: unknown flag")

    async def hangs(ctx):
        await asyncio.sleep(60)

    async def works(ctx):
        return [Figure("X4", "seen", "1", 1, True, 1)]

    rows = [Row(("X1", "X2"), crashes, alone=False), Row(("X3",), hangs, patience=0.05), Row(("X4",), works)]
    figures = await main_module().run_rows(rows, Context(seed=7, full=False))
    assert [(f.row, f.ok, f.seed) for f in figures] == [("X1", False, 7), ("X2", False, 7), ("X3", False, 7), ("X4", True, 7)]
    assert "unknown flag" in figures[0].note
    assert "not finished within" in figures[2].note


@pytest.mark.slow
def test_a_told_rig_ends_with_its_servers_and_still_prints_its_table(tmp_path):
    words = [sys.executable, str(HERE), "--rows", "G5", "C4", "--seed", "1", "--json", str(tmp_path / "figures.json")]
    mark = f"chaos-test-{os.getpid()}-{random.random()}"
    run = subprocess.Popen(
        words, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env={**os.environ, "CHAOS_MARK": mark}
    )
    try:
        assert "G5" in run.stderr.readline()
        run.send_signal(signal.SIGTERM)
        said, _ = run.communicate(timeout=60)
    finally:
        run.kill()
    assert run.returncode == 1
    assert "interrupted" in said
    read = json.loads((tmp_path / "figures.json").read_text())["figures"]
    assert [(f["row"], f["figure"]) for f in read] == [("C4", "carried through"), ("G5", "accepted")]
    left = [int(p) for p in os.listdir("/proc") if p.isdigit() and mark.encode() in proc.environment(int(p))]
    assert [proc.cmdline(p) for p in left] == []


def test_rows_are_chosen_by_name_or_letter_and_unknown_ones_refused():
    main = main_module()
    assert {i for row in main.select(["A", "C8"]) for i in row.ids} == {"A1", "A2", "A3", "A4", "A5", "A8", "C1", "C8"}
    with pytest.raises(SystemExit, match="no such row: Q7"):
        main.select(["Q7"])


def test_every_wanted_row_is_there_once():
    wanted = (
        "A1 A2 A3 A4 A5 A8 B1 B3 C1 C2 C4 C5 C7 C8 C9 D1 D2 D3 D4 D5 E1 E2 E3 E4 F1 F2 F3 G3 G4 G5 G6 G7 G8 H1 H2 H3 "
        "K1 K2 K9 K10 K11 K12 L1 L2 M3 M5 M9 N1 N2 N3 N4 N5 N6 N7 N8 N9 N10 O1 O2"
    )
    assert sorted(i for row in ROWS for i in row.ids) == sorted(wanted.split())


def test_a_seed_draws_the_same_requests_whichever_rows_run():
    one, two = (Context(3, False).rng("C1") for _ in range(2))
    assert draw(one, 5).prompt == draw(two, 5).prompt
    assert Context(3, False).rng("C9").random() != Context(3, False).rng("C1").random()


# ------------------------------------------------------------------ wires


def test_answers_are_split_as_they_were_said():
    said = (
        b"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 400 Bad Request\r\nContent-Length: 2\r\nConnection: close\r\n\r\nab"
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n1;x=y\r\nd\r\n0\r\n\r\n"
    )
    first, second = split(said)
    assert (first.status, first.body, first.headers["connection"]) == (400, b"ab", "close")
    assert (second.status, second.body) == (200, b"abcd")
    assert not whole(said[:60])
    assert dechunk(b"5\r\nabc") == (b"abc", -1)


async def echo(reader, writer):
    while data := await reader.read(1 << 16):
        writer.write(data)
    writer.write(b"end")
    writer.close()


async def through(proxy_faults, data=b"0123456789" * 20, half_close=True):
    server = await asyncio.start_server(echo, "127.0.0.1", 0)
    async with server, Proxy(server.sockets[0].getsockname()[1], **proxy_faults) as proxy:
        return await raw(proxy.port, data, timeout=2, half_close=half_close)


async def test_the_proxy_slices_without_changing_a_byte():
    data = bytes(range(256)) * 8
    assert await through({"down": Faults(slices=7), "up": Faults(slices=5)}, data) == (data + b"end", "")


async def test_the_proxy_resets_in_the_middle():
    said, how = await through({"down": Faults(reset_after=30, slices=10)})
    assert how == "reset"
    assert len(said) < 200


async def test_the_proxy_half_closes_for_a_client_that_did_not():
    said, how = await through({"up": Faults(half_close_after=1)}, half_close=False)
    assert (said, how) == (b"0123456789" * 20 + b"end", "")


async def test_the_proxy_holds_the_rate():
    start = asyncio.get_running_loop().time()
    await through({"down": Faults(rate=1000)})
    assert asyncio.get_running_loop().time() - start >= 0.2


# ------------------------------------------------------------------ processes


def test_proc_tells_the_living_from_the_dead():
    child = subprocess.Popen([sys.executable, "-S", "-c", "input()"], stdin=subprocess.PIPE, start_new_session=True)
    try:
        assert proc.alive(child.pid)
        assert proc.in_session(child.pid) == [child.pid]
        assert proc.sample(child.pid).fds >= 3
        child.kill()
        os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT)
        assert not proc.alive(child.pid)  # a zombie
        assert proc.in_session(child.pid) == []
    finally:
        child.kill()
        child.wait()
        child.stdin.close()
    assert proc.stat(child.pid) == []


@pytest.mark.slow
async def test_a_server_is_watched_probed_and_ended_with_all_it_started():
    rng = random.Random(1)
    with audit() as record:
        async with Server(knobs={"base": 0.001}, env=record.env) as server:
            engine = await server.next_engine(None)
            async with Probing(server.port, "/livez", interval=0.01) as probing:
                crowd = Crowd(server.port, 3, rng, (4, 9))
                await asyncio.sleep(0.4)
                streams = await crowd.stop()
            assert len(streams) > 3
            assert [s.broken() for s in streams if s.broken()] == []
            assert len(probing.seconds("/livez")) > 5
            gone = await play(server.port, draw(rng, 500), abort_after=2)
            assert (gone.ended, gone.wrong()) == ("aborted", None)
            assert not any((await server.idle()).values())
            assert (await ask(server.port, "GET", "/metrics")).status == 200
            everything = server.processes()
            assert {server.pid, engine} <= set(everything)
        assert not any(proc.alive(pid) for pid in everything)
        assert not server.tmp.exists()
        assert {e.pid for e in record.events()} >= {server.pid, engine}


@pytest.mark.slow
async def test_a_server_that_cannot_start_is_a_reason_and_no_process():
    with socket.create_server(("127.0.0.1", 0)) as taken, pytest.raises(RowFailedError, match=r"did not start.*--port"):
        async with Server(port=taken.getsockname()[1]):
            pass


@pytest.mark.slow
async def test_a_dead_engine_shows_in_the_rig():
    """The rig sees what it is there to see: without its engine for a while a stream pauses, and the pid changes."""
    async with Server(knobs={"base": 0.01}, max_restarts=3) as server:
        stream = draw(random.Random(2), 150)
        playing = asyncio.create_task(play(server.port, stream))
        while len(stream.tokens) < 5:
            await asyncio.sleep(0.01)
        engine = await server.next_engine(None)
        os.kill(engine, signal.SIGKILL)
        assert await server.next_engine(engine) != engine
        await playing
    assert stream.broken() is None
    assert max(b - a for a, b in zip(stream.times, stream.times[1:], strict=False)) > 0.1


LONG = {"L1", "M9"}
"""Rows of half a minute that wait for load to build up. `make chaos` and `make nightly` run them."""


def name_row(row):
    return "-".join(row.ids)


@pytest.mark.slow
@pytest.mark.sampled(4, 12)
@pytest.mark.parametrize(
    "row", [pytest.param(r, marks=pytest.mark.nightly if LONG & {*r.ids} else ()) for r in ROWS], ids=name_row
)
async def test_row_keeps_its_promises_in_its_short_form(row):
    """No time is judged here: that is for `make chaos`, on a machine of its own."""
    figures = await main_module().run_row(row, Context(seed=1, full=False))
    assert figures
    assert all(f.ok or f.measured for f in figures), render(figures)
