"""Output streams of processes that must outlive their log. Output is dropped if it cannot be written (disk full, reader
gone)."""

from __future__ import annotations

import contextlib
import io
import os
import sys


class _Sink(io.RawIOBase):
    """Bytes to a descriptor, or nowhere. Never raises."""

    def __init__(self, fd: int) -> None:
        self._fd = fd

    def fileno(self) -> int:
        return self._fd

    def isatty(self) -> bool:
        return os.isatty(self._fd)

    def writable(self) -> bool:
        return True

    def write(self, data: object) -> int:
        view = memoryview(data)  # type: ignore[arg-type]
        size = view.nbytes
        with contextlib.suppress(OSError):
            while view:
                view = view[os.write(self._fd, view) :]
        return size


def install() -> None:
    """From now on the process's own sys.stdout and sys.stderr drop output that they cannot write."""
    for name, number in (("stdout", 1), ("stderr", 2)):
        stream = getattr(sys, name)
        try:
            own = stream is getattr(sys, f"__{name}__") and stream.fileno() == number
        except (AttributeError, OSError, ValueError):
            continue
        if own:
            result = io.TextIOWrapper(
                _Sink(number),  # type: ignore[type-var]
                encoding=stream.encoding,
                errors=stream.errors,
                line_buffering=True,
                write_through=True,
            )
            setattr(sys, name, result)
            setattr(sys, f"__{name}__", result)
