"""/v1/chat/completions."""

from __future__ import annotations

from typing import Any

from starlette.requests import Request
from starlette.responses import Response

from thalweg.errors import RequestError
from thalweg.outputs import CompletionOutput, RequestOutput
from thalweg.server.core.answer import Answer
from thalweg.server.core.job import GenerationJob
from thalweg.server.core.request import ChatRequest
from thalweg.server.core.sampling import chat_name
from thalweg.server.core.serving import Serving
from thalweg.server.core.speech import check_speech
from thalweg.server.core.turn import TurnReply, prepare_chat
from thalweg.server.errors import ApiError
from thalweg.server.http.answer import DONE
from thalweg.server.openai import logprobs
from thalweg.server.openai.answers import as_ids, delta_of, finish, handover, head_of, message_of, timing, usage_of
from thalweg.server.openai.chunks import ChunkWriter
from thalweg.server.openai.errors import CONVERSATION


async def chat_completions(serving: Serving, http: Request) -> Response:
    request, ticket = await serving.read(http, lambda body: serving.fields.parse(ChatRequest, body))
    serving.model_name(request.model)
    params, prompt, answer = await prepare_chat(serving, request, speaks=True)
    speaker = check_speech(serving, request, prompt, params)
    job = serving.job("chatcmpl", http, request, [prompt], params, ticket)
    reply = ChatReply(serving, job, request, answer)
    if speaker is not None:
        from thalweg.server.openai.spoken_chat import SpokenChatReply

        reply = SpokenChatReply(serving, job, request, answer, speaker)
    return await reply.respond(http, bool(request.stream), request.ignored_fields)


class ChatReply(TurnReply):
    errors = CONVERSATION

    def __init__(self, serving: Serving, job: GenerationJob, request: ChatRequest, answer: Answer) -> None:
        super().__init__(serving, job)
        self.request, self.answer = request, answer
        self.as_ids = as_ids(serving, request)
        last = request.messages[-1]
        continued = request.continue_final_message and last.role == serving.settings.response_role
        self.role = last.role if request.continue_final_message else serving.settings.response_role
        self.echo = last.content if request.echo and continued and isinstance(last.content, str) else ""
        self._usage, self._every = usage_of(serving, request)
        self._chunks = ChunkWriter(job, serving, "chat.completion.chunk", self._usage)
        self._bare = not request.logprobs and not request.return_token_ids and not self._every
        """Chunks that end nothing hold text or a call, and nothing else."""
        self._plain = answer.plain
        self._started: set[int] = set()

    def rename(self, error: Exception) -> Exception:
        if isinstance(error, RequestError):
            return ApiError(str(error), chat_name(error.param, self.request))
        return error

    # ------------------------------------------------------------ whole

    def write_body(self, outputs: list[RequestOutput]) -> dict[str, Any]:
        (output,) = outputs
        body = {
            **head_of(self, "chat.completion"),
            "choices": [self.choice(c) for c in sorted(output.outputs, key=lambda c: c.index)],
            "usage": self.serving.total_usage(self.job, outputs),
        }
        body |= timing(self.serving, self.job, output.metrics) | handover(output)
        if self.serving.fingerprint is not None:
            body["system_fingerprint"] = self.serving.fingerprint
        requested = self.request.prompt_logprobs is not None
        body["prompt_logprobs"] = logprobs.prompt(output.prompt_logprobs) if requested else None
        if self.request.return_token_ids:
            body["prompt_token_ids"] = self.job.prompts[0]["prompt_token_ids"]
        return body

    def choice(self, choice: CompletionOutput) -> dict[str, Any]:
        out = {
            "index": choice.index,
            "message": {"role": self.role, **message_of(self.answer.events(choice), self.echo)},
            "logprobs": self._logprobs(choice),
            **self._finish(choice),
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

    def _finish(self, choice: CompletionOutput) -> dict[str, Any]:
        """tool_calls only where there are some, and the turn ended by itself. A call that was named ends with stop."""
        found = finish(choice)
        if choice.finish_reason == "stop" and self.answer.has_call(choice) and self.request.choice in ("auto", "required"):
            found["finish_reason"] = "tool_calls"
        return found

    # ------------------------------------------------------------ streamed

    def write(self, i: int, output: RequestOutput) -> list[bytes]:
        result = self.made - sum(len(c.token_ids) for c in output.outputs) if self._every else 0
        frames: list[bytes] = []
        for choice in output.outputs:
            if choice.index not in self._started:
                self._started.add(choice.index)
                frames.append(self._opening(choice.index, result))
            if self._bare and choice.finish_reason is None:
                if not self._plain:
                    frames += [self._chunks.choice(_choice(choice.index, delta_of(e))) for e in self.answer.events(choice)]
                elif choice.text:
                    frames.append(self._chunks.text(choice.index, choice.text))
            else:
                result += len(choice.token_ids)
                usage = self._usage_at(result)
                frames += [self._chunks.choice(body, usage) for body in self._deltas(choice)]
        return frames

    def end(self) -> list[bytes]:
        usage = self.usage(self.made)
        last = [self._chunks.usage(usage, timing(self.serving, self.job, self.metrics))] if self._usage else []
        return [*last, DONE]

    def _usage_at(self, result: int) -> dict[str, Any] | None:
        """The usage of a chunk, where every one has it. result: output tokens up to it."""
        return self.usage(result) if self._every else None

    def _opening(self, index: int, result: int) -> bytes:
        """The first chunk of a choice: the role."""
        ids = self.job.prompts[0]["prompt_token_ids"] if self.request.return_token_ids else None
        return self._chunks.choice(_choice(index, {"role": self.role, "content": self.echo}), self._usage_at(result), ids)

    def _deltas(self, choice: CompletionOutput) -> list[dict[str, Any]]:
        """New parts of a choice, as bodies of chunks. The first has token ids and log-probabilities, the last the finish
        reason."""
        ended = choice.finish_reason is not None
        if not choice.text and not ended and not choice.token_ids:
            return []
        if self.answer.plain:
            deltas: list[dict[str, Any]] = [{"content": choice.text}] if choice.text or not ended else [{}]
        else:
            deltas = [delta_of(e) for e in self.answer.events(choice)] or [{}]
        bodies = [_choice(choice.index, d) for d in deltas]
        bodies[0]["logprobs"] = self._logprobs(choice)
        if ended:
            bodies[-1].update(self._finish(choice))
        if self.request.return_token_ids:
            bodies[0]["token_ids"] = list(choice.token_ids)
        return bodies


def _choice(index: int, delta: dict[str, Any]) -> dict[str, Any]:
    """A chunk's choice that does not end."""
    return {"index": index, "delta": delta, "logprobs": None, "finish_reason": None}
