"""Reading what the audit hook (audit/sitecustomize.py) wrote."""

from __future__ import annotations

import contextlib
import os
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, slots=True)
class Event:
    when: float
    pid: int
    name: str
    what: str


@dataclass(frozen=True, slots=True)
class Audit:
    path: Path

    @property
    def env(self) -> dict[str, str]:
        """For the server's environment."""
        ahead = [str(Path(__file__).parent / "audit"), os.environ.get("PYTHONPATH", "")]
        return {"CHAOS_AUDIT": str(self.path), "PYTHONPATH": os.pathsep.join(filter(None, ahead))}

    def events(self, since: float = 0.0) -> list[Event]:
        out = []
        for line in self.path.read_text(errors="replace").splitlines():
            when, pid, name, what = (*line.split(" ", 3), "")[:4]
            if float(when) >= since:
                out.append(Event(float(when), int(pid), name, what))
        return out


@contextlib.contextmanager
def audit() -> Iterator[Audit]:
    handle, name = tempfile.mkstemp(prefix="chaos-audit-")
    os.close(handle)
    try:
        yield Audit(Path(name))
    finally:
        Path(name).unlink(missing_ok=True)
