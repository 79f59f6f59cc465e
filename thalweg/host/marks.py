"""Where a start spends its time: each process writes the moments it passes, where THALWEG_STARTUP_MARKS names a file for them.

`thalweg bench startup` sets it and reads them. Times are the monotonic clock, which all processes of a machine share.
"""

from __future__ import annotations

import time

from thalweg.host import envs


def mark(name: str) -> None:
    """Note that `name` has been reached. Does nothing unless asked for. A file that cannot be written is no reason to
    stop."""
    path = envs.startup_marks()
    if path:
        try:
            with open(path, "a", encoding="utf-8") as f:
                f.write(f"{name} {time.monotonic()}\n")
        except OSError:
            return
