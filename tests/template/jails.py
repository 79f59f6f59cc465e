"""One child renders the templates of many tests: to start one takes longer than most of what they ask of it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from thalweg.template.jail import Jail


class _Shared(Jail):
    def close(self) -> None:
        """Others may still use it."""

    def end(self) -> None:
        super().close()


class Jails:
    """`used()`: until then every `Chat` has its jails in common with the others. `end()`: no child is left."""

    def __init__(self) -> None:
        self._made: dict[tuple[int, float], _Shared] = {}

    def _jail(self, cells: int, seconds: float) -> Jail:
        return self._made.setdefault((cells, seconds), _Shared(cells, seconds))

    @contextmanager
    def used(self) -> Iterator[None]:
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr("thalweg.template.chat.Jail", self._jail)
            yield

    def end(self) -> None:
        for one in self._made.values():
            one.end()


@contextmanager
def shared() -> Iterator[None]:
    jails = Jails()
    try:
        with jails.used():
            yield
    finally:
        jails.end()
