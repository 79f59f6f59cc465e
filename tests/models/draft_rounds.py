"""The drafts of a run, as the engine receives them from the device."""

from __future__ import annotations

from typing import Any

import pytest

from thalweg.engine.control.speculation.drafter import DeviceDrafter


def record_rounds(monkeypatch: pytest.MonkeyPatch) -> list[tuple[list[int], list[int]]]:
    """(known tokens, drafts after them) of every sequence and round from now on."""
    seen: list[tuple[list[int], list[int]]] = []
    receive = DeviceDrafter.receive

    def record(self: DeviceDrafter, slots: Any, drafts: Any) -> None:
        s = self._slots
        seen.extend((s.tokens[n, : s.known[n]].tolist(), d.tolist()) for n, d in zip(slots, drafts, strict=True))
        receive(self, slots, drafts)

    monkeypatch.setattr(DeviceDrafter, "receive", record)
    return seen
