"""How much a test draws at random: little in `make check`, all of it in `make test`."""

from typing import TypeVar

T = TypeVar("T")
whole = True
"""Set by conftest.py before any test is imported."""


def some(little: T, all: T) -> T:
    """`little` where slow tests are left out."""
    return all if whole else little
