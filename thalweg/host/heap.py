"""Return freed memory to the system. glibc keeps free memory below a block still in use. After quantising a checkpoint,
parameter by parameter, that was up to four times the size of the weights."""

from __future__ import annotations

import ctypes
from functools import cache
from typing import Any


def trim() -> None:
    """Costs milliseconds. Does nothing where the C library has no such call."""
    call = _malloc_trim()
    if call is not None:
        call(0)


@cache
def _malloc_trim() -> Any:
    try:
        return ctypes.CDLL(None).malloc_trim
    except (AttributeError, OSError, TypeError):  # musl, macOS, Windows
        return None
