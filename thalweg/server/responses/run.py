"""One response: its output as one body, as a stream, or in the background."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncGenerator, Iterable
from typing import Any

import orjson

from thalweg.outputs import CompletionOutput, RequestOutput
from thalweg.server.core.chat_format import Answer
from thalweg.server.core.serving import Job, Serving
from thalweg.server.errors import ApiError, translate
from thalweg.server.http.answer import STARTED
from thalweg.server.openai import logprobs
from thalweg.server.responses.asked import renamed
from thalweg.server.responses.errors import event, told
from thalweg.server.responses.events import Output
from thalweg.server.responses.protocol import ResponsesRequest
from thalweg.server.responses.store import EventLog, Turn, store
from thalweg.server.responses.tools import Tools

Json = dict[str, Any]
REASONS: dict[str | None, str | None] = {"length": "max_output_tokens", "abort": None}
"""Why an answer is incomplete, by how it ended."""
ECHOED = (
    "instructions", "max_output_tokens", "max_tool_calls", "previous_response_id", "prompt_cache_key", "prompt_cache_retention",
    "safety_identifier", "user", "presence_penalty", "frequency_penalty",
)  # fmt: skip
"""Fields of a request that come back as they were sent."""


class Run:
    def __init__(
        self, serving: Serving, request: ResponsesRequest, job: Job, answer: Answer, tools: Tools, turn: Turn, owner: str
    ) -> None:
        """turn: what is kept of this response. Its body is written here."""
        self.serving, self.request, self.job, self.answer, self.turn = serving, request, job, answer, turn
        self._owner = owner
        self._keeps = request.store is not False and store(serving).limit > 0
        self._output = Output(tools, turn.id, "reasoning.encrypted_content" in (request.include or ()))
        self._made = self._cached = 0
        self._number = 0
        self._head = self._fixed()

    async def whole(self) -> bytes:
        """The answer's body."""
        (output,) = await self.serving.run(self.job)
        (choice,) = output.outputs
        self._count(output)
        for _ in self._output.push(self.answer.events(choice), self._scores(choice)):
            pass
        return (await self._ended(choice))[0]

    async def stream(self) -> AsyncGenerator[bytes, None]:
        """Frames. The first waits for the first output: an error before it is an answer of its own."""
        async for frame in self._frames(self._begin("in_progress")):
            yield frame

    def begin(self) -> bytes:
        """Run in the background, from now on. The body that says so. Follow `turn.log`."""
        log = self.turn.log = EventLog()
        body = self._body("queued")
        log.add(self._frame("response.created", response=body))
        log.add(self._frame("response.queued", response=body))
        self.turn.body = orjson.dumps(body)
        self.serving.lifecycle.enter()
        self.turn.task = asyncio.create_task(self._work(log))
        store(self.serving).put(self._owner, self.turn)
        return self.turn.body

    async def _work(self, log: EventLog) -> None:
        try:
            async for frame in self._frames([self._frame("response.in_progress", response=self._body("in_progress"))]):
                if frame:
                    log.add(frame)
                else:
                    self.turn.body = orjson.dumps(self._body("in_progress"))
        except asyncio.CancelledError:
            self._settle(self._body("cancelled"))
        except Exception as e:
            log.add(self._failed(e))
        finally:
            log.end()
            self.turn.task = None
            if store(self.serving).get(self._owner, self.turn.id) is not None:  # it may have been deleted
                store(self.serving).put(self._owner, self.turn)
            self.serving.lifecycle.leave()

    async def _frames(self, first: Iterable[bytes]) -> AsyncGenerator[bytes, None]:
        outputs, begun = self.serving.stream(self.job), False
        try:
            async for _, output in outputs:
                (choice,) = output.outputs
                self._count(output)
                if not begun:
                    begun = True
                    yield STARTED
                    for frame in first:
                        yield frame
                for piece in self._output.push(self.answer.events(choice), self._scores(choice)):
                    yield self._numbered(piece)
                if choice.finish_reason is not None:
                    body, pieces = await self._ended(choice)
                    for piece in pieces:
                        yield self._numbered(piece)
                    said = orjson.loads(body)
                    yield self._frame(f"response.{said['status']}", response=said)
        except Exception as e:
            if not begun:
                raise
            yield self._failed(e)
        finally:
            await outputs.aclose()

    async def _ended(self, choice: CompletionOutput) -> tuple[bytes, list[Json]]:
        """The final body, which is kept if that was asked for, and the last events before it."""
        incomplete = choice.finish_reason in REASONS
        pieces = list(self._output.finish("incomplete" if incomplete else "completed"))
        thought = "".join(self._output.thought)
        tokens = 0
        if thought and self.serving.encoder is not None:
            (ids,) = await self.serving.encode([thought], False, tenant=self.job.ticket.tenant, bounded=False)
            tokens = min(len(ids), self._made)
        body = self._body("incomplete" if incomplete else "completed", self._usage(tokens))
        if incomplete:
            body["incomplete_details"] = {"reason": REASONS[choice.finish_reason]}
        return self._settle(body), pieces

    def _settle(self, body: Json) -> bytes:
        self.turn.body = made = orjson.dumps(body)
        if self._keeps and not self.turn.background:
            store(self.serving).put(self._owner, self.turn)
        return made

    def _failed(self, error: Exception) -> bytes:
        """The frame that ends a stream with an error."""
        e = translate(renamed(error))
        body = self._body("failed") | {"error": told(e)}
        if self.turn.background:
            self._settle(body)
        return self._frame("response.failed", response=body)

    def _begin(self, status: str) -> Iterable[bytes]:
        body = self._body(status)
        yield self._frame("response.created", response=body)
        yield self._frame("response.in_progress", response=body)

    def _frame(self, kind: str, **fields: Any) -> bytes:
        return self._numbered({"type": kind, **fields})

    def _numbered(self, body: Json) -> bytes:
        body["sequence_number"] = self._number
        self._number += 1
        return event(body)

    def _count(self, output: RequestOutput) -> None:
        self._made += sum(len(c.token_ids) for c in output.outputs)
        if output.num_cached_tokens is not None:
            self._cached = output.num_cached_tokens

    def _scores(self, choice: CompletionOutput) -> list[Json]:
        if not self.request.scored or not choice.logprobs:
            return []
        names, as_ids = self.serving.engine.tokenizer, self.serving.settings.return_tokens_as_token_ids
        top = self.request.top_logprobs or 0
        found: list[Json] = logprobs.chat(choice.logprobs, top, as_ids, names.bytes_of if names else None)["content"]
        return found

    def _usage(self, reasoning: int) -> Json:
        prompt = self.job.prompt_tokens
        return {
            "input_tokens": prompt,
            "input_tokens_details": {"cached_tokens": self._cached, "cache_write_tokens": 0},
            "output_tokens": self._made,
            "output_tokens_details": {"reasoning_tokens": reasoning},
            "total_tokens": prompt + self._made,
        }

    def _fixed(self) -> Json:
        """What is the same from the beginning to the end."""
        r, params = self.request, self.job.params
        text: Json = {"format": (r.text and r.text.format) or {"type": "text"}}
        if r.text and r.text.verbosity:
            text["verbosity"] = r.text.verbosity
        return {
            "id": self.job.id,
            "object": "response",
            "created_at": self.job.created,
            "model": self.job.model,
            **{name: getattr(r, name) for name in ECHOED},
            "metadata": r.metadata or {},
            "background": bool(r.background),
            "parallel_tool_calls": r.parallel_tool_calls is not False,
            "reasoning": r.reasoning.model_dump(include={"effort", "summary"}) if r.reasoning else None,
            "service_tier": "default",
            "store": self._keeps,
            "temperature": params.temperature,
            "text": text,
            "tool_choice": r.tool_choice or "auto",
            "tools": [_whole(t) for t in r.tools or ()],
            "top_logprobs": r.top_logprobs or 0,
            "top_p": params.top_p,
            "truncation": r.truncation or "disabled",
        }

    def _body(self, status: str, usage: Json | None = None) -> Json:
        return {
            **self._head,
            "status": status,
            "completed_at": int(time.time()) if status == "completed" else None,
            "error": None,
            "incomplete_details": None,
            "output": [dict(i) for i in self._output.items] if usage or status in ("failed", "cancelled") else [],
            "usage": usage,
        }


def _whole(tool: Json) -> Json:
    """A function with the fields that clients look for."""
    return {"parameters": None, "strict": None, **tool} if tool.get("type") == "function" else tool


def missing(id: str, limit: int) -> ApiError:
    why = "" if limit else "; this server keeps none (--responses-store-bytes 0)"
    return ApiError(f"the response {id[:80]!r} does not exist here, or is no longer kept{why}", "response_id", 404)
