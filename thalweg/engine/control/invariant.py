"""The error of `check()` methods: an invariant is violated. A bug here, never a user's mistake."""

from __future__ import annotations


class InvariantError(AssertionError):
    """Names the wrong count or owner."""


def ensure(condition: object, message: str) -> None:
    """Unlike `assert`, not removed by -O."""
    if not condition:
        raise InvariantError(message)
