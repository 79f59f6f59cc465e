"""Work that an engine process starts before it imports its own code. Imports next to nothing."""

from __future__ import annotations

from thalweg.errors import ThalwegError
from thalweg.hal import discovery


def begin(device: str) -> None:
    """Start the platform's work for `--device device` on other threads while this one imports. Errors are raised later, by
    `build`."""
    try:
        platform = discovery.resolve_platform(device)
        if platform.runs_models:
            platform.begin()
    except (ThalwegError, ImportError):
        return
