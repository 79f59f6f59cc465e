"""Tying a process to the one that started it. Imports next to nothing: it runs before anything else is imported."""

from __future__ import annotations

import ctypes
import signal
import sys


def die_with_parent() -> None:
    """Ask the kernel for SIGKILL when the thread that started this process ends (Linux). Elsewhere this does nothing."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(1, signal.SIGKILL)  # PR_SET_PDEATHSIG
