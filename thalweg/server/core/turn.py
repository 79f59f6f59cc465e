"""A turn of the model, from a checked request to the end of its answer. A dialect only adds the format.

`prepare_chat` translates a conversation into parameters and a prompt. `TurnReply` runs the job: it counts, begins, ends, and
names errors as the client does. No other code does so for generated text.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Iterable, Sequence
from contextlib import aclosing
from typing import Any, ClassVar

from starlette.requests import Request
from starlette.responses import Response

from thalweg.outputs import RequestMetrics, RequestOutput
from thalweg.params import SamplingParams
from thalweg.server.core.answer import Answer
from thalweg.server.core.job import GenerationJob
from thalweg.server.core.request import ChatRequest
from thalweg.server.core.sampling import chat_params
from thalweg.server.core.serving import Serving
from thalweg.server.errors import ApiError, ErrorForm
from thalweg.server.http.answer import OPENAI, STARTED, EventStream, or_disconnect


async def prepare_chat(
    serving: Serving, request: ChatRequest, speaks: bool = False
) -> tuple[SamplingParams, dict[str, Any], Answer]:
    """The engine's inputs for a conversation: parameters, a prompt with its token ids, and the parser of the answer.
    RequestError or ApiError names the field, as ChatRequest has it. speaks: can the route give spoken answers?"""
    if not speaks and request.modalities not in (None, ["text"]):
        raise ApiError("modalities: this route gives text; send ['text']", "modalities")
    params = chat_params(request, serving.engine.default_sampling)
    bound = serving.conversation.chat_format.select(request)
    if bound is not None and bound.marked:
        params.marked_token_ids = list(bound.marked)
    prompt = await serving.conversation.prompt(request)
    text = prompt.get("prompt") or ""
    held = serving.conversation.chat_format.constrain(request, bound, params, text)
    await serving.engine.prepare(params)
    return params, prompt, Answer(bound, request, text, held)


class TurnReply:
    """The answer to one job, whole or as a stream. A dialect writes it with a subclass.

    A whole answer calls `write_body`. A stream calls `begin`, `write` for each output, `settle`, `rest` and `end`, in order.
    Counts include the outputs up to the call.
    """

    errors: ClassVar[ErrorForm] = OPENAI
    """The dialect's form of errors."""
    stream_type: ClassVar[str] = "text/event-stream"
    """Content type of a stream."""

    def __init__(self, serving: Serving, job: GenerationJob) -> None:
        self.serving, self.job = serving, job
        self.made = 0
        """Output tokens so far, of all choices."""
        self.metrics: RequestMetrics | None = None
        """Times of the latest output."""
        self._cached: dict[int, int] = {}
        """Prompt tokens found in the prefix cache, by prompt."""
        self._stored: dict[int, int] = {}
        """Of these, the tokens loaded from a KV store."""

    @property
    def cached_tokens(self) -> int:
        """Prompt tokens found in the prefix cache, of all prompts."""
        return sum(self._cached.values())

    def usage(self, result: int) -> dict[str, Any]:
        """result: output tokens."""
        return self.serving.usage(self.job.prompt_tokens, result, self.cached_tokens, sum(self._stored.values()))

    # ------------------------------------------------------------ a dialect's

    def write_body(self, outputs: list[RequestOutput]) -> dict[str, Any]:
        """The whole answer. It may run on a thread."""
        raise NotImplementedError

    def begin(self) -> Iterable[bytes]:
        """Frames before those of the first output."""
        return ()

    def write(self, i: int, output: RequestOutput) -> Iterable[bytes]:
        """Frames of an output of prompt `i`, a delta."""
        raise NotImplementedError

    async def settle(self) -> None:
        """Slow work before the end can be written."""

    async def rest(self) -> AsyncGenerator[bytes, None]:
        """Frames behind those of the last output, as they are computed."""
        return
        yield b""

    def end(self) -> Iterable[bytes]:
        """Frames after those of the last output."""
        return ()

    def rename(self, error: Exception) -> Exception:
        """An error with its field named as the client wrote it."""
        return error

    def fail(self, error: Exception) -> bytes:
        """The frame that ends a stream which has begun. Empty: `errors` has one."""
        return b""

    # ------------------------------------------------------------ the run

    async def respond(self, http: Request, stream: bool, ignored: Sequence[str] = ()) -> Response:
        """The answer over HTTP. A client that leaves ends the run. ignored: names of the request's unknown fields, for a
        header."""
        fields = {"X-Ignored-Fields": ", ".join(ignored)} if ignored else {}
        if stream:
            return EventStream(self.frames(), fields, self.errors, self.stream_type)
        body = await or_disconnect(http.receive, self.whole())
        return Response(status_code=499) if body is None else Response(body, 200, fields, media_type="application/json")

    async def whole(self) -> bytes:
        """The body of a whole answer."""
        try:
            outputs = await self.serving.run(self.job)
            for i, output in enumerate(outputs):
                self._count(i, output)
            return await self.finish(outputs)
        except Exception as e:
            raise self.rename(e) from e.__cause__

    async def finish(self, outputs: list[RequestOutput]) -> bytes:
        """The body of final outputs, one for each prompt."""
        return await self.serving.serialize_response(self.job, outputs, self.write_body)

    async def frames(self) -> AsyncGenerator[bytes, None]:
        """The frames of a stream. The first waits for the first output, so that an earlier error is answered with its
        status."""
        outputs, begun = self.serving.stream(self.job), False
        try:
            async for i, output in outputs:
                self._count(i, output)
                if not begun:
                    begun = True
                    yield STARTED
                    for frame in self.begin():
                        yield frame
                for frame in self.write(i, output):
                    yield frame
            await self.settle()
            async with aclosing(self.rest()) as rest:
                async for frame in rest:
                    yield frame
            for frame in self.end():
                yield frame
        except Exception as e:
            last = self.fail(e) if begun else b""
            if not last:
                raise self.rename(e) from e.__cause__
            yield last
        finally:
            await outputs.aclose()

    async def outputs(self) -> AsyncGenerator[tuple[int, RequestOutput], None]:
        """(prompt index, output), counted, for an answer that is no text."""
        outputs = self.serving.stream(self.job)
        try:
            async for i, output in outputs:
                self._count(i, output)
                yield i, output
        finally:
            await outputs.aclose()

    def _count(self, i: int, output: RequestOutput) -> None:
        choices = output.outputs
        self.made += len(choices[0].token_ids) if len(choices) == 1 else sum(len(c.token_ids) for c in choices)
        if output.num_cached_tokens is not None:
            self._cached[i], self._stored[i] = output.num_cached_tokens, output.num_stored_tokens
        self.metrics = output.metrics
