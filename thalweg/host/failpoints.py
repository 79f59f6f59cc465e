"""Faults on demand, for tests of recovery: `fp("engine.step", token=...)` at the places worth breaking.

THALWEG_FAILPOINTS names them: `point[:condition=value]...:action`, several separated by `;`. A point acts when
every condition it names has that value (or, for an array, holds it). Actions: crash (SIGSEGV), kill (SIGKILL), exit
(status 3), raise, hang. Unset, as in every real run, a call costs one comparison. Example: `engine.step:token=77:crash`.
"""

from __future__ import annotations

import os
import signal
import time
from dataclasses import dataclass
from typing import Any

import numpy as np

from thalweg.errors import ConfigError
from thalweg.host import envs

ACTIONS = ("crash", "kill", "exit", "raise", "hang")


class FailpointError(RuntimeError):
    """What `raise` raises."""


@dataclass(frozen=True, slots=True)
class Failpoint:
    point: str
    conditions: tuple[tuple[str, int], ...]
    action: str

    def act(self) -> None:
        if self.action == "crash":
            os.kill(os.getpid(), signal.SIGSEGV)
        elif self.action == "kill":
            os.kill(os.getpid(), signal.SIGKILL)
        elif self.action == "exit":
            os._exit(3)
        elif self.action == "hang":
            while True:
                time.sleep(3600)
        raise FailpointError(f"failpoint {self.point}")


def parse(text: str) -> tuple[Failpoint, ...]:
    """ConfigError names the wrong part."""
    result = []
    for part in filter(None, (p.strip() for p in text.split(";"))):
        point, *conditions, action = part.split(":")
        pairs = [f.partition("=") for f in conditions]
        if not point or action not in ACTIONS or not all(eq and value.lstrip("-").isdecimal() for _, eq, value in pairs):
            raise ConfigError(f"THALWEG_FAILPOINTS: {part!r} is not point[:condition=number]...:{'|'.join(ACTIONS)}")
        result.append(Failpoint(point, tuple((name, int(value)) for name, _, value in pairs), action))
    return tuple(result)


_ACTIVE = parse(envs.failpoints())


def fp(point: str, **conditions: Any) -> None:
    """Fail here if THALWEG_FAILPOINTS says so. conditions: numbers or arrays of numbers."""
    if not _ACTIVE:
        return
    for f in _ACTIVE:
        if f.point == point and all(
            name in conditions and bool(np.any(np.asarray(conditions[name]) == v)) for name, v in f.conditions
        ):
            f.act()
