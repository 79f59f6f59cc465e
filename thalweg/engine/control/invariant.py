"""What `check()` methods raise: the books do not balance. A bug here, never a user's mistake."""

from __future__ import annotations


class InvariantError(AssertionError):
    """Says in words which count or owner is wrong."""


def ensure(condition: object, message: str) -> None:
    """Unlike `assert`, not removed by -O."""
    if not condition:
        raise InvariantError(message)
