"""/v1/messages."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from starlette.requests import Request
from starlette.responses import Response

from thalweg.outputs import CompletionOutput, RequestOutput
from thalweg.server.anthropic.blocks import ContentBlockWriter, content_of
from thalweg.server.anthropic.chat_request import chat_of
from thalweg.server.anthropic.errors import ERRORS
from thalweg.server.anthropic.protocol import MessagesRequest
from thalweg.server.core.answer import Answer
from thalweg.server.core.job import GenerationJob
from thalweg.server.core.serving import Serving
from thalweg.server.core.turn import TurnReply, prepare_chat
from thalweg.server.http.answer import typed_event


async def messages(serving: Serving, http: Request) -> Response:
    request, ticket = await serving.read(http, lambda body: serving.fields.parse(MessagesRequest, body))
    serving.model_name(request.model)
    chat = chat_of(request, serving.settings.anthropic_disabled_thinking_effort)
    params, prompt, answer = await prepare_chat(serving, chat)
    job = serving.job("msg", http, chat, [prompt], params, ticket)
    return await MessageReply(serving, job, answer).respond(http, bool(request.stream), request.ignored_fields)


class MessageReply(TurnReply):
    errors = ERRORS

    def __init__(self, serving: Serving, job: GenerationJob, answer: Answer) -> None:
        super().__init__(serving, job)
        self.answer = answer
        self._blocks = ContentBlockWriter()
        self._ended: CompletionOutput | None = None
        """The choice as it ended."""

    def write_body(self, outputs: list[RequestOutput]) -> dict[str, Any]:
        (choice,) = outputs[0].outputs
        content = content_of([*self._blocks.push(self.answer.events(choice)), *self._blocks.finish()])
        return {**self._message(), "content": content, **self._ending(choice), "usage": self._usage()}

    def begin(self) -> Iterator[bytes]:
        """This event has the number of cached tokens, so it waits for the first output."""
        usage = {**self._usage(), "output_tokens": 0}
        yield typed_event({"type": "message_start", "message": {**self._message(), "usage": usage}})

    def write(self, i: int, output: RequestOutput) -> list[bytes]:
        (choice,) = output.outputs
        if choice.finish_reason is not None:
            self._ended = choice
        return [typed_event(piece) for piece in self._blocks.push(self.answer.events(choice))]

    def end(self) -> Iterator[bytes]:
        if self._ended is not None:
            for piece in self._blocks.finish():
                yield typed_event(piece)
            ending = {"type": "message_delta", "delta": self._ending(self._ended), "usage": self._usage()}
            yield typed_event(ending)
        yield typed_event({"type": "message_stop"})

    def _message(self) -> dict[str, Any]:
        """Before anything is said."""
        return {
            "id": self.job.id,
            "type": "message",
            "role": "assistant",
            "model": self.job.model,
            "content": [],
            "stop_reason": None,
            "stop_sequence": None,
        }

    def _usage(self) -> dict[str, int]:
        return {
            "input_tokens": self.job.prompt_tokens - self.cached_tokens,
            "cache_creation_input_tokens": 0,
            "cache_read_input_tokens": self.cached_tokens,
            "output_tokens": self.made,
        }

    def _ending(self, choice: CompletionOutput) -> dict[str, str | None]:
        stop = choice.stop_reason if isinstance(choice.stop_reason, str) else None
        if choice.finish_reason == "length":
            reason = "max_tokens"
        elif stop is not None:
            reason = "stop_sequence"
        else:
            reason = "tool_use" if self.answer.has_call(choice) else "end_turn"
        return {"stop_reason": reason, "stop_sequence": stop}
