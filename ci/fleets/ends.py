"""The ends of whole servers, their API processes and engines: a request ends with the same text, or with an error in time."""

from __future__ import annotations

import signal
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any, Protocol

import httpx

from fleets.fleet import REQUEST_SECONDS, Fleet, Place
from fleets.processes import Process

SIGNALS = {signal.SIGKILL: "killed", signal.SIGSTOP: "stopped"}
PHASES = {"prompt": 0, "answer": 40}
"""Parts of the answer before the signal. 0: it is sent while the prompt is computed or handed over."""
SLACK = 10.0
"""Seconds beyond the bound of a request."""
FIELDS: dict[str, Any] = {
    "messages": [{"role": "user", "content": "Count from 1 to 300."}],
    "ignore_eos": True,
    "max_tokens": 600,
}


class Running(Protocol):
    """As `claims.Trial`."""

    fleet: Fleet
    place: Place
    url: str
    direct: str

    def ask(self, url: str, **fields: Any) -> dict[str, Any]: ...

    def stream(self, url: str, **fields: Any) -> Iterator[dict[str, Any]]: ...


def end_servers(trial: Running) -> str:
    """`kill -9` and SIGSTOP of each server with a role, in each phase of a request. "-": the fleet has no roles.

    Afterwards the server is started again, or goes on, and the fleet must answer as before."""
    roles = trial.fleet.find_roles(trial.place)
    if not roles:
        return "- its servers have no roles"
    wanted = trial.ask(trial.direct, **FIELDS)["choices"][0]["message"]["content"]
    problems = []
    for role, process in roles.items():
        for number, verb in SIGNALS.items():
            for phase, parts in PHASES.items():
                ended = _end_once(trial, process, number, parts, wanted)
                print(f"    {role} {verb} in the {phase}: {ended}", flush=True)
                if ended.startswith("wrong"):
                    problems.append(f"{role} {verb} in the {phase}: {ended}")
                if problem := _revive(trial, process, number):
                    return "; ".join([*problems, f"after {role} was {verb}: {problem}"])
    return "; ".join(problems)


def _end_once(trial: Running, process: Process, number: signal.Signals, parts: int, wanted: str) -> str:
    """How a request ended whose server got a signal. It begins with "wrong" if it must not end so."""
    text, seen, began = "", 0, time.monotonic()
    timer = threading.Timer(0.02, process.signal, [number])
    if not parts:
        timer.start()
    try:
        for delta in trial.stream(trial.url, **FIELDS):
            text += delta.get("content") or ""
            seen += 1
            if seen == parts:
                process.signal(number)
    except (httpx.HTTPError, ValueError) as e:
        ended = f"{type(e).__name__}: {e}"[:200]
    else:
        ended = "the same text" if text == wanted else f"wrong text: {text!r:.100}"
    if not parts:
        timer.join()
    seconds = time.monotonic() - began
    late = seconds > REQUEST_SECONDS + SLACK
    return f"wrong: after {seconds:.0f} s, {ended}" if late else f"{ended} ({seconds:.1f} s)"


def _revive(trial: Running, process: Process, number: signal.Signals) -> str:
    """Start the server again, or let it go on. A reason if the fleet does not answer then."""
    if number is signal.SIGKILL or trial.fleet.forgets:
        process.restart()
    else:
        process.signal(signal.SIGCONT)
    end, why = time.monotonic() + 90, ""
    wait = _read(lambda: trial.ask(trial.direct))
    while time.monotonic() < end:
        try:
            wanted = wait()
            got = _read(lambda: trial.ask(trial.url))()
        except (httpx.HTTPError, ValueError) as e:
            why = f"{type(e).__name__}: {e}"[:200]
            time.sleep(0.5)
            continue
        return "" if got == wanted else f"{got!r:.100} instead of {wanted!r:.100}"
    return f"no answer in 90 s: {why}"


def _read(call: Callable[[], dict[str, Any]]) -> Callable[[], str]:
    return lambda: str(call()["choices"][0]["message"]["content"])
