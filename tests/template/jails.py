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


@contextmanager
def shared() -> Iterator[None]:
    """Until the end every `Chat` has its jails in common with the others. No child is left."""
    made: dict[tuple[int, float], _Shared] = {}

    def jail(cells: int, seconds: float) -> Jail:
        return made.setdefault((cells, seconds), _Shared(cells, seconds))

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("thalweg.template.chat.Jail", jail)
        try:
            yield
        finally:
            for one in made.values():
                one.end()
