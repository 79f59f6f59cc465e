"""What an engine process sets going before it imports its own code. Imports next to nothing."""

from __future__ import annotations

from thalweg.errors import ThalwegError
from thalweg.hal import discovery


def begin(device: str) -> None:
    """Let the platform of `--device device` begin what other threads can do while this one imports. What is not there is
    refused by `build`."""
    try:
        platform = discovery.resolve_platform(device)
        if platform.runs_models:
            platform.begin()
    except (ThalwegError, ImportError):
        return
