"""Memory that was freed, given back to the system. glibc keeps what lies below something still in use: after a checkpoint was
rounded, parameter by parameter, that was as much as four times the weights themselves."""

from __future__ import annotations

import ctypes
from functools import cache
from typing import Any


def trim() -> None:
    """Milliseconds. Nothing where the C library has no such call."""
    call = _malloc_trim()
    if call is not None:
        call(0)


@cache
def _malloc_trim() -> Any:
    try:
        return ctypes.CDLL(None).malloc_trim
    except (AttributeError, OSError, TypeError):  # musl, macOS, Windows
        return None
