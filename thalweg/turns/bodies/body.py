"""Base of the readers of call bodies."""

from __future__ import annotations

from typing import Protocol

WHITE = " \t\r\n"


class CallSink(Protocol):
    """Receives the calls that a body reader finds."""

    def commit(self, name: str, id: str = "") -> bool:
        """A call begins. False: the name is not valid, and all text since the call's first terminal is content."""

    def args(self, text: str) -> None:
        """More JSON text of the arguments. A call without any has an empty object."""

    def pause(self) -> None:
        """The call is complete, and another may follow in the same list."""

    def end(self) -> None:
        """The call is complete, and with it the list."""

    def fail(self) -> None:
        """The text read so far is not a call."""

    def stray(self, c: str) -> None:
        """A character outside keys and values: content."""

    def token_text(self, text: str) -> str:
        """Text with marks written as tokens."""


class BodyReader:
    """Reads a body by character. `own` terminals are matched always. Terminals around the call are matched only while `open`
    is true: elsewhere they may be data."""

    own: tuple[str, ...] = ()
    open: bool = True
    stops: str | None = None
    """`run` now accepts text without these characters, many at once. None: it accepts no text."""

    def run(self, text: str) -> None:
        """Characters within data."""
        raise NotImplementedError

    def text(self, c: str) -> None:
        """A character outside terminals."""
        raise NotImplementedError

    def hit(self, terminal: str) -> None:
        """A terminal of `own`."""
        raise NotImplementedError

    def finish(self, cut: bool = False) -> None:
        """The call ends here, complete or not. cut: the text was cut off within the call, and open values stay open."""
        raise NotImplementedError
