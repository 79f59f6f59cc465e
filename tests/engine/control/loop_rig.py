"""The other end of an engine's loop, for tests that drive the loop itself."""

from __future__ import annotations

import contextlib
import queue

from thalweg.engine.ipc.socket import ChannelClosedError
from thalweg.engine.main import _Loop


class Wire:
    """A channel whose other end says these, and then is gone when told."""

    def __init__(self, *said: object) -> None:
        self.said = queue.SimpleQueue[object]()
        for message in said:
            self.said.put(message)

    def receive(self) -> object:
        message = self.said.get()
        if message is None:
            raise ChannelClosedError
        return message

    def send(self, message: object) -> None: ...


def until_closed(loop: _Loop) -> None:
    with contextlib.suppress(ChannelClosedError):
        loop.run()
