"""/v1/messages."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from typing import Any

from starlette.requests import Request
from starlette.responses import Response

from thalweg.outputs import CompletionOutput, RequestOutput
from thalweg.server.anthropic.asked import chat_of
from thalweg.server.anthropic.blocks import Blocks, content_of
from thalweg.server.anthropic.errors import Events, event
from thalweg.server.anthropic.protocol import MessagesRequest
from thalweg.server.core.chat_format import Answer
from thalweg.server.core.serving import Job, Serving
from thalweg.server.http.answer import or_disconnect
from thalweg.server.openai.chat import asked


async def messages(serving: Serving, http: Request) -> Response:
    request, ticket = await serving.read(http, lambda body: serving.fields.parse(MessagesRequest, body))
    serving.model_name(request.model)
    chat = chat_of(request, serving.settings.anthropic_disabled_thinking_effort)
    params, prompt, answer = await asked(serving, chat)
    turn = Turn(serving, serving.job("msg", http, chat, [prompt], params, ticket), answer)
    ignored = {"X-Ignored-Fields": ", ".join(request.ignored)} if request.ignored else {}
    if request.stream:
        return Events(turn.stream(), ignored)
    body = await or_disconnect(http.receive, turn.whole())
    return Response(status_code=499) if body is None else Response(body, 200, ignored, media_type="application/json")


class Turn:
    """One request: its output as one body or as a stream."""

    def __init__(self, serving: Serving, job: Job, answer: Answer) -> None:
        self.serving, self.job, self.answer = serving, job, answer
        self._blocks = Blocks()
        self._made = self._cached = 0

    async def whole(self) -> bytes:
        return await self.serving.written(self.job, await self.serving.run(self.job), self._body)

    def _body(self, outputs: list[RequestOutput]) -> dict[str, Any]:
        (output,) = outputs
        (choice,) = output.outputs
        self._count(output)
        content = content_of([*self._blocks.push(self.answer.events(choice)), *self._blocks.finish()])
        return {**self._message(), "content": content, **self._ending(choice), "usage": self._usage()}

    async def stream(self) -> AsyncGenerator[bytes, None]:
        """The first event waits for the first output, which tells what the cache held."""
        outputs = self.serving.stream(self.job)
        begun = False
        try:
            async for _, output in outputs:
                (choice,) = output.outputs
                self._count(output)
                if not begun:
                    begun = True
                    usage = {**self._usage(), "output_tokens": 0}
                    yield event("message_start", {"type": "message_start", "message": {**self._message(), "usage": usage}})
                for piece in self._blocks.push(self.answer.events(choice)):
                    yield event(piece["type"], piece)
                if choice.finish_reason is not None:
                    for piece in self._blocks.finish():
                        yield event(piece["type"], piece)
                    ending = {"type": "message_delta", "delta": self._ending(choice), "usage": self._usage()}
                    yield event("message_delta", ending)
        finally:
            await outputs.aclose()
        yield event("message_stop", {"type": "message_stop"})

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

    def _count(self, output: RequestOutput) -> None:
        self._made += sum(len(c.token_ids) for c in output.outputs)
        if output.num_cached_tokens is not None:
            self._cached = output.num_cached_tokens

    def _usage(self) -> dict[str, int]:
        return {
            "input_tokens": self.job.prompt_tokens - self._cached,
            "cache_creation_input_tokens": 0,
            "cache_read_input_tokens": self._cached,
            "output_tokens": self._made,
        }

    def _ending(self, choice: CompletionOutput) -> dict[str, str | None]:
        stop = choice.stop_reason if isinstance(choice.stop_reason, str) else None
        if choice.finish_reason == "length":
            reason = "max_tokens"
        elif stop is not None:
            reason = "stop_sequence"
        else:
            reason = "tool_use" if self.answer.called(choice) else "end_turn"
        return {"stop_reason": reason, "stop_sequence": stop}
