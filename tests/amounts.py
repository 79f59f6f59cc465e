"""How much a test draws at random: little in `make check`, all of it in `make test`."""

whole = True
"""Set by conftest.py before any test is imported."""


def some(little: int, all: int) -> int:
    """`little` where slow tests are left out."""
    return all if whole else little
