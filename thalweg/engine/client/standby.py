"""Starting engine processes ahead of time. Imports next to nothing: it runs before anything slow is imported here."""

from __future__ import annotations

import contextlib
from typing import Any

from thalweg.config import EngineArgs
from thalweg.engine.ipc import port
from thalweg.engine.ipc.pair import End, pair
from thalweg.host import processes


class Standby:
    """An engine process that has loaded its code and waits for a model. Most of a start is that loading, so a standby process
    makes a start, or a restart, short. It holds no device and no weights. Made without an event loop."""

    def __init__(self, device: str, expected: EngineArgs | None = None) -> None:
        """device: the expected `--device`. expected: the arguments it will serve, if they follow at once: it may then reserve
        memory for the weights. A mere standby must not."""
        if expected is not None and expected.nnodes > 1 and not expected.node_rank:
            port.keep_port(expected.master_addr, expected.master_port)
        self._sock, theirs = pair()
        with theirs:
            try:
                fds = (theirs.fileno(), *port.inheritable())
                words = (str(fds[0]), device, *map(str, fds[1:]))
                self._process = processes.Process("thalweg.engine.main", *words, inherit=fds)
            except BaseException:
                self._sock.close()
                raise
        self._taken = False
        try:
            self._tell(expected)
        except BaseException:
            self.end()
            raise

    def _tell(self, expected: EngineArgs | None) -> None:
        """A process that has already died is detected later."""
        from thalweg.engine import messages as m  # while the process starts
        from thalweg.engine.ipc.codec import Codec

        with contextlib.suppress(OSError):
            self._sock.sendall(Codec[Any](m.ToCore).encode(m.StartHint(expected)))

    @property
    def alive(self) -> bool:
        return not self._taken and self._process.returncode is None

    @property
    def is_taken(self) -> bool:
        return self._taken

    @property
    def pid(self) -> int:
        return self._process.pid

    def take(self) -> tuple[processes.Process, End]:
        """The process and our end of its channel. The caller ends both from now on."""
        self._taken = True
        return self._process, self._sock

    def end(self) -> None:
        """Not needed any more. Does nothing once taken."""
        if not self._taken:
            self._taken = True
            self._sock.close()
            self._process.end()

    def __enter__(self) -> Standby:
        return self

    def __exit__(self, *_: object) -> None:
        self.end()
