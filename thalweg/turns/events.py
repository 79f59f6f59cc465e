"""Events of a turn, in order, and the message put together from them."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field


@dataclass(slots=True)
class Content:
    text: str


@dataclass(slots=True)
class Thought:
    """A piece of reasoning."""

    text: str


@dataclass(slots=True)
class CallStart:
    index: int
    id: str
    name: str


@dataclass(slots=True)
class CallArguments:
    """A piece of a call's arguments, as JSON text."""

    index: int
    text: str


Event = Content | Thought | CallStart | CallArguments


@dataclass(slots=True)
class Call:
    name: str
    arguments: str
    """JSON text. Incomplete where the turn was cut off."""
    id: str = ""


@dataclass(slots=True)
class Message:
    """A whole turn."""

    content: str = ""
    reasoning: str = ""
    calls: list[Call] = field(default_factory=list)

    def add(self, events: Iterable[Event]) -> None:
        for event in events:
            match event:
                case Content(text):
                    self.content += text
                case Thought(text):
                    self.reasoning += text
                case CallStart(_, id, name):
                    self.calls.append(Call(name, "", id))
                case CallArguments(index, text):
                    self.calls[index].arguments += text


class EventBuffer:
    """Events in order of arrival, with consecutive pieces of one kind joined."""

    def __init__(self) -> None:
        self._events: list[Event] = []
        self._pieces: list[str] = []
        """Text of the last event, not yet added to it."""

    def add(self, event: Event) -> None:
        last = self._events[-1] if self._events else None
        if not isinstance(event, CallStart):
            same = type(last) is type(event) and getattr(last, "index", 0) == getattr(event, "index", 0)
            if not same:
                self._close()
                self._events.append(event)
            self._pieces.append(event.text)
        else:
            self._close()
            self._events.append(event)

    def _close(self) -> None:
        if self._pieces:
            last = self._events[-1]
            assert not isinstance(last, CallStart)
            last.text = "".join(self._pieces)
            self._pieces = []

    def take(self) -> list[Event]:
        """Everything since the last time."""
        self._close()
        events, self._events = self._events, []
        return events
