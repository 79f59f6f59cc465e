"""Shared by every endpoint: turns, model names, request ids, tokenising, running prompts, usage. Holds the engine."""

from __future__ import annotations

import asyncio
import hashlib
import itertools
import logging
import time
import uuid
from collections.abc import AsyncGenerator, Callable, Iterator, Sequence
from contextlib import AbstractContextManager, AsyncExitStack, ExitStack, contextmanager
from functools import partial
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

import msgspec
import orjson
from starlette.requests import Request

import thalweg
from thalweg.lora import LoRARequest
from thalweg.outputs import RequestOutput
from thalweg.params import MAX_N, PoolingParams, SamplingParams
from thalweg.server.core.adapters import ServedAdapter, ServedAdapters, explain_lost, find_lost
from thalweg.server.core.admission import Admission, Ticket
from thalweg.server.core.context import ServerContext, Stores
from thalweg.server.core.job import AcceptedJob, GenerationJob
from thalweg.server.core.lifecycle import Lifecycle
from thalweg.server.core.parts import ChoiceRange, OnTurn, divide, renumber, run_all, stream_all
from thalweg.server.core.request import GenerationRequest
from thalweg.server.core.retention import PAUSE_SECONDS, has_session
from thalweg.server.core.schema import RequestFields
from thalweg.server.core.transcript import Transcript
from thalweg.server.errors import ApiError, of_grammar
from thalweg.server.http.middleware import current_scope, owner_of, tenant_of
from thalweg.server.http.multipart import MultipartPart as FormPart
from thalweg.server.http.multipart import boundary_of, parts_of
from thalweg.server.observe.recent import RecentRequests, Record
from thalweg.server.settings import ServerSettings
from thalweg.text.encoder import AsyncTokenizer

if TYPE_CHECKING:
    from thalweg.async_llm import AsyncLLM
    from thalweg.server.core.conversation import Conversation
    from thalweg.server.observe.metrics import EngineMetrics, HttpMetrics
    from thalweg.text.tokenizer import Tokenizer

log = logging.getLogger(__name__)
R = TypeVar("R")
J = TypeVar("J", bound=AcceptedJob)
HEAVY_TOKENS = 1024
"""Answers with log-probabilities of more tokens than this are written on a thread."""


class RequestObserver(Protocol):
    """Observes requests at the engine, by the engine's ids, in the context of the HTTP request."""

    def under_way(self, request_id: str) -> AbstractContextManager[None]:
        """While the engine has it."""


class Serving(ServerContext):
    """The engine as the endpoints see it."""

    conversation: Conversation
    """Set once, by `prepare_routes`."""

    def __init__(
        self,
        engine: AsyncLLM,
        settings: ServerSettings,
        lifecycle: Lifecycle,
        traffic: HttpMetrics,
        recent: RecentRequests,
        adapters: Sequence[LoRARequest] = (),
        stores: Stores | None = None,
    ) -> None:
        """adapters: loaded ones, that requests may name as their model. stores: of a server with several models."""
        super().__init__(settings, lifecycle, traffic, engine.config.model.max_len, engine.config.max_running, stores)
        self.adapters = ServedAdapters(engine, settings.lora_root, adapters, settings.lora_resolver)
        self.engine = engine
        self.encoder = AsyncTokenizer(engine.tokenizer, engine.config.model.prompt_limit) if engine.tokenizer else None
        window, queue, slots = self._count_places()
        self.admission = Admission(
            window, queue, settings.max_queued_tokens, slots=slots, crowded=self._is_crowded
        )  # fmt: skip
        engine.on_resized(lambda: self.admission.resize(*self._count_places()))
        self._fingerprint = (engine.weights_version, _fingerprint(engine, settings))
        self.recent = recent
        self.watchers: list[RequestObserver] = [recent]
        self.running: set[str] = set()
        """The engine's ids of running requests."""
        self.owners: dict[str, str] = {}
        """Engine's id -> owner (`owner_of`)."""
        self._own: dict[Callable[[Serving], Any], Any] = {}
        self._count = itertools.count()

    def own(self, make: Callable[[Serving], R]) -> R:
        """State of a dialect between requests to this model, made by `make` on first use."""
        if make not in self._own:
            self._own[make] = make(self)
        found: R = self._own[make]
        return found

    async def read(self, http: Request, parse: Callable[[dict[str, Any]], R]) -> tuple[R, Ticket]:
        """The request's body through `parse`, and its place in the queue, which it has until it has ended. The place
        is taken when the body is there: connections that send a head and no more must not fill the queue. ApiError
        429 if there is no place, at once if there is none before the body comes. Otherwise as Bodies.parse."""
        tenant, tickets = tenant_of(http.scope), list[Ticket]()
        self.admission.look(tenant)

        def enter() -> None:
            tickets.append(self.admission.enter(tenant))
            http.scope["thalweg.visit"].at_end(tickets[0].close)

        request = await self.bodies.parse(http, parse, enter)
        await self.adapters.resolve(getattr(request[0] if isinstance(request, list) else request, "model", None))
        return request, tickets[0]

    async def read_form(self, http: Request, limit: int) -> tuple[dict[str, FormPart], Ticket]:
        """The same for a multipart/form-data body of at most `limit` bytes: its parts by name."""
        tenant, boundary = tenant_of(http.scope), boundary_of(http.headers.get("content-type", ""))
        self.admission.look(tenant)
        data = await self.bodies.raw(http, limit)
        ticket = self.admission.enter(tenant)
        http.scope["thalweg.visit"].at_end(ticket.close)
        return await asyncio.to_thread(parts_of, data, boundary), ticket

    @property
    def fingerprint(self) -> str | None:
        """system_fingerprint of answers. It changes with the weights."""
        version = self.engine.weights_version
        if version != self._fingerprint[0]:
            self._fingerprint = (version, _fingerprint(self.engine, self.settings))
        return self._fingerprint[1]

    def model_name(self, requested: str | None) -> str:
        """The name to answer with. ApiError 404 for an unknown model."""
        names = [*self.engine.model_names, *self.adapters.names()]
        if requested and requested not in names:
            raise ApiError(f"model {requested!r} does not exist here; this server has {', '.join(names)}", "model", 404)
        return requested or names[0]

    def tokenizer(self, param: str) -> Tokenizer:
        if self.engine.tokenizer is None:
            raise ApiError(f"{param}: the server runs without a tokenizer (--skip-tokenizer-init); send token ids", param)
        return self.engine.tokenizer

    async def encode(
        self, texts: Sequence[str], add_special_tokens: bool, keep: int | None = None, tenant: str = "", bounded: bool = True
    ) -> list[list[int]]:
        """Token ids of each text. RequestError if one cannot fit the context. keep, tenant, bounded: see Encoder.encode."""
        self.tokenizer("prompt")
        assert self.encoder is not None
        return await self.encoder.encode(texts, add_special_tokens, keep=keep, tenant=tenant, bounded=bounded)

    def truncation_limit(self, request: RequestFields) -> int | None:
        """Tokens of a prompt that truncate_prompt_tokens can leave. None: it must be whole."""
        requested, limit = request.truncate_prompt_tokens, self.engine.config.model.prompt_limit
        return None if requested is None else limit if requested < 0 else max(1, min(requested, limit))

    def job(
        self,
        kind: str,
        http: Request,
        request: RequestFields,
        prompts: list[dict[str, Any]],
        params: SamplingParams,
        ticket: Ticket,
        id: str = "",
    ) -> GenerationJob:
        """A job from its parts, after the checks that need the engine's configuration. Its whole cost is charged. id: the
        answer's id, where clients cannot choose it."""
        if len(prompts) * params.n > MAX_N:
            raise ApiError(f"n times the number of prompts must not exceed {MAX_N}", "n")
        for prompt in prompts:
            self._truncate(prompt, request, params)
        self._check_lengths(prompts)
        if params.cache_retention is None and has_session(http.headers):
            params.cache_retention = PAUSE_SECONDS
        return self.accept(GenerationJob, kind, http, request, prompts, params, ticket, id, params.n)

    def accept(
        self, form: type[J], kind: str, http: Request, request: RequestFields, prompts: list[dict[str, Any]],
        params: SamplingParams | PoolingParams, ticket: Ticket, id: str = "", choices: int = 1,
    ) -> J:  # fmt: skip
        """A job of a request with checked prompts and parameters. Its cost is charged, and it is recorded and logged. choices:
        of each prompt. ApiError 429 if others wait and it does not fit behind them."""
        priority = self._choose_priority(request)
        if request.cache_salt is not None:
            for prompt in prompts:
                prompt["cache_salt"] = request.cache_salt
        model = self.model_name(request.model)
        job = form(
            id=id or self.request_id(kind, http, request.request_id), model=model, created=int(time.time()), prompts=prompts,
            params=params, priority=priority, ticket=ticket, adapter=self._adapter(http, model),
        )  # fmt: skip
        ticket.charge(len(prompts), job.prompt_tokens)
        self.remember(http, job.id, job.model, len(divide(len(prompts), choices, self.admission.most_together)))
        if self.settings.enable_log_requests:
            self.log(job.id, prompts, params)
        return job

    def _adapter(self, http: Request, model: str) -> ServedAdapter | None:
        """The adapter of this name, held until the request has ended."""
        adapter = self.adapters.open(model)
        if adapter is not None:
            http.scope["thalweg.visit"].at_end(partial(self.adapters.close, adapter))
        return adapter

    def remember(self, http: Request, job_id: str, model: str, parts: int) -> None:
        """Remember a request that was accepted."""
        record = Record(
            job_id, str(http.scope.get("thalweg.tenant", "")), model, parts, time.monotonic(),
            self.admission.running, self.admission.waiting, self.engine.restarts,
        )  # fmt: skip
        self.recent.add(record)
        http.scope["thalweg.visit"].at_end(lambda: self.recent.end(record))

    def _choose_priority(self, request: RequestFields) -> int:
        """That of the request. A hint counts only where requests have priorities. ApiError if it asks for one elsewhere."""
        self.check_priority(request.priority)
        if isinstance(request, GenerationRequest) and self.engine.config.scheduler.policy == "priority":
            return request.hinted_priority
        return request.priority

    def check_priority(self, priority: int) -> None:
        if priority and self.engine.config.scheduler.policy != "priority":
            raise ApiError("priority needs a server started with --scheduling-policy priority", "priority")

    def request_id(self, kind: str, http: Request, given: str | None) -> str:
        """The answer's id: from the header, from the field, or random."""
        requested = http.headers.get("x-request-id") or given or http.scope.get("thalweg.request_id")
        if requested is not None and not (len(requested) <= 256 and requested.isascii() and requested.isprintable()):
            raise ApiError("X-Request-Id must be at most 256 printable ASCII characters", "request_id")
        return f"{kind}-{requested or uuid.uuid4().hex}"

    def _truncate(self, prompt: dict[str, Any], request: RequestFields, params: SamplingParams) -> None:
        keep, limit = request.truncate_prompt_tokens, self.engine.config.model.prompt_limit
        if keep is None:
            return
        if keep > limit:
            raise ApiError(f"truncate_prompt_tokens ({keep}) exceeds the context of {limit} tokens", "truncate_prompt_tokens")
        if keep == 0:
            raise ApiError(
                "truncate_prompt_tokens must be at least 1, or -1 for the rest of the context", "truncate_prompt_tokens"
            )
        if keep < 0:
            keep = limit if self.engine.config.model.source else max(1, limit - (params.max_tokens or 1))
        ids = prompt["prompt_token_ids"]
        if len(ids) > keep:
            prompt["prompt_token_ids"] = ids[-keep:]
            if self.engine.tokenizer is not None:
                prompt["prompt"] = self.engine.tokenizer.decode(ids[-keep:], False)

    def _check_lengths(self, prompts: Sequence[dict[str, Any]]) -> None:
        """Before they wait for a turn, not after."""
        model = self.engine.config.model
        for prompt in prompts:
            if len(prompt["prompt_token_ids"]) > model.longest_prompt:
                count, limit = len(prompt["prompt_token_ids"]), model.prompt_limit
                if model.source is not None:
                    raise ApiError(f"prompt: {count} tokens, and this model's encoder reads at most {limit}", "prompt")
                raise ApiError(f"prompt: {count} tokens leave no room to answer in a context of {limit} tokens", "prompt")

    def log(self, job_id: str, prompts: Sequence[dict[str, Any]], params: object) -> None:
        for prompt in prompts:
            ids, most = prompt["prompt_token_ids"], self.settings.max_log_len
            log.info(
                "request %s: %d tokens %s, prompt %r, %r",
                job_id,
                len(ids),
                ids[:most],
                (prompt.get("prompt") or "")[:most],
                params,
            )

    @contextmanager
    def under_way(self, job_id: str) -> Iterator[str]:
        """The engine's id for a part of a job, while it runs. Clients choose ids freely, and two may choose the same; the
        engine's are made unique."""
        request_id = f"{job_id}-{next(self._count)}"
        self.running.add(request_id)
        self.owners[request_id] = owner_of(current_scope.get())
        with ExitStack() as watched:
            for watcher in self.watchers:
                watched.enter_context(watcher.under_way(request_id))
            try:
                yield request_id
            finally:
                self.running.discard(request_id)
                del self.owners[request_id]

    def _count_places(self) -> tuple[int, int, int]:
        """Sequences at the engines, prompts that may wait, and sequences that run at once. They depend on the number of
        engines."""
        seqs, queue = self.engine.config.max_running, self.settings.max_queued_requests
        # A few more than run at once, so that the engine never waits for the next.
        return seqs + max(2, seqs // 4), 4 * seqs if queue is None else queue, seqs

    def _is_crowded(self) -> bool:
        """Do sequences wait at the engine although it has slots for them?"""
        stats = self.engine.stats()
        return stats is not None and stats.waiting > 0 and stats.running < self.engine.config.max_running

    def _parts(self, job: GenerationJob) -> list[ChoiceRange]:
        return divide(len(job.prompts), job.params.n, self.admission.most_together)

    async def _generate(
        self, job: GenerationJob, part: ChoiceRange, on_turn: OnTurn | None = None
    ) -> AsyncGenerator[RequestOutput, None]:
        """Outputs of these choices, numbered as in the whole request. on_turn: called when they may run."""
        prompt, params = job.prompts[part.prompt], job.params
        if part.choices < params.n:
            params = msgspec.structs.replace(params, n=part.choices)
        tokens, prompts = (0, 0) if part.first else (len(prompt["prompt_token_ids"]), 1)
        turn = self.admission.turn(job.ticket, part.choices, tokens, job.priority, prompts)
        async with AsyncExitStack() as held:
            with self.adapters.queue(job.adapter):
                seat = await held.enter_async_context(turn)
            if on_turn is not None:
                on_turn()
            request_id = held.enter_context(self.under_way(job.id))
            stream = self.engine.generate(
                prompt, params, request_id, priority=job.priority, first_choice=part.first, seat=seat,
                lora_request=job.lora_request,
            )  # fmt: skip
            transcript = self._transcript(job) if self.settings.enable_log_outputs else None
            try:
                with explain_lost():
                    async for output in stream:
                        self._raise_if_failed(output, params)
                        if part.first:
                            renumber(output, part.first)
                        if transcript is not None:
                            transcript.add(output)
                        yield output
            finally:
                if transcript is not None:
                    transcript.tell(job.id, self.settings.max_log_len)
                await stream.aclose()

    def _transcript(self, job: GenerationJob) -> Transcript:
        return Transcript(job.params, job.id, self.settings.enable_log_deltas, self.settings.max_log_len)

    async def cut(self) -> None:
        """The time to drain is over: whoever waits or runs gets an error with code 503."""
        self.lifecycle.cutting = True
        self.admission.close(closing())
        await self.engine.abort(list(self.running))

    def _raise_if_failed(self, output: RequestOutput, params: SamplingParams) -> None:
        reasons = {c.finish_reason for c in output.outputs}
        if "error" in reasons:
            known = of_grammar(output.error, params.structured_outputs) or find_lost(output.error)
            raise known or ApiError(output.error or "the engine could not finish this request", status=500)
        if "cache_threshold" in reasons:
            cached = f"less than {params.cache_hit_threshold:g} of the prompt is cached here"
            raise ApiError(f"cache_hit_threshold: {cached}; send it elsewhere, or without", "cache_hit_threshold", 412)
        if "abort" in reasons and self.lifecycle.cutting:
            raise closing()

    async def serialize_response(
        self, job: GenerationJob, outputs: list[RequestOutput], body: Callable[[list[RequestOutput]], dict[str, Any]]
    ) -> bytes:
        """`body(outputs)` as JSON, encoded on a thread if it is long."""

        def write() -> bytes:
            return orjson.dumps(body(outputs), option=orjson.OPT_NON_STR_KEYS)

        scored = job.prompt_tokens if job.params.prompt_logprobs is not None else 0
        if job.params.logprobs is not None:
            scored += sum(len(c.token_ids) for o in outputs for c in o.outputs)
        return await asyncio.to_thread(write) if scored > HEAVY_TOKENS else write()

    async def run(self, job: GenerationJob) -> list[RequestOutput]:
        """Every prompt's final output, in order. The first failure cancels the rest."""
        parts = self._parts(job)
        if len(parts) == 1:
            return [await self._last(job, parts[0])]
        return await run_all(self.admission, parts, partial(self._last, job))

    async def _last(self, job: GenerationJob, part: ChoiceRange, on_turn: OnTurn | None = None) -> RequestOutput:
        stream = self._generate(job, part, on_turn)
        last = None
        try:
            async for output in stream:
                last = output
        finally:
            await stream.aclose()
        assert last is not None, "the engine ended a request without an output"
        return last

    async def stream(self, job: GenerationJob) -> AsyncGenerator[tuple[int, RequestOutput], None]:
        """(prompt index, output) as outputs come, of all prompts together. Closing it aborts them all."""
        parts = self._parts(job)
        if len(parts) > 1:
            outputs = stream_all(self.admission, parts, partial(self._generate, job))
            try:
                async for found in outputs:
                    yield found
            finally:
                await outputs.aclose()
            return
        stream = self._generate(job, parts[0])
        try:
            async for output in stream:
                yield 0, output
        finally:
            await stream.aclose()

    def usage(self, prompt_tokens: int, completion_tokens: int, cached: int | None, stored: int = 0) -> dict[str, Any]:
        """cached: prompt tokens that were cached. stored: of these, those loaded from a KV store."""
        out: dict[str, Any] = {
            "prompt_tokens": prompt_tokens,
            "total_tokens": prompt_tokens + completion_tokens,
            "completion_tokens": completion_tokens,
        }
        if self.settings.enable_prompt_tokens_details:
            out["prompt_tokens_details"] = {"cached_tokens": cached or 0}
            if stored:
                out["prompt_tokens_details"]["cached_tokens_from_store"] = stored
        return out

    def total_usage(self, job: GenerationJob, outputs: Sequence[RequestOutput], discard: bool = False) -> dict[str, Any]:
        result = 0 if discard else sum(len(c.token_ids) for o in outputs for c in o.outputs)
        cached, stored = sum(o.num_cached_tokens or 0 for o in outputs), sum(o.num_stored_tokens for o in outputs)
        return self.usage(job.prompt_tokens, result, cached, stored)


def bind_metrics(metrics: EngineMetrics, serving: Serving) -> None:
    """Register the series of this model's engine."""
    engine = serving.engine
    metrics.bind(engine.model_names[0], engine.config)
    metrics.queued = lambda: serving.admission.waiting
    metrics.held = lambda: engine.paused_requests
    metrics.engines = engine.stats_by_engine
    metrics.ranks = engine.ranks_by_engine
    metrics.adapters = serving.adapters.in_use
    metrics.sleep_level = lambda: engine.sleep_level


def closing() -> ApiError:
    """The answer to requests that a server ends as it ends itself."""
    return ApiError("the server is shutting down; this request was not finished", status=503, retry_after=5)


def _fingerprint(engine: AsyncLLM, settings: ServerSettings) -> str | None:
    """--fingerprint-mode: full = version and digest of the resolved configuration, hash = the digest, custom, none."""
    if settings.fingerprint_mode in ("custom", "none"):
        return settings.fingerprint_value
    updated = f" {engine.weights_version}" if engine.weights_version else ""
    digest = hashlib.sha256(f"{engine.config!r}{updated}".encode()).hexdigest()[:8]
    return f"thalweg-{thalweg.__version__}-{digest}" if settings.fingerprint_mode == "full" else digest
