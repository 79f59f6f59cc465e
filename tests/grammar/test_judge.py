"""What would crash, stall or fill an engine is refused by a process that can be killed, and costs nobody else anything."""

from __future__ import annotations

import json
import os
import signal
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import grammar_rig as rig
import msgspec
import pytest

from thalweg.errors import UnavailableError
from thalweg.grammar.judge import MEMORY, QUICK, GrammarValidator
from thalweg.grammar.source import GrammarError, GrammarRequest
from thalweg.host import processes
from thalweg.host.jobs import TaskFrame


def chain(n: int) -> dict[str, Any]:
    return {"$ref": "#/$defs/a0", "$defs": {**{f"a{i}": {"$ref": f"#/$defs/a{i + 1}"} for i in range(n)}, f"a{n}": {}}}


def nested(depth: int) -> dict[str, Any]:
    schema: dict[str, Any] = {"type": "integer"}
    for _ in range(depth):
        schema = {"anyOf": [schema, {"items": schema}, {"oneOf": [schema, schema]}, schema, schema, schema, schema]}
    return schema


BOMBS = {
    "a chain of references": ("json", json.dumps(chain(3000))),
    "a longer one": ("json", json.dumps(chain(10000))),
    "nested choices": ("json", json.dumps(nested(4))),
    "many values": ("json", json.dumps({"enum": list(range(140_000))})),
    "a long rule": ("grammar", "root ::= " + " ".join(['"a"'] * 70_000)),
    "many alternatives": ("regex", "|".join(f"w{i}" for i in range(140_000))),
    "deep brackets": ("json", "[" * 200_000),
    "deep parentheses": ("regex", "(" * 100_000 + "a" + ")" * 100_000),
    "deep groups": ("grammar", "root ::= " + "(" * 100_000 + '"a"' + ")" * 100_000),
    "deep lark": ("grammar", "start: " + "(" * 100_000 + '"a"' + ")" * 100_000),
    "itself": ("json", '{"$ref": "#"}'),
    "left recursion": ("grammar", "root ::= a\na ::= b\nb ::= a\n"),
    "a multiple of a prime": ("json", '{"type": "integer", "multipleOf": 999999937, "maximum": 1e300}'),
    "more than a megabyte": ("regex", "a" * (2 << 20)),
}


def worker(pid: int) -> int:
    """The fork that does the jobs of a child."""
    while not (found := Path(f"/proc/{pid}/task/{pid}/children").read_text().split()):
        time.sleep(0.01)  # the one before has just ended
    return int(found[0])


@pytest.fixture(scope="module")
def judge() -> Iterator[GrammarValidator]:
    judge = GrammarValidator(lambda: rig.VOCABULARY)
    yield judge
    judge.close()


@pytest.mark.parametrize(
    "name", [pytest.param(n, marks=pytest.mark.slow) if n in ("many values", "many alternatives") else n for n in BOMBS]
)
@pytest.mark.slow
def test_a_bomb_is_refused_and_the_next_grammar_is_served(judge: GrammarValidator, name: str) -> None:
    kind, text = BOMBS[name]
    with pytest.raises(GrammarError) as caught:
        judge.source(rig.GrammarRequest(kind=kind, text=text))
    assert caught.value.pointer.startswith("#") or kind != "json"
    assert judge.source(rig.asked("json", {"type": "integer"})).json


@pytest.mark.parametrize("text", ["(x+x+)+y", "[a-z]{1,100000}"])
def test_what_only_looks_like_a_bomb_is_served(judge: GrammarValidator, text: str) -> None:
    assert judge.source(rig.asked("regex", text)).text


@pytest.mark.slow
def test_children_keep_to_their_memory(judge: GrammarValidator) -> None:
    for kind, text in list(BOMBS.values())[:6]:
        with pytest.raises(GrammarError):
            judge.source(rig.GrammarRequest(kind=kind, text=text + " "))
    for pid in (*judge.pids(), *map(worker, judge.pids())):
        with open(f"/proc/{pid}/status") as f:
            peak = next(int(line.split()[1]) for line in f if line.startswith("VmHWM"))
        assert peak << 10 < 2 * MEMORY, "512 MiB"


def test_a_verdict_is_reached_once(monkeypatch: pytest.MonkeyPatch) -> None:
    judge, jobs = GrammarValidator(lambda: rig.VOCABULARY), []
    cells = judge._jobs._cells
    ask = cells.ask
    monkeypatch.setattr(cells, "ask", lambda data, wall: jobs.append(data) or ask(data, wall))
    for _ in range(3):
        judge.source(rig.asked("regex", "a"))
        with pytest.raises(GrammarError):
            judge.source(rig.asked("regex", "("))
    assert len(jobs) == 2
    judge.close()


def test_a_child_that_is_killed_is_replaced(judge: GrammarValidator) -> None:
    judge.source(rig.asked("regex", "abc"))
    for pid in judge.pids():
        os.kill(pid, signal.SIGKILL)
    time.sleep(0.05)
    assert judge.source(rig.asked("regex", "abcd"))


@pytest.mark.slow
def test_a_fork_that_is_stopped_is_replaced_with_its_child(monkeypatch: pytest.MonkeyPatch) -> None:
    """The fork has the job, and its child waits for it."""
    monkeypatch.setattr(processes, "STOPPED_SECONDS", 0.3)
    judge = GrammarValidator(lambda: rig.VOCABULARY)
    judge.source(rig.asked("regex", "a"))
    (child,) = judge.pids()
    fork = worker(child)
    os.kill(fork, signal.SIGSTOP)
    assert judge.source(rig.asked("regex", "b"))
    assert child not in judge.pids()
    for _ in range(6000):
        if not Path(f"/proc/{fork}").exists() or "\nState:\tZ" in Path(f"/proc/{fork}/status").read_text():
            break
        time.sleep(0.01)
    else:
        pytest.fail("the fork was left behind")
    judge.close()


SLOW = ("grammar", "root ::= " + " ".join(['"a"'] * 69_000))
"""Takes more time than the quick try has, on any processor, and is refused in the end."""


@pytest.mark.slow
def test_a_bomb_does_not_cost_the_next_grammar_a_new_process() -> None:
    judge = GrammarValidator(lambda: rig.VOCABULARY, seconds=2 * QUICK)
    judge.source(rig.asked("regex", "first"))
    before = judge.pids()
    with pytest.raises(GrammarError, match="took longer"):
        judge.source(rig.GrammarRequest(kind=SLOW[0], text=SLOW[1]))
    assert judge.pids() == before
    assert judge.source(rig.asked("regex", "second"))
    assert judge.pids() == before
    judge.close()


@pytest.mark.slow
def test_bombs_take_turns_and_a_grammar_beside_them_does_not_wait_for_them(monkeypatch: pytest.MonkeyPatch) -> None:
    """Counted in jobs: of the bombs, one at a time has a process for longer than the quick try. The other process is free."""
    judge, at_work, most = GrammarValidator(lambda: rig.VOCABULARY, seconds=0.3), [], []
    cells = judge._jobs._cells
    ask = cells.ask

    def watched(data: bytes, wall: float) -> bytes:
        job = msgspec.msgpack.decode(data[4:], type=TaskFrame[GrammarRequest])
        at_work.append(job.limits.seconds)
        most.append(sum(s > QUICK for s in at_work))
        try:
            return ask(data, wall)
        finally:
            at_work.remove(job.limits.seconds)

    monkeypatch.setattr(cells, "ask", watched)
    with ThreadPoolExecutor(8) as pool:
        bombs = [pool.submit(judge.source, rig.GrammarRequest(kind=SLOW[0], text=SLOW[1] + " " * i)) for i in range(3)]
        while not any(s > QUICK for s in at_work):
            time.sleep(0.005)
        assert judge.source(rig.asked("json", {"type": "integer"}))
        assert not all(b.done() for b in bombs)
        assert all(isinstance(b.exception(), GrammarError | UnavailableError) for b in bombs), "the second: on a busy machine"
    assert max(most) == 1
    judge.close()


def test_bombs_that_would_wait_too_long_are_told_to_come_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("thalweg.grammar.judge.MOST_SLOW", 0)
    judge = GrammarValidator(lambda: rig.VOCABULARY)
    with pytest.raises(UnavailableError, match="try again"):
        judge.source(rig.GrammarRequest(kind=SLOW[0], text=SLOW[1]))
    judge.close()


def test_the_child_may_open_nothing(judge: GrammarValidator) -> None:
    judge.source(rig.asked("regex", "abcde"))
    pid = worker(judge.pids()[0])
    with open(f"/proc/{pid}/limits") as f:
        limits = {line[:26].strip(): line[26:].split()[:2] for line in f}
    for name in ("Max open files", "Max processes", "Max file size", "Max core file size"):
        assert limits[name] == ["0", "0"]
