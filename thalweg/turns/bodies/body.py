"""What the bodies of calls share."""

from __future__ import annotations

from typing import Protocol

WHITE = " \t\r\n"


class CallSink(Protocol):
    """Where a body puts what it reads."""

    def commit(self, name: str, id: str = "") -> bool:
        """A call begins. False: its name is none, and all since its first terminal is content."""

    def args(self, text: str) -> None:
        """More JSON text of the arguments. A call without any has an empty object."""

    def pause(self) -> None:
        """The call is complete, and another may follow in the same list."""

    def end(self) -> None:
        """The call is complete, and with it the list."""

    def fail(self) -> None:
        """What was read is no call."""

    def stray(self, c: str) -> None:
        """A character that belongs to nothing: content."""

    def token_text(self, text: str) -> str:
        """Text with marks written as tokens."""


class BodyReader:
    """One piece of text after another, a character at a time. It listens for `own` terminals. Those around the call are
    listened for where `open` is true: elsewhere they may be data."""

    own: tuple[str, ...] = ()
    open: bool = True
    stops: str | None = None
    """Text without these characters is now taken by `run`, many at once. None: it is not."""

    def run(self, text: str) -> None:
        """Characters within data."""
        raise NotImplementedError

    def text(self, c: str) -> None:
        """A character that is part of no terminal."""
        raise NotImplementedError

    def hit(self, terminal: str) -> None:
        """One of its own terminals."""
        raise NotImplementedError

    def finish(self, cut: bool = False) -> None:
        """The call ends here, whatever is missing. cut: the text was cut off in it. What was not written stays open."""
        raise NotImplementedError
