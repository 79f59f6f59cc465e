"""Templates that use too much are stopped, cost their own request an error, and nobody else anything."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import vocabularies as v
from amounts import some
from jails import Jails
from test_template import CHAT, CHATML, ESCAPES, TEMPLATES, TOOLS

from thalweg.errors import CheckpointError, RequestError, TemplateLimitError, UnavailableError
from thalweg.host import cells, processes
from thalweg.host.processes import ChildGoneError
from thalweg.template.chat import GUEST_SECONDS, Chat, check_template
from thalweg.template.jail import BrokenTemplateError, Jail
from thalweg.template.messages import RESERVED
from thalweg.template.sandbox import ChatTemplate, _environment
from thalweg.template.wire import RenderTask

TESTS = os.pathsep.join(str(p) for p in Path(__file__).parents[:2])
FULL = "{% for m in messages %}{{ m.content }}{% endfor %}"
SPIN = "{% for a in range(99999) %}{% for b in range(99999) %}{% endfor %}{% endfor %}"
BOMBS = [
    "{{ 'a'*100000000 }}",
    SPIN,
    "{% for a in range(99999) %}{% for b in range(99999) %}xxxxxxxxxxxxxxxx{% endfor %}{% endfor %}",
    "{% set ns = namespace(x='a') %}{% for i in range(64) %}{% set ns.x = ns.x ~ ns.x %}{% endfor %}{{ ns.x }}",
    "{{ lipsum(n=100000) }}",
    "{{ 'a'|center(2000000000) }}",
    "{{ '%2000000000d'|format(1) }}",
    "{% macro f() %}{{ f() }}{% endmacro %}{{ f() }}",
    "{{ " + "(" * 20000 + "1" + ")" * 20000 + " }}",
    "{{ 10**1000000 }}",
    "{{ 10**(10**9) }}",
    "{{ (range(99999)|list)*500 }}",
    "{% set x = 'a'*30000000 %}{% for i in range(99999) %}{% if x == x ~ 'b' %}{% endif %}{% endfor %}",
    "{{ messages[0].content * 90000000 }}",
]


def job(source: str, **fields: Any) -> RenderTask:
    return RenderTask(source=source, variables={}, messages=[{"role": "user", "content": "hi"}], **fields)


def said(jail: Jail, source: str) -> str:
    """The error of a template, "" if it has none."""
    try:
        jail.run(job(source))
    except (RequestError, BrokenTemplateError) as e:
        return str(e)
    return ""


def wait(true: Callable[[], bool], seconds: float = 60) -> bool:
    until = time.monotonic() + seconds
    while not true():
        if time.monotonic() > until:
            return False
        time.sleep(0.005)
    return True


def alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


# ---------------------------------------------------------------- limits

RUN_BOMBS = """
import json, resource, sys
from test_jail import BOMBS, BrokenTemplateError, GUEST_SECONDS, Jail, RequestError, job
jail, words, used = Jail(1, GUEST_SECONDS), [], []
jail.run(job("ready"))

def computed():
    ended = resource.getrusage(resource.RUSAGE_CHILDREN)
    return ended.ru_utime + ended.ru_stime

for bomb in BOMBS:
    start = computed()
    try:
        jail.run(job(bomb))
        words.append("rendered")
    except (RequestError, BrokenTemplateError) as e:
        words.append(str(e))
    used.append(computed() - start)
    assert jail.run(job("{{ messages[0].content }}")) == "hi"
jail.close()
children = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss * 1024
print(json.dumps({"words": words, "worst": max(used), "resident": children}))
"""


@pytest.mark.slow
def test_bombs_are_stopped_in_half_a_second_and_128_megabytes() -> None:
    """In a process of its own, whose only children are the ones measured."""
    env = {**os.environ, "PYTHONPATH": TESTS}
    done = subprocess.run([sys.executable, "-c", RUN_BOMBS], capture_output=True, text=True, env=env, check=False)
    assert done.returncode == 0, done.stderr
    figures = json.loads(done.stdout)
    assert "rendered" not in figures["words"], figures["words"]
    stops = {"took longer", "used more", "wrote more"}
    assert stops == {s for s in stops for w in figures["words"] if s in w}, "every limit was needed"
    assert figures["worst"] < GUEST_SECONDS + 1, "seconds of processor time, a child's start among them"
    assert figures["resident"] <= 128 << 20


@pytest.mark.slow
def test_a_bomb_does_not_hold_up_the_models_own_template() -> None:
    chat = Chat(v.byte_level(), CHATML)
    chat.prompt(CHAT)
    refused: list[RequestError] = []

    def bomb() -> None:
        for _ in range(3):
            with pytest.raises(RequestError, match="took longer") as e:
                chat.prompt(CHAT, template=SPIN)
            refused.append(e.value)

    thread = threading.Thread(target=bomb)
    thread.start()
    expected = ChatTemplate(CHATML).render(CHAT)
    while thread.is_alive() and len(refused) < 2:
        assert chat.prompt(CHAT)["prompt"] == expected
    thread.join()
    assert [e.param for e in refused] == ["chat_template"] * 3
    chat.close()


@pytest.mark.slow
def test_a_flood_of_bombs_has_one_process_at_a_time() -> None:
    others = children()
    chat = Chat(v.byte_level(), FULL)
    chat.prompt(CHAT)
    most, refused = 0, []

    def bomb() -> None:
        with pytest.raises(RequestError) as e:
            chat.prompt(CHAT, template="{{ 'a' | center(2000000000) }}")
        refused.append(str(e.value))

    threads = [threading.Thread(target=bomb) for _ in range(8)]
    for thread in threads:
        thread.start()
    while any(t.is_alive() for t in threads):
        most = max(most, len(children() - others))
        assert chat.prompt(CHAT)["prompt"]
    assert len(refused) == 8
    assert all("used more" in r for r in refused)
    assert most <= 4, "two for the model's template, one for the others, one just replaced"
    chat.close()
    assert wait(lambda: children() <= others)


def children() -> set[int]:
    out = set()
    for stat in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError):
            state, parent = stat.read_text().rpartition(")")[2].split()[:2]
            if int(parent) == os.getpid() and state != "Z" and "thalweg.template.cell" in (stat.parent / "cmdline").read_text():
                out.add(int(stat.parent.name))
    return out


@pytest.mark.slow
def test_long_conversations_get_time_memory_and_output_in_proportion() -> None:
    text = "é" * (6 << 20) + "😀"
    jail = Jail(1, 0.5)
    long = RenderTask(source="{{ messages[0].content | trim }}!", variables={}, messages=[{"role": "user", "content": text}])
    assert jail.run(long) == text + "!"
    assert jail.run(job("{{ messages[0].content }}")) == "hi"
    jail.close()


# ---------------------------------------------------------------- what the child may


def test_the_child_has_its_pipes_and_nothing_of_ours() -> None:
    jail = Jail(1, 2)
    jail.run(job(FULL))
    (pid,) = jail.pids()
    proc = Path(f"/proc/{pid}")
    assert {f.name for f in (proc / "fd").iterdir()} == {"0", "1", "2", "3"}
    assert os.readlink(proc / "fd/2") == os.devnull
    assert os.readlink(proc / "fd/3") == f"/proc/{pid}/statm", "how much memory it uses itself"
    limits = {line[:26].strip(): line[26:].split()[:2] for line in (proc / "limits").read_text().splitlines()}
    for name in ("Max open files", "Max processes", "Max file size", "Max core file size"):
        assert limits[name] == ["0", "0"]
    names = [e.split("=")[0] for e in (proc / "environ").read_text().split("\0") if e]
    assert names == ["PYTHONPATH"]
    loaded = [m for m in ("torch", "numpy", "starlette", "tokenizers") if m in (proc / "maps").read_text()]
    assert loaded == []
    jail.close()
    assert not alive(pid)


@pytest.mark.slow
def test_no_template_library_is_loaded_outside_the_child() -> None:
    code = "import sys, thalweg.async_llm, thalweg.server.core.conversation; sys.exit('jinja2' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


@pytest.fixture(scope="module")
def jails() -> Iterator[Jails]:
    made = Jails()
    yield made
    made.end()


@pytest.fixture
def shared(jails: Jails) -> Iterator[None]:
    """Children are those of the tests before: for what breaks none."""
    with jails.used():
        yield


@pytest.mark.usefixtures("shared")
@pytest.mark.parametrize("source", ESCAPES)
def test_templates_of_clients_cannot_reach_python(source: str) -> None:
    chat = Chat(v.byte_level(), None)
    try:
        out = chat.prompt(CHAT, template=source)["prompt"]
    except RequestError:
        return
    finally:
        chat.close()
    assert not any(word in out for word in ("class", "object", "module", "root", "built-in")), out


def outcome(render: Callable[[], Any]) -> Any:
    try:
        return render()
    except RequestError as e:
        return str(e), e.param


@pytest.mark.usefixtures("shared")
@pytest.mark.parametrize("name", TEMPLATES)
@pytest.mark.parametrize("format", [None, "string", "openai"])
@pytest.mark.sampled(2)
def test_the_jail_changes_nothing_about_a_rendering(name: str, format: Any) -> None:
    chat = Chat(v.byte_level(), TEMPLATES[name])
    messages = [CHAT[0], {**CHAT[1], "content": [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]}, CHAT[2]]
    here = ChatTemplate(TEMPLATES[name], v.byte_level().special_tokens)
    for options in ({}, {"add_generation_prompt": False}, {"continue_final_message": True, "add_generation_prompt": False}):
        given = {"content_format": format, **options}
        ours = outcome(partial(chat.render, messages, TOOLS, kwargs={"thinking": False}, **given))
        theirs = outcome(lambda g=given: (here.render(messages, TOOLS, thinking=False, **g), []))
        assert ours == theirs
    chat.close()


@pytest.mark.slow
def test_every_filter_works_where_no_file_can_be_opened() -> None:
    """jinja2 and Python load some of their parts on first use: the child must have them all."""
    jail = Jail(1, 2)
    words = []
    for name in sorted(_environment().filters):
        for value in some(("'a b'", "[1, 2]"), ("'a b'", "3", "[1, 2]", "{'k': 'v'}")):
            for arguments in ("", "(2)", "('a')", "('a', 'b')"):
                words.append(said(jail, "{{ " + f"{value} | {name}{arguments}" + " }}"))
    missing = [w for w in words if any(e in w for e in ("open files", "OSError", "ImportError", "LookupError"))]
    assert missing == []
    assert sum(w == "" for w in words) > some(50, 100), "most calls are right"
    assert jail.run(job("{{ strftime_now('%d %b %Y') }}", now="2031-02-03T00:00:00")) == "03 Feb 2031"
    jail.close()


# ---------------------------------------------------------------- lost children


@pytest.mark.slow
def test_a_child_that_is_killed_costs_nobody_anything() -> None:
    jail = Jail(1, 10)
    slow = job("{% for a in range(300) %}{% for b in range(1000) %}{% endfor %}{% endfor %}done")
    jail.run(job(FULL))
    (idle,) = jail.pids()
    os.kill(idle, signal.SIGKILL)
    assert jail.run(job(FULL)) == "hi"
    (busy,) = jail.pids()
    out: list[str] = []
    thread = threading.Thread(target=lambda: out.append(jail.run(slow)))
    thread.start()
    assert wait(lambda: not jail.pids())
    os.kill(busy, signal.SIGKILL)
    thread.join()
    assert out == ["done"]
    jail.close()


@pytest.mark.slow
def test_a_child_that_is_stopped_is_replaced_and_its_job_done(monkeypatch: pytest.MonkeyPatch) -> None:
    """However long the job might have taken: its time is not waited for."""
    monkeypatch.setattr(processes, "STOPPED_SECONDS", 0.3)
    jail = Jail(1, 1)
    jail.run(job(FULL))
    for _ in range(2):
        (pid,) = jail.pids()
        os.kill(pid, signal.SIGSTOP)
        assert jail.run(job(FULL)) == "hi"
        assert not alive(pid)
    jail.close()


@pytest.mark.slow
def test_a_child_that_is_stopped_while_its_job_is_written_is_replaced(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(processes, "STOPPED_SECONDS", 0.3)
    jail = Jail(1, 1)
    jail.run(job(FULL))
    (pid,) = jail.pids()
    os.kill(pid, signal.SIGSTOP)  # more than the pipe holds is written to it
    long = [{"role": "user", "content": "x" * 2_000_000}]
    assert jail.run(RenderTask(source="{{ messages[0].content | length }}", variables={}, messages=long)) == "2000000"
    assert not alive(pid)
    jail.close()


@pytest.mark.slow
def test_two_children_that_are_stopped_are_nobodys_request(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(processes, "STOPPED_SECONDS", 0.3)
    stopped, made = [], cells.Cell.__init__

    def make(self: cells.Cell, module: str, opening: bytes = b"") -> None:
        made(self, module, opening)
        os.kill(self.pid, signal.SIGSTOP)
        stopped.append(self.pid)

    monkeypatch.setattr(cells.Cell, "__init__", make)
    jail = Jail(1, 1)
    with pytest.raises(UnavailableError, match="stood still; try again"):
        jail.run(job(FULL))
    assert len(stopped) == 2
    assert not any(map(alive, stopped))
    jail.close()


@pytest.mark.slow
def test_a_machine_that_stood_still_is_not_the_templates_doing() -> None:
    """Stopped for longer than a rendering may compute, then going on."""
    jail = Jail(1, 0.2)
    jail.run(job(FULL))
    (pid,) = jail.pids()
    os.kill(pid, signal.SIGSTOP)
    timer = threading.Timer(0.5, os.kill, (pid, signal.SIGCONT))
    timer.start()
    assert jail.run(job(FULL)) == "hi"
    assert jail.pids() == [pid]
    timer.join()
    jail.close()


@pytest.mark.slow
def test_idle_children_that_were_all_killed_cost_nobody_anything() -> None:
    jail = Jail(3, 10)
    slow = job("{% for a in range(100) %}{% for b in range(1000) %}{% endfor %}{% endfor %}done")
    threads = [threading.Thread(target=jail.run, args=(slow,)) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(jail.pids()) > 1
    for pid in jail.pids():
        os.kill(pid, signal.SIGKILL)
    assert jail.run(job(FULL)) == "hi"
    jail.close()


def test_children_that_are_lost_one_after_another_are_nobodys_request(monkeypatch: pytest.MonkeyPatch) -> None:
    class Lost:
        def __init__(self, module: str, opening: bytes) -> None:
            self.pid = 0

        def ask(self, data: bytes, wall: float) -> None:
            raise ChildGoneError(-signal.SIGKILL)

        def end(self) -> None:
            pass

    monkeypatch.setattr("thalweg.host.cells.Cell", Lost)
    with pytest.raises(UnavailableError, match="try again"):
        Jail(1, 1).run(job(FULL))


@pytest.mark.slow
def test_a_models_own_template_that_runs_away_is_not_blamed_on_the_caller(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("thalweg.template.chat.OWN_SECONDS", 0.1)
    chat = Chat(v.byte_level(), SPIN)
    with pytest.raises(TemplateLimitError, match=r"the model's own chat_template: took longer than 0\.1 seconds"):
        chat.prompt(CHAT)
    chat.close()


@pytest.mark.slow
@pytest.mark.parametrize("busy", [False, True])
def test_children_end_with_their_parent(busy: bool) -> None:
    code = f"""
import sys, time
from test_jail import Jail, SPIN, job
jail = Jail(1, 20)
jail.run(job("x"))
print(jail.pids()[0], flush=True)
jail.run(job(SPIN)) if {busy} else time.sleep(60)
"""
    env = {**os.environ, "PYTHONPATH": TESTS}
    parent = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True, env=env)
    assert parent.stdout
    pid = int(parent.stdout.readline())
    assert alive(pid)
    time.sleep(0.1)
    parent.kill()
    parent.wait()
    parent.stdout.close()
    assert wait(lambda: not alive(pid), 15), "the busy one has a deadline too, but not so soon"


# ---------------------------------------------------------------- what callers may say


NAMES = sorted({*RESERVED, *_environment().globals, "bos_token", "eos_token", "_x", "__class__", "a b", ""})


@pytest.mark.parametrize("name", NAMES)
def test_names_of_ours_cannot_be_replaced_by_keyword_arguments(name: str) -> None:
    chat = Chat(v.byte_level(), CHATML)
    with pytest.raises(RequestError, match="chat_template_kwargs") as e:
        chat.prompt(CHAT, kwargs={name: "x"})
    assert e.value.param == "chat_template_kwargs"
    assert chat._own.pids() == [], "and nothing was started for it"


@pytest.mark.slow
def test_a_template_that_does_not_parse_blames_who_sent_it() -> None:
    broken = "ok\n{% for %}"
    with pytest.raises(CheckpointError, match="line 2"):
        check_template(broken)
    chat = Chat(v.byte_level(), broken)
    with pytest.raises(CheckpointError, match="line 2"):
        chat.check()
    with pytest.raises(RequestError, match="chat_template: line 2") as e:
        chat.prompt(CHAT, template=broken)
    assert e.value.param == "chat_template"
    chat.close()


@pytest.mark.parametrize("source", [CHATML, "ok\n{% for %}", None])
@pytest.mark.sampled(2)
def test_what_was_read_ahead_is_there_for_the_check_and_says_nothing_itself(source: str | None) -> None:
    chat = Chat(v.byte_level(), source)
    chat.check_ahead()
    chat._own_threads.shutdown(wait=True)  # that it has been done
    ready = chat._own.pids()
    assert len(ready) == (source is not None)
    if source == CHATML:
        chat.check()
    elif source is not None:
        with pytest.raises(CheckpointError, match="line 2"):
            chat.check()
    assert chat._own.pids() == ready
    chat.close()


@pytest.mark.parametrize("value", [10**30, object(), "\ud800"])
def test_values_that_are_not_json_are_a_request_error(value: Any) -> None:
    chat = Chat(v.byte_level(), CHATML)
    with pytest.raises(RequestError):
        chat.prompt(CHAT, kwargs={"x": value})
    with pytest.raises(RequestError):
        chat.prompt([{"role": "user", "content": "x", "extra": value}])


def test_an_endless_error_message_is_cut() -> None:
    chat = Chat(v.byte_level(), "{{ raise_exception('x' * 1000000) }}")
    with pytest.raises(RequestError) as e:
        chat.prompt(CHAT)
    assert len(str(e.value)) < 2000
    chat.close()
