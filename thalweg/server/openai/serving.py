"""What every endpoint shares: turns, model names, request ids, tokenising, running prompts, usage. Holds the engine."""

from __future__ import annotations

import asyncio
import hashlib
import itertools
import logging
import time
import uuid
from collections.abc import AsyncGenerator, Callable, Sequence
from typing import TYPE_CHECKING, Any

import msgspec
import orjson
from starlette.requests import Request

import thalweg
from thalweg.outputs import CompletionOutput, RequestOutput
from thalweg.params import MAX_N, SamplingParams
from thalweg.server.admission import Admission, Ticket
from thalweg.server.bodies import MAX_VALUES, Bodies
from thalweg.server.errors import ApiError
from thalweg.server.lifecycle import Lifecycle
from thalweg.server.middleware import tenant_of
from thalweg.server.openai import protocol
from thalweg.server.openai.fields import Fields
from thalweg.server.settings import ServerSettings
from thalweg.text.encoder import Encoder

if TYPE_CHECKING:
    from thalweg.async_llm import AsyncLLM
    from thalweg.text.tokenizer import Tokenizer

log = logging.getLogger(__name__)
MIN_BODY, MAX_BODY, BYTES_PER_TOKEN = 8 * 2**20, 64 * 2**20, 64
"""Bytes of a request body where --max-body does not say: what a prompt that fills the context can need, within these."""
HEAVY_TOKENS = 1024
"""Answers with log-probabilities of more tokens than this are written on a thread."""


class Job(msgspec.Struct, frozen=True):
    """One checked request, ready to run: `prompts` for the engine, in order."""

    id: str
    model: str
    created: int
    prompts: list[dict[str, Any]]
    params: SamplingParams
    priority: int
    ticket: Ticket

    @property
    def prompt_tokens(self) -> int:
        return sum(len(p["prompt_token_ids"]) for p in self.prompts)


class Serving:
    """The engine as the endpoints see it."""

    def __init__(
        self,
        engine: AsyncLLM,
        settings: ServerSettings,
        lifecycle: Lifecycle,
        unknown_field: Callable[[str], None] = lambda name: None,
    ) -> None:
        """unknown_field: told of request fields nobody here knows."""
        self.engine, self.settings, self.lifecycle = engine, settings, lifecycle
        context = engine.config.model.max_len
        limit = settings.max_body or min(MAX_BODY, max(MIN_BODY, BYTES_PER_TOKEN * context))
        self.bodies = Bodies(limit, max(MAX_VALUES, 4 * context))
        self.encoder = Encoder(engine.tokenizer, engine.config.model.max_len) if engine.tokenizer else None
        self.fields = Fields(settings.strict_requests, unknown_field)
        seqs = engine.config.scheduler.max_seqs
        queue = settings.max_queued_requests
        self.admission = Admission(
            # A few more than run at once, so that the engine never waits for the next.
            window=seqs + max(2, seqs // 4),
            max_requests=4 * seqs if queue is None else queue,
            max_tokens=settings.max_queued_tokens,
        )
        self.created = int(time.time())
        self.fingerprint = _fingerprint(engine, settings)
        self.running: set[str] = set()
        """The engine's ids of what is under way."""
        self._count = itertools.count()

    def enter(self, http: Request) -> Ticket:
        """A place in the queue for this request, until it has ended. ApiError 429 if there is none."""
        ticket = self.admission.enter(tenant_of(http.scope))
        http.scope["thalweg.visit"].at_end(ticket.close)
        return ticket

    def model_name(self, asked: str | None) -> str:
        """The name to answer with. ApiError 404 for a model that is not served."""
        names = self.engine.model_names
        if asked and asked not in names:
            raise ApiError(f"model {asked!r} does not exist here; this server has {', '.join(names)}", "model", 404)
        return asked or names[0]

    def tokenizer(self, param: str) -> Tokenizer:
        if self.engine.tokenizer is None:
            raise ApiError(f"{param}: the server runs without a tokenizer (--skip-tokenizer-init); send token ids", param)
        return self.engine.tokenizer

    def as_ids(self, request: protocol.Request) -> bool:
        asked = request.return_tokens_as_token_ids
        return self.settings.return_tokens_as_token_ids if asked is None else asked

    async def encode(
        self, texts: Sequence[str], add_special_tokens: bool, param: str = "prompt", bounded: bool = True
    ) -> list[list[int]]:
        """Token ids of each text. RequestError if one cannot fit the context; bounded False: the caller shortens it."""
        self.tokenizer(param)
        assert self.encoder is not None
        return await self.encoder.encode(texts, add_special_tokens, param, bounded)

    def job(
        self,
        kind: str,
        http: Request,
        request: protocol.Request,
        prompts: list[dict[str, Any]],
        params: SamplingParams,
        ticket: Ticket,
    ) -> Job:
        """A Job from its parts, after the checks that need the engine's configuration; its whole cost is charged."""
        if request.priority and self.engine.config.scheduler.policy != "priority":
            raise ApiError("priority needs a server started with --scheduling-policy priority", "priority")
        if len(prompts) * params.n > MAX_N:
            raise ApiError(f"n times the number of prompts must not exceed {MAX_N}", "n")
        for prompt in prompts:
            self._truncate(prompt, request, params)
            if request.cache_salt is not None:
                prompt["cache_salt"] = request.cache_salt
        asked = http.headers.get("x-request-id") or request.request_id or http.scope.get("thalweg.request_id")
        if asked is not None and not (len(asked) <= 256 and asked.isascii() and asked.isprintable()):
            raise ApiError("X-Request-Id must be at most 256 printable ASCII characters", "request_id")
        job = Job(
            id=f"{kind}-{asked or uuid.uuid4().hex}",
            model=self.model_name(request.model),
            created=int(time.time()),
            prompts=prompts,
            params=params,
            priority=request.priority,
            ticket=ticket,
        )
        self._check_lengths(job)
        ticket.charge(len(prompts), job.prompt_tokens)
        if self.settings.enable_log_requests:
            self._log(job)
        return job

    def _truncate(self, prompt: dict[str, Any], request: protocol.Request, params: SamplingParams) -> None:
        keep, limit = request.truncate_prompt_tokens, self.engine.config.model.max_len
        if keep is None:
            return
        if keep > limit:
            raise ApiError(f"truncate_prompt_tokens ({keep}) exceeds the context of {limit} tokens", "truncate_prompt_tokens")
        if keep == 0:
            raise ApiError(
                "truncate_prompt_tokens must be at least 1, or -1 for what the context leaves", "truncate_prompt_tokens"
            )
        if keep < 0:
            keep = max(1, limit - (params.max_tokens or 1))
        ids = prompt["prompt_token_ids"]
        if len(ids) > keep:
            prompt["prompt_token_ids"] = ids[-keep:]
            if self.engine.tokenizer is not None:
                prompt["prompt"] = self.engine.tokenizer.decode(ids[-keep:], False)

    def _check_lengths(self, job: Job) -> None:
        """Before they wait for a turn, not after."""
        limit = self.engine.config.model.max_len
        for prompt in job.prompts:
            if len(prompt["prompt_token_ids"]) >= limit:
                raise ApiError(
                    f"prompt: {len(prompt['prompt_token_ids'])} tokens leave no room to answer in a context of {limit} tokens",
                    "prompt",
                )

    def _log(self, job: Job) -> None:
        for prompt in job.prompts:
            ids, most = prompt["prompt_token_ids"], self.settings.max_log_len
            log.info(
                "request %s: %d tokens %s, prompt %r, %r",
                job.id,
                len(ids),
                ids[:most],
                (prompt.get("prompt") or "")[:most],
                job.params,
            )

    async def _generate(self, job: Job, i: int) -> AsyncGenerator[RequestOutput, None]:
        # Clients choose ids freely, and two may choose the same; the engine's are made unique.
        request_id = f"{job.id}-{next(self._count)}"
        tokens = len(job.prompts[i]["prompt_token_ids"])
        async with self.admission.turn(job.ticket, job.params.n, tokens, job.priority):
            stream = self.engine.generate(job.prompts[i], job.params, request_id, priority=job.priority)
            self.running.add(request_id)
            try:
                async for output in stream:
                    self._raise_if_failed(output)
                    yield output
            finally:
                self.running.discard(request_id)
                await stream.aclose()

    async def cut(self) -> None:
        """The time to drain is over: whoever waits or runs gets an error with code 503."""
        self.lifecycle.cutting = True
        self.admission.close(_closing())
        await self.engine.abort(list(self.running))

    def _raise_if_failed(self, output: RequestOutput) -> None:
        reasons = {c.finish_reason for c in output.outputs}
        if "error" in reasons:
            raise ApiError(output.error or "the engine could not finish this request", status=500)
        if "abort" in reasons and self.lifecycle.cutting:
            raise _closing()

    async def written(
        self, job: Job, outputs: list[RequestOutput], body: Callable[[list[RequestOutput]], dict[str, Any]]
    ) -> bytes:
        """`body(outputs)` as JSON; made on a thread if that takes long."""

        def write() -> bytes:
            return orjson.dumps(body(outputs), option=orjson.OPT_NON_STR_KEYS)

        scored = job.prompt_tokens if job.params.prompt_logprobs is not None else 0
        if job.params.logprobs is not None:
            scored += sum(len(c.token_ids) for o in outputs for c in o.outputs)
        return await asyncio.to_thread(write) if scored > HEAVY_TOKENS else write()

    async def run(self, job: Job) -> list[RequestOutput]:
        """Every prompt's final output, in order. The first failure cancels the rest."""
        if len(job.prompts) == 1:
            return [await self._last(job, 0)]
        tasks = [asyncio.create_task(self._last(job, i)) for i in range(len(job.prompts))]
        try:
            return list(await asyncio.gather(*tasks))
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    async def _last(self, job: Job, i: int) -> RequestOutput:
        stream = self._generate(job, i)
        last = None
        try:
            async for output in stream:
                last = output
        finally:
            await stream.aclose()
        assert last is not None, "the engine ended a request without an output"
        return last

    async def stream(self, job: Job) -> AsyncGenerator[tuple[int, RequestOutput], None]:
        """(prompt index, output) as outputs come, of all prompts together. Closing it aborts them all."""
        if len(job.prompts) == 1:
            stream = self._generate(job, 0)
            try:
                async for output in stream:
                    yield 0, output
            finally:
                await stream.aclose()
            return
        queue: asyncio.Queue[tuple[int, RequestOutput | BaseException | None]] = asyncio.Queue(maxsize=256)
        tasks = [asyncio.create_task(self._pump(job, i, queue)) for i in range(len(job.prompts))]
        try:
            for _ in range(len(tasks)):
                while True:
                    i, item = await queue.get()
                    if item is None:
                        break
                    if isinstance(item, BaseException):
                        raise item
                    yield i, item
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    async def _pump(self, job: Job, i: int, queue: asyncio.Queue[Any]) -> None:
        stream = self._generate(job, i)
        try:
            async for output in stream:
                await queue.put((i, output))
            await queue.put((i, None))
        except Exception as e:
            await queue.put((i, e))
        finally:
            await stream.aclose()

    def usage_of(self, request: protocol.Request) -> tuple[bool, bool]:
        """Does a stream end with its usage, and does every chunk have it? --enable-force-include-usage asks for both."""
        if self.settings.enable_force_include_usage:
            return True, True
        options = request.stream_options
        last = bool(options and options.include_usage)
        return last, bool(last and options and options.continuous_usage_stats)

    def usage(self, prompt_tokens: int, completion_tokens: int, cached: int | None) -> dict[str, Any]:
        out: dict[str, Any] = {
            "prompt_tokens": prompt_tokens,
            "total_tokens": prompt_tokens + completion_tokens,
            "completion_tokens": completion_tokens,
        }
        if self.settings.enable_prompt_tokens_details:
            out["prompt_tokens_details"] = {"cached_tokens": cached or 0}
        return out

    def total_usage(self, job: Job, outputs: Sequence[RequestOutput], discard: bool = False) -> dict[str, Any]:
        made = 0 if discard else sum(len(c.token_ids) for o in outputs for c in o.outputs)
        return self.usage(job.prompt_tokens, made, sum(o.num_cached_tokens or 0 for o in outputs))


def _closing() -> ApiError:
    return ApiError("the server is shutting down; this request was not finished", status=503, retry_after=5)


def finish(choice: CompletionOutput) -> dict[str, Any]:
    return {"finish_reason": choice.finish_reason, "stop_reason": choice.stop_reason}


def _fingerprint(engine: AsyncLLM, settings: ServerSettings) -> str | None:
    """--fingerprint-mode: full = version and digest of the resolved configuration, hash = the digest, custom, none."""
    if settings.fingerprint_mode in ("custom", "none"):
        return settings.fingerprint_value
    digest = hashlib.sha256(repr(engine.config).encode()).hexdigest()[:8]
    return f"thalweg-{thalweg.__version__}-{digest}" if settings.fingerprint_mode == "full" else digest
