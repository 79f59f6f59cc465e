"""/v1/completions."""

from __future__ import annotations

from typing import Any

from starlette.requests import Request
from starlette.responses import Response

from thalweg.outputs import CompletionOutput, RequestOutput
from thalweg.server.core.job import GenerationJob
from thalweg.server.core.serving import Serving
from thalweg.server.core.turn import TurnReply
from thalweg.server.errors import ApiError
from thalweg.server.http.answer import DONE
from thalweg.server.openai import logprobs
from thalweg.server.openai.answers import as_ids, finish, handover, head_of, timing, usage_of
from thalweg.server.openai.chunks import ChunkWriter
from thalweg.server.openai.errors import PROMPTS
from thalweg.server.openai.protocol import CompletionRequest
from thalweg.server.openai.sampling import completion_params


async def completions(serving: Serving, http: Request) -> Response:
    request, ticket = await serving.read(http, lambda body: serving.fields.parse(CompletionRequest, body))
    serving.model_name(request.model)
    params = completion_params(request, serving.engine.default_sampling, serving.engine.tokenizer is not None)
    await serving.engine.prepare(params)
    given = await prompts(serving, request, ticket.tenant)
    if params.hands_over and len(given) > 1:
        raise ApiError("kv_transfer_params: do_remote_decode is for one prompt; send a request for each", "kv_transfer_params")
    job = serving.job("cmpl", http, request, given, params, ticket)
    return await CompletionReply(serving, job, request).respond(http, bool(request.stream))


async def prompts(serving: Serving, request: CompletionRequest, tenant: str) -> list[dict[str, Any]]:
    """The prompts, each with its token ids. Text of prompts given as ids is filled in only where echo needs it."""
    given: list[Any] = [request.prompt]
    if isinstance(request.prompt, list) and request.prompt and not isinstance(request.prompt[0], int):
        given = request.prompt
    if request.prompt in ("", []):
        raise ApiError("prompt must not be empty", "prompt")
    out: list[dict[str, Any]] = []
    texts = [item for item in given if isinstance(item, str)]
    keep = serving.truncation_limit(request)
    encoded = iter(await serving.encode(texts, request.add_special_tokens, keep, tenant) if texts else ())
    for item in given:
        if isinstance(item, str):
            out.append({"prompt": item, "prompt_token_ids": next(encoded)})
        else:
            prompt = {"prompt_token_ids": item}
            if request.echo:
                prompt["prompt"] = serving.tokenizer("echo").decode(item, request.skip_special_tokens)
            out.append(prompt)
    if request.decoder_prompt is not None:
        out = [{**prompt, "decoder_prompt": request.decoder_prompt} for prompt in out]
    return out


class CompletionReply(TurnReply):
    errors = PROMPTS

    def __init__(self, serving: Serving, job: GenerationJob, request: CompletionRequest) -> None:
        super().__init__(serving, job)
        self.request = request
        self.as_ids = as_ids(serving, request)
        self.prompt_only = request.max_tokens == 0
        self._usage, self._every = usage_of(serving, request)
        self._chunks = ChunkWriter(job, serving, "text_completion", self._usage)
        self._bare = request.logprobs is None and not request.return_token_ids and not self._every
        """Chunks that neither begin nor end a choice hold text and nothing else."""
        self._seen: dict[int, int] = {}
        """Where the text of the next token begins, by choice. A choice not in it has sent nothing."""

    def write_body(self, outputs: list[RequestOutput]) -> dict[str, Any]:
        choices = [self._choice(i, o, c) for i, o in enumerate(outputs) for c in sorted(o.outputs, key=lambda c: c.index)]
        body = {
            **head_of(self, "text_completion"),
            "choices": choices,
            "usage": self.serving.total_usage(self.job, outputs, self.prompt_only),
        }
        body |= timing(self.serving, self.job, outputs[0].metrics) | handover(outputs[0])
        if self.serving.fingerprint is not None:
            body["system_fingerprint"] = self.serving.fingerprint
        return body

    def _choice(self, i: int, output: RequestOutput, choice: CompletionOutput) -> dict[str, Any]:
        prompt = self._echo(i)
        out: dict[str, Any] = {
            "index": i * self.job.params.n + choice.index,
            "text": prompt if self.prompt_only else prompt + choice.text,
            "logprobs": None,
            **finish(choice),
        }
        if self.prompt_only:
            out["finish_reason"] = "length"
            out["stop_reason"] = None
        if self.request.logprobs is not None:
            positions: list[Any] = list(output.prompt_logprobs or ()) if self.request.echo else []
            positions += () if self.prompt_only else choice.logprobs or ()
            out["logprobs"] = logprobs.completion(positions, self._first(i), 0, self.as_ids)
        requested = self.request.prompt_logprobs is not None
        out["prompt_logprobs"] = logprobs.prompt(output.prompt_logprobs) if requested else None
        if self.request.return_token_ids:
            out["token_ids"] = [] if self.prompt_only else list(choice.token_ids)
            out["prompt_token_ids"] = self.job.prompts[i]["prompt_token_ids"]
        return out

    def _echo(self, i: int) -> str:
        return (self.job.prompts[i].get("prompt") or "") if self.request.echo else ""

    def _first(self, i: int) -> str:
        """The text of the first prompt token, the one no logprob is known of."""
        token, tokenizer = self.job.prompts[i]["prompt_token_ids"][0], self.serving.engine.tokenizer
        return f"token_id:{token}" if self.as_ids else tokenizer.name_of(token) if tokenizer else ""

    def write(self, i: int, output: RequestOutput) -> list[bytes]:
        result = self.made - sum(len(c.token_ids) for c in output.outputs) if self._every else 0
        frames: list[bytes] = []
        for choice in output.outputs:
            index = i * self.job.params.n + choice.index
            result += len(choice.token_ids)
            if self._bare and index in self._seen and choice.finish_reason is None:
                if choice.text:
                    frames.append(self._chunks.text(index, choice.text))
                continue
            body = self._delta(i, output, choice, index)
            if body is not None:
                frames.append(self._chunks.choice(body, self._usage_at(result) if self._every else None))
        return frames

    def end(self) -> list[bytes]:
        more = timing(self.serving, self.job, self.metrics)
        return [*([self._chunks.usage(self._usage_at(self.made), more)] if self._usage else []), DONE]

    def _usage_at(self, result: int) -> dict[str, Any]:
        """result: output tokens up to there."""
        return self.usage(0 if self.prompt_only else result)

    def _delta(self, i: int, output: RequestOutput, choice: CompletionOutput, index: int) -> dict[str, Any] | None:
        first = index not in self._seen
        text = (self._echo(i) if first else "") + ("" if self.prompt_only else choice.text)
        out: dict[str, Any] = {"index": index, "text": text, "logprobs": None, "finish_reason": None}
        offset = self._seen.setdefault(index, 0)
        if self.request.logprobs is not None:
            positions: list[Any] = list(output.prompt_logprobs or ()) if first and self.request.echo else []
            positions += () if self.prompt_only else choice.logprobs or ()
            out["logprobs"] = found = logprobs.completion(positions, self._first(i), offset, self.as_ids)
            self._seen[index] += sum(map(len, found["tokens"]))
        if choice.finish_reason is not None:
            out.update(finish(choice))
            if self.prompt_only:
                out.update(finish_reason="length", stop_reason=None)
        if self.request.return_token_ids:
            out["token_ids"] = [] if self.prompt_only else list(choice.token_ids)
            if first:
                out["prompt_token_ids"] = self.job.prompts[i]["prompt_token_ids"]
        empty = not text and choice.finish_reason is None
        if empty and not choice.logprobs and not self.request.return_token_ids:
            return None
        return out
