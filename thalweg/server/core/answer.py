"""The model's turn as events: content, reasoning and tool calls. Dialects write them in their own forms."""

from __future__ import annotations

from thalweg.outputs import CompletionOutput
from thalweg.server.core.request import ChatRequest
from thalweg.turns.bind import BoundTurnFormat
from thalweg.turns.events import CallArguments, CallStart, Content, Event, Thought
from thalweg.turns.grammar_scope import GrammarScope
from thalweg.turns.reader import Reader


class Answer:
    """The choices of one request as their turns are read. Without a format they are content."""

    def __init__(
        self, bound: BoundTurnFormat | None, request: ChatRequest, prompt: str, held: GrammarScope = GrammarScope.NOTHING
    ) -> None:
        """held: the parts of the turn under a grammar."""
        self._bound, self._request, self._prompt, self._held = bound, request, prompt, held
        self._schemas = {t.function.name: t.function.parameters or {} for t in request.tools or ()}
        self._readers: dict[int, Reader] = {}
        self._one = request.parallel_tool_calls is False
        self._called: set[int] = set()

    @property
    def plain(self) -> bool:
        """Is all of the answer content, as it stands?"""
        return self._bound is None

    def events(self, choice: CompletionOutput) -> list[Event]:
        """New events of a choice."""
        if self._bound is None:
            return [Content(choice.text)] if choice.text else []
        return self._events(choice, choice.finish_reason is not None)

    def has_call(self, choice: CompletionOutput) -> bool:
        """Has the choice begun a call?"""
        return choice.index in self._called

    def _events(self, choice: CompletionOutput, ended: bool) -> list[Event]:
        assert self._bound is not None
        index, cut = choice.index, choice.finish_reason != "stop" or isinstance(choice.stop_reason, str)
        reader = self._readers.get(index)
        if reader is None:
            reader = self._readers[index] = Reader(self._bound, self._prompt, self._schemas, self._held)
        events = reader.push(choice.text) + (reader.finish(cut) if ended else [])
        if any(isinstance(e, CallStart) for e in events):
            self._called.add(index)
        return [e for e in events if self._is_visible(e)]

    def _is_visible(self, event: Event) -> bool:
        match event:
            case Thought():
                return self._request.include_reasoning is not False
            case CallStart(index) | CallArguments(index):
                return not (self._one and index)
        return True
