"""One response: its output as one body, as a stream, or in the background."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator
from typing import Any

import orjson

from thalweg.outputs import CompletionOutput, RequestOutput
from thalweg.server.core.answer import Answer
from thalweg.server.core.job import GenerationJob
from thalweg.server.core.serving import Serving
from thalweg.server.core.turn import TurnReply
from thalweg.server.errors import ApiError
from thalweg.server.http.answer import typed_event
from thalweg.server.openai import logprobs
from thalweg.server.responses.errors import ERRORS, describe_error
from thalweg.server.responses.events import ResponseItemWriter
from thalweg.server.responses.protocol import ResponsesRequest
from thalweg.server.responses.store import EventLog, StoredResponse, store
from thalweg.server.responses.tools import Tools

Json = dict[str, Any]
REASONS: dict[str | None, str | None] = {"length": "max_output_tokens", "abort": None}
"""Why an answer is incomplete, by how it ended."""
ECHOED = (
    "instructions", "max_output_tokens", "max_tool_calls", "previous_response_id", "prompt_cache_key", "prompt_cache_retention",
    "safety_identifier", "user", "presence_penalty", "frequency_penalty",
)  # fmt: skip
"""Fields of a request that come back as they were sent."""


class ResponseReply(TurnReply):
    errors = ERRORS

    def __init__(
        self,
        serving: Serving,
        job: GenerationJob,
        request: ResponsesRequest,
        answer: Answer,
        tools: Tools,
        turn: StoredResponse,
        owner: str,
    ) -> None:
        """turn: the stored form of this response. Its body is written here."""
        super().__init__(serving, job)
        self.request, self.answer, self.turn = request, answer, turn
        self._owner = owner
        self._keeps = request.store is not False and store(serving).limit > 0
        self._output = ResponseItemWriter(tools, turn.id, "reasoning.encrypted_content" in (request.include or ()))
        self._number = 0
        self._head = self._constant_fields()
        self._ended: CompletionOutput | None = None
        """The choice as it ended."""
        self._last: list[Json] = []
        """The last events before the response has its end."""

    def start_in_background(self) -> bytes:
        """Run from now on. The body that says so. Follow `turn.log`."""
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
            async for frame in self.frames():
                if frame:
                    log.add(frame)
                else:
                    self.turn.body = orjson.dumps(self._body("in_progress"))
        except asyncio.CancelledError:
            self._settle(self._body("cancelled"))
        except Exception as e:
            log.add(self.fail(e))
        finally:
            log.end()
            self.turn.task = None
            if store(self.serving).get(self._owner, self.turn.id) is not None:  # it may have been deleted
                store(self.serving).put(self._owner, self.turn)
            self.serving.lifecycle.leave()

    # ------------------------------------------------------------ what a run calls

    async def finish(self, outputs: list[RequestOutput]) -> bytes:
        (choice,) = outputs[0].outputs
        self._ended = choice
        for _ in self._output.push(self.answer.events(choice), self._scores(choice)):
            pass
        await self.settle()
        return self.turn.body

    def begin(self) -> Iterator[bytes]:
        body = self._body("in_progress")
        if not self.turn.background:
            yield self._frame("response.created", response=body)
        yield self._frame("response.in_progress", response=body)

    def write(self, i: int, output: RequestOutput) -> list[bytes]:
        (choice,) = output.outputs
        if choice.finish_reason is not None:
            self._ended = choice
        return [self._number_event(piece) for piece in self._output.push(self.answer.events(choice), self._scores(choice))]

    async def settle(self) -> None:
        """Make the final body, which is kept if that was asked for. Reasoning is counted in tokens for it."""
        assert self._ended is not None, "an answer ends with a choice that has ended"
        incomplete = self._ended.finish_reason in REASONS
        status = "incomplete" if incomplete else "completed"
        self._last = list(self._output.finish(status))
        thought = "".join(self._output.thought)
        tokens = 0
        if thought and self.serving.encoder is not None:
            (ids,) = await self.serving.encode([thought], False, tenant=self.job.ticket.tenant, bounded=False)
            tokens = min(len(ids), self.made)
        body = self._body(status, self._usage(tokens))
        if incomplete:
            body["incomplete_details"] = {"reason": REASONS[self._ended.finish_reason]}
        self._settle(body)

    def end(self) -> Iterator[bytes]:
        for piece in self._last:
            yield self._number_event(piece)
        response = orjson.loads(self.turn.body)
        yield self._frame(f"response.{response['status']}", response=response)

    def fail(self, error: Exception) -> bytes:
        e = ERRORS.translate(error)
        body = self._body("failed") | {"error": describe_error(e)}
        if self.turn.background:
            self._settle(body)
        return self._frame("response.failed", response=body)

    # ------------------------------------------------------------ what is written

    def _settle(self, body: Json) -> None:
        self.turn.body = orjson.dumps(body)
        if self._keeps and not self.turn.background:
            store(self.serving).put(self._owner, self.turn)

    def _frame(self, kind: str, **fields: Any) -> bytes:
        return self._number_event({"type": kind, **fields})

    def _number_event(self, body: Json) -> bytes:
        body["sequence_number"] = self._number
        self._number += 1
        return typed_event(body)

    def _scores(self, choice: CompletionOutput) -> list[Json]:
        if not self.request.logprobs_field or not choice.logprobs:
            return []
        names, as_ids = self.serving.engine.tokenizer, self.serving.settings.return_tokens_as_token_ids
        top = self.request.top_logprobs or 0
        found: list[Json] = logprobs.chat(choice.logprobs, top, as_ids, names.bytes_of if names else None)["content"]
        return found

    def _usage(self, reasoning: int) -> Json:
        prompt = self.job.prompt_tokens
        return {
            "input_tokens": prompt,
            "input_tokens_details": {"cached_tokens": self.cached_tokens, "cache_write_tokens": 0},
            "output_tokens": self.made,
            "output_tokens_details": {"reasoning_tokens": reasoning},
            "total_tokens": prompt + self.made,
        }

    def _constant_fields(self) -> Json:
        """The fields that never change."""
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
