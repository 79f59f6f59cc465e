"""/v1/chat/completions."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from typing import Any

from starlette.requests import Request
from starlette.responses import Response

from thalweg.errors import RequestError
from thalweg.outputs import CompletionOutput, RequestOutput
from thalweg.params import SamplingParams
from thalweg.server.core.chat_format import Answer
from thalweg.server.core.request import ChatRequest
from thalweg.server.core.sampling import chat_name, chat_params
from thalweg.server.core.serving import Job, Serving
from thalweg.server.errors import ApiError
from thalweg.server.http.answer import DONE, STARTED, EventStream, or_disconnect
from thalweg.server.openai import logprobs
from thalweg.server.openai.answers import as_ids, finish, timing, usage_of
from thalweg.server.openai.chunks import ChunkWriter, Counter


async def chat_completions(serving: Serving, http: Request) -> Response:
    request, ticket = await serving.read(http, lambda body: serving.fields.parse(ChatRequest, body))
    serving.model_name(request.model)
    params, prompt, answer = await asked(serving, request)
    endpoint = Chat(serving, request, serving.job("chatcmpl", http, request, [prompt], params, ticket), answer)
    ignored = {"X-Ignored-Fields": ", ".join(request.ignored)} if request.ignored else {}
    if request.stream:
        return EventStream(endpoint.stream(), ignored)
    body = await or_disconnect(http.receive, endpoint.whole())
    return Response(status_code=499) if body is None else Response(body, 200, ignored, media_type="application/json")


async def asked(serving: Serving, request: ChatRequest) -> tuple[SamplingParams, dict[str, Any], Answer]:
    """What a conversation asks of the engine, in any dialect, and who reads the answer: parameters, prompt, reader."""
    params = chat_params(request, serving.engine.default_sampling)
    bound = serving.conversation.turns.bound(request)
    if bound is not None and bound.marked:
        params.marked_token_ids = list(bound.marked)
    prompt = await serving.conversation.prompt(request)
    text = prompt.get("prompt") or ""
    held = serving.conversation.turns.constrain(request, bound, params, text)
    await serving.engine.prepare(params)
    return params, prompt, Answer(bound, request, text, held)


class Chat:
    """One request: its outputs as one body or as a stream."""

    def __init__(self, serving: Serving, request: ChatRequest, job: Job, answer: Answer) -> None:
        self.serving, self.request, self.job, self.answer = serving, request, job, answer
        self.as_ids = as_ids(serving, request)
        last = request.messages[-1]
        continued = request.continue_final_message and last.role == serving.settings.response_role
        self.role = last.role if request.continue_final_message else serving.settings.response_role
        self.echo = last.content if request.echo and continued and isinstance(last.content, str) else ""

    def _rename(self, error: RequestError) -> ApiError:
        return ApiError(str(error), chat_name(error.param, self.request))

    async def whole(self) -> bytes:
        try:
            outputs = await self.serving.run(self.job)
        except RequestError as e:
            raise self._rename(e) from None
        return await self.serving.written(self.job, outputs, self._body)

    def _body(self, outputs: list[RequestOutput]) -> dict[str, Any]:
        (output,) = outputs
        body = {
            "id": self.job.id,
            "object": "chat.completion",
            "created": self.job.created,
            "model": self.job.model,
            "choices": [self.choice(c) for c in sorted(output.outputs, key=lambda c: c.index)],
            "usage": self.serving.total_usage(self.job, outputs),
        }
        body |= timing(self.serving, self.job, output.metrics)
        if self.serving.fingerprint is not None:
            body["system_fingerprint"] = self.serving.fingerprint
        asked = self.request.prompt_logprobs is not None
        body["prompt_logprobs"] = logprobs.prompt(output.prompt_logprobs) if asked else None
        if self.request.return_token_ids:
            body["prompt_token_ids"] = self.job.prompts[0]["prompt_token_ids"]
        return body

    def choice(self, choice: CompletionOutput) -> dict[str, Any]:
        out = {
            "index": choice.index,
            "message": {"role": self.role, **self.answer.message(choice, self.echo)},
            "logprobs": self._logprobs(choice),
            **finish(choice),
            "finish_reason": self.answer.finish_reason(choice),
        }
        if self.request.return_token_ids:
            out["token_ids"] = list(choice.token_ids)
        return out

    def _logprobs(self, choice: CompletionOutput) -> dict[str, Any] | None:
        if not self.request.logprobs:
            return None
        names = self.serving.engine.tokenizer
        return logprobs.chat(
            choice.logprobs or (), self.request.top_logprobs or 0, self.as_ids, names.bytes_of if names else None
        )

    async def stream(self) -> AsyncGenerator[bytes, None]:
        usage, every = usage_of(self.serving, self.request)
        writer = ChunkWriter(self.job, self.serving, "chat.completion.chunk", usage)
        counter = Counter(self.job, self.serving)
        plain = not self.request.logprobs and not self.request.return_token_ids and not every
        started: set[int] = set()
        outputs = self.serving.stream(self.job)
        try:
            async for _, output in outputs:
                yield STARTED
                counter.cached(0, output.num_cached_tokens)
                counter.times = output.metrics
                for choice in output.outputs:
                    if choice.index not in started:
                        started.add(choice.index)
                        ids = self.job.prompts[0]["prompt_token_ids"] if self.request.return_token_ids else None
                        yield writer.choice(self._opening(choice.index), counter.usage() if every else None, ids)
                    counter.made += len(choice.token_ids)
                    if plain and choice.finish_reason is None:
                        for delta in self.answer.deltas(choice) if not self.answer.plain else ():
                            yield writer.choice(_choice(choice.index, delta))
                        if self.answer.plain and choice.text:
                            yield writer.text(choice.index, choice.text)
                        continue
                    for body in self._deltas(choice):
                        yield writer.choice(body, counter.usage() if every else None)
        except RequestError as e:
            raise self._rename(e) from None
        finally:
            await outputs.aclose()
        if usage:
            yield writer.usage(counter.usage(), timing(self.serving, self.job, counter.times))
        yield DONE

    def _opening(self, index: int) -> dict[str, Any]:
        """The first chunk of a choice: who speaks."""
        return _choice(index, {"role": self.role, "content": self.echo})

    def _deltas(self, choice: CompletionOutput) -> list[dict[str, Any]]:
        """What is new of a choice, as bodies of chunks. Token ids and log-probabilities are told with the first, how it
        ended with the last."""
        ended = choice.finish_reason is not None
        if not choice.text and not ended and not choice.token_ids:
            return []
        if self.answer.plain:
            deltas: list[dict[str, Any]] = [{"content": choice.text}] if choice.text or not ended else [{}]
        else:
            deltas = self.answer.deltas(choice) or [{}]
        bodies = [_choice(choice.index, d) for d in deltas]
        bodies[0]["logprobs"] = self._logprobs(choice)
        if ended:
            bodies[-1].update(finish(choice))
            bodies[-1]["finish_reason"] = self.answer.finish_reason(choice)
        if self.request.return_token_ids:
            bodies[0]["token_ids"] = list(choice.token_ids)
        return bodies


def _choice(index: int, delta: dict[str, Any]) -> dict[str, Any]:
    """A chunk's choice that does not end."""
    return {"index": index, "delta": delta, "logprobs": None, "finish_reason": None}
