"""The engine's loop: it accepts requests, launches steps, reads results, returns outputs. One thread drives it; it never
waits on a clock.

It launches up to `pipeline_depth` steps before it reads the oldest, so the device does not idle while the host works. The
reasons why that is safe are in `slots` (scheduled and returned progress), `cache` (blocks) and `output` (discarded rows). The
loop knows no device and no model, only an `Executor`.
"""

from __future__ import annotations

import itertools
import logging
import time
from collections import deque
from collections.abc import Callable, Sequence

import msgspec
import numpy as np

from thalweg.drafters import SpeculationConfig, load_drafter
from thalweg.engine.control.adapters import AdapterSlots
from thalweg.engine.control.batch import BatchBuilder, LaunchedStep
from thalweg.engine.control.cache.events import BlockEvents
from thalweg.engine.control.cache.prefix import HashFn
from thalweg.engine.control.cache.tables import KVCache
from thalweg.engine.control.encoded import EncodedRequests
from thalweg.engine.control.encodings import Encodings
from thalweg.engine.control.executor import Executor
from thalweg.engine.control.invariant import InvariantError, ensure
from thalweg.engine.control.output import ResultReader, StepOutput
from thalweg.engine.control.parts.builder import Builder, Setup, builders
from thalweg.engine.control.request import Request, find_end, find_limit, find_stretches, limit_of, prefix_salt, refuse
from thalweg.engine.control.scheduler import SHARE_FROM, Schedule, Scheduler
from thalweg.engine.control.slots import Slots
from thalweg.engine.control.speculation.drafter import Drafter
from thalweg.engine.control.speculation.guard import GuardedDrafter
from thalweg.engine.control.speculation.speculator import Speculator
from thalweg.engine.control.store.transfers import StoreConnection, Transfers
from thalweg.engine.messages import EngineRequest, Outputs, SequenceFinished, SequenceStarted, Stats
from thalweg.errors import CheckpointError, ConfigError, ThalwegError
from thalweg.grammar.grammars import Grammars
from thalweg.hal.parts.overlays import ENCODED
from thalweg.host.failpoints import fp

logger = logging.getLogger(__name__)

POLL_SECONDS = 0.001
"""Between looks at an encoder, where nothing else is to be done."""
STATS_EVERY = 32
"""Steps between snapshots in Outputs, besides those in which a sequence starts or ends."""


class EngineCore:
    def __init__(
        self,
        executor: Executor,
        *,
        clock: Callable[[], float] = time.monotonic,
        hash_fn: HashFn | None = None,
        share_from: int = SHARE_FROM,
        announce: Callable[[list[SequenceStarted]], None] | None = None,
        drafter: Callable[[Slots], Drafter] | None = None,
        grammars: Grammars | None = None,
        store: StoreConnection | None = None,
        kv_events: bool = False,
    ) -> None:
        """`executor` runs the steps. `announce` gets the sequences that a step begins before it is launched, so that a crash
        can be traced to them; without it they are in the step's Outputs. `hash_fn`, `share_from` and `drafter` (which
        replaces the configured one) are for tests. `grammars` compiles those of requests; None rejects such requests. `store`
        keeps blocks beyond the cache. `kv_events`: Outputs list the changes of the prefix cache. Raises ConfigError if the
        cache has unsupported groups, or groups that do not work with drafts."""
        config, encoder = executor.config, executor.encoder
        scheduler, cache = config.scheduler, config.cache
        self.config = config
        top = max((g.top for g in cache.groups), default=0)
        self._encoder, self._encodings = encoder, None if encoder is None else Encodings(encoder, clock, ENCODED)
        self._encoded = EncodedRequests(self._encodings, clock)
        self.adapters: AdapterSlots | None = None
        """Loaded adapters. None: requests have none."""
        if scheduler.adapter_slots:
            self.adapters = AdapterSlots(scheduler.adapter_slots, scheduler.max_seqs, self._write_adapter)
        parts = builders(
            Setup(scheduler.max_seqs, config.model.max_len, config.model.vocab, grammars, self._encodings, top, self.adapters)
        )
        self.slots = Slots(scheduler.max_seqs, config.model.max_len, parts)
        self.kv = KVCache(
            cache.groups,
            cache.blocks,
            self.slots,
            config.model.max_len,
            cache.prefix_caching,
            hash_fn,
            cache.prefix_hash,
            clock,
        )
        raw = not config.model.logprobs_mode.startswith("processed")
        self.slots.may_hope = self.kv.rewinds and scheduler.stages == 1 and raw
        self.scheduler = Scheduler(scheduler, self.slots, self.kv, share_from, self._ready, self.adapters)
        speculator = self.scheduler.speculator = self._speculator(parts, drafter)
        self._transfers = self.scheduler.transfers = None if store is None else Transfers(store, self.kv, clock, share_from)
        self._events = BlockEvents(self.kv) if kv_events else None
        most = speculator.most if speculator is not None else 0
        self._grammars, self._parts = grammars, parts
        self._builder = BatchBuilder(self.slots, self.kv, parts, most, config.cache.tables_kept)
        self._reader = ResultReader(self.slots, self.kv, self.scheduler, parts)
        self._executor, self._launch = executor, executor.launch
        self._announce = announce
        self._clock = clock
        self._requests: dict[int, Request] = {}
        self._in_flight: deque[LaunchedStep] = deque()
        self._started: list[SequenceStarted] = []
        self._finished: list[SequenceFinished] = []
        self._arrivals = itertools.count()
        self.paused = False
        """No step is launched. Those in flight are read, and requests wait."""
        self._steps = 0
        self._last_result = 0.0
        self._generated = 0

    def _speculator(self, parts: Sequence[Builder], drafter: Callable[[Slots], Drafter] | None) -> Speculator | None:
        """The planner of drafts, by the configuration or with this drafter. ConfigError."""
        config = self.config.scheduler
        built = None
        if drafter is not None:
            built = drafter(self.slots)
        elif config.speculation is not None:
            built = self._open_drafter(config.speculation)
        if built is None and not config.jump_forward:
            return None
        if self.kv.unready_for_drafts:
            name = "structured_outputs_config: enable_jump_forward" if built is None else "speculative_config"
            raise ConfigError(
                f"{name}: KV groups {self.kv.unready_for_drafts} have no spare blocks to verify drafts in; omit it"
            )
        return Speculator(self.slots, self.kv, parts, built, config.jump_forward, self.scheduler.counters.drafts)

    def _open_drafter(self, config: SpeculationConfig) -> Drafter:
        """The configured drafter, guarded. ConfigError if it cannot be made."""
        try:
            drafter = load_drafter(config.method)(config, self.slots)
        except ThalwegError:
            raise
        except Exception as e:  # packages write drafters
            raise ConfigError(f"speculative_config: {config.method} cannot start: {type(e).__name__}: {e}") from e
        return GuardedDrafter(drafter, config.method, self.config.model.vocab)

    # ------------------------------------------------------------------ requests

    def add(self, requests: Sequence[EngineRequest]) -> None:
        """Queue requests. One that can never run is rejected in the next Outputs; this never raises for a bad request."""
        now = self._clock()
        for r in requests:
            why = refuse(r, self.config, self.kv.bounds)
            if why is None and r.sampling.grammar is not None:
                why = self._grammar_problem(r)
            if why is None:
                why = self._unencodable(r)
            if why is None and r.adapter:
                why = self._adapter_problem(r.adapter)
            if why is None and r.encode_only:
                why = self._encoded.refuse(r)
            if r.handle in self._requests or r.handle in self._encoded:
                why = f"handle: {r.handle} is in use"
            if why is not None:
                self._finished.append(SequenceFinished(r.handle, "error", error=why))
                continue
            if r.encode_only:
                self._encoded.add(r)
                continue
            limit = limit_of(r, self.config.model.max_len)
            if (ended := find_end(r, limit)) is not None:  # resubmitted with everything already out
                self._finished.append(ended)
                continue
            priority = r.priority if self.config.scheduler.policy == "priority" else 0
            request = Request(
                r.handle, r.sampling, r.prompt_len, (priority, next(self._arrivals)), prefix_salt(r),
                r.read_prefix_cache and r.sampling.prompt_logprobs < 0, limit, now, np.array(r.tokens, np.int32),
                r.streamed, r.inputs, find_stretches(r.inputs), find_limit(r.inputs), adapter=r.adapter,
                hand_over=r.hand_over, least_cached=r.least_cached, retain=r.retain,
                frames=[] if r.frames is None else list(r.frames),
            )  # fmt: skip
            request.gated = any(b.applies(request) and b.gates(request) for b in self._parts)
            self._requests[r.handle] = request
            self.scheduler.add(request)

    def _grammar_problem(self, r: EngineRequest) -> str | None:
        """Why a request with a grammar can never run, or None."""
        assert r.sampling.grammar is not None
        if self._grammars is None:
            return "structured_outputs: this engine was given no vocabulary to compile grammars with"
        if r.sampling.grammar.text and not r.sampling.eos_ids:
            return "structured_outputs: the model has no end-of-sequence token, so no grammar could end"
        return self._grammars.refuse(r.sampling.grammar)

    def _unencodable(self, r: EngineRequest) -> str | None:
        """Why a request with inputs can never run, or None."""
        for item in r.inputs:
            if item.is_encoded and (self._encoder is None or not self._encoder.takes(item)):
                return f"this engine has no encoder for inputs of kind {item.kind}"
        return None

    def abort(self, handles: Sequence[int]) -> None:
        """End these sequences now. Unknown handles have already ended, and are ignored."""
        if self._handing_over:
            dropped = self._transfers.handovers.drop(handles)  # type: ignore[union-attr]
            self._finished += [SequenceFinished(handle, "abort") for handle in dropped]
        for handle in handles:
            self._encoded.abort(handle)
            request = self._requests.get(handle)
            if request is not None:
                self._end(request, SequenceFinished(handle, "abort"))

    def _end(self, request: Request, how: SequenceFinished) -> None:
        if request.chunks or request.rounds:
            how = msgspec.structs.replace(how, chunks=request.chunks, rounds=bytes(request.rounds))
        if request.hand_over and self._transfers is not None and how.reason in ("stop", "length"):
            self._transfers.handovers.hold(request, how)
        else:
            self._finished.append(how)
        if request.retain:
            self.kv.retain(request, self._clock() + min(request.retain, self.config.cache.max_retention))
        self.scheduler.remove(request)
        del self._requests[request.handle]
        if request.gated:
            self._forget()

    def _ready(self, request: Request, begin: int, end: int) -> int:
        """How many tokens of [begin, end), from the first, every part of the request can be built for now."""
        gates = (b for b in self._parts if b.applies(request) and b.gates(request))
        return min((b.ready(request, begin, end) for b in gates), default=end - begin)

    def _encode(self) -> None:
        """Launch some layers of an encoder between steps, within the time that prompts get while sequences decode."""
        encodings, pace = self._encodings, self.scheduler.pace
        if encodings is not None and encodings.failed:
            self._end_unencoded(encodings)
        if encodings is None or not encodings.busy or self.paused:
            return
        alone = not self._in_flight and not self.scheduler.decoding
        took = encodings.advance(None if alone else pace.spare(), wait=False)
        if took and not alone and not encodings.beside:
            pace.spend(took)
        if took:
            self._forget()

    def _end_unencoded(self, encodings: Encodings) -> None:
        """End requests with prompts that wait for a failed item."""
        failed, encodings.failed = encodings.failed, {}
        self._encoded.fail(failed)
        for r in [r for r in self._requests.values() if r.gated and self.scheduler.in_prompt(r)]:
            if (why := next((failed[i.digest] for i in r.inputs if i.digest in failed), None)) is not None:
                self._end(r, SequenceFinished(r.handle, "error", error=why))

    def _forget(self) -> None:
        if self._encodings is not None:
            self._encoded.answer()
            encoded = (r for r in self._requests.values() if r.gated)
            needed = (r for r in encoded if self.scheduler.in_prompt(r) or r.has_later_inputs)
            self._encodings.forget({item.digest for r in needed for item in r.inputs} | self._encoded.digests)

    # ------------------------------------------------------------------ the loop

    @property
    def has_work(self) -> bool:
        open_requests = self._requests or self._encoded
        return bool((open_requests and not self.paused) or self._in_flight or self._has_outputs or self._handing_over)

    @property
    def _handing_over(self) -> bool:
        """Do ends wait until a store has the blocks?"""
        return self._transfers is not None and bool(self._transfers.handovers)

    @property
    def _has_outputs(self) -> bool:
        """Is there something to report without a step?"""
        return bool(self._finished) or self._encoded.has_news or (self._events is not None and self._events.waiting)

    def step(self) -> Outputs | None:
        """Launch until the pipeline is full or nothing can be scheduled, then read the oldest step. None: no output."""
        self._encode()
        if self._handing_over:
            self._finished += self._transfers.handovers.take_done()  # type: ignore[union-attr]
        while self._may_launch():
            schedule = self.scheduler.schedule(len(self._in_flight))
            if self.scheduler.impossible:
                for request, how in self.scheduler.impossible:
                    self._end(request, how)
                self.scheduler.impossible.clear()
                if schedule is None:
                    continue
            if schedule is None:
                break
            self._start(schedule)
        if not self._in_flight:
            if self._encodings is not None and self._encodings.busy and not self.paused:
                if not self._encodings.beside:
                    self._encodings.advance(None, wait=True)
                elif not self._encodings.advance(None, wait=False):
                    time.sleep(POLL_SECONDS)  # requests without this need may come meanwhile
                self._forget()
                return self._outputs(None) if self._has_outputs else None
            if self._transfers is not None and self._transfers.waiting and not self.paused:
                self._transfers.pause()
                return self._outputs(None) if self._has_outputs else None
            if self._handing_over and not self._has_outputs:
                self._transfers.pause_handover()  # type: ignore[union-attr]
                return None
            if self._requests and not self.kv.withheld and not self._has_outputs and not self.paused:
                raise InvariantError(f"nothing can be scheduled, but {len(self._requests)} requests wait")
            return self._outputs(None) if self._has_outputs else None
        oldest = self._in_flight.popleft()
        result = oldest.pending.result()
        seconds = self._observe(oldest)
        news = self._reader.read(oldest, result)
        speculator = self.scheduler.speculator
        if speculator is not None:
            speculator.observe(oldest, news.handles, bool(news.ended), seconds)
        for request, how in news.ended:
            self._end(request, how)
        self._end_failed()
        self._steps += 1
        self._generated += news.tokens.size
        out = self._outputs(news)
        out.step_tokens = oldest.prompt_tokens + news.tokens.size
        return out

    def idle(self) -> bool:
        """There is no step to run: do a few milliseconds of work that later steps would wait for. Returns whether more is
        left."""
        saving = self._transfers is not None and self._transfers.settle()
        return any(self._executor.call("populate", [g.pool.reached for g in self.kv.groups])) or saving

    def close(self, save: bool = True) -> None:
        """End the loop. Blocks queued for a store are saved, within `transfers.CLOSE_SECONDS`. save: as in `Transfers`."""
        if self._transfers is not None:
            self._transfers.close(save)

    def _may_launch(self) -> bool:
        """Is there room in the pipeline? A long step is not followed by another ahead of time: that would save the device a
        moment, and cost new requests a whole step."""
        flying = self._in_flight
        if self.paused or len(flying) >= self.config.scheduler.pipeline_depth:
            return False
        return not flying or not self.scheduler.pace.is_long(flying[-1].prompt_tokens)

    def _start(self, schedule: Schedule) -> None:
        batch, record = self._builder.build(schedule)
        for chunk in schedule.chunks:
            if (computed := self.slots.requests[chunk.slot]) is not None:
                computed.chunks += 1
        if schedule.entered:
            now = self._clock()
            cached = {c.slot: c.cached for c in schedule.chunks}
            fresh = [r for r in schedule.entered if not r.started]
            started = [
                SequenceStarted(r.handle, cached[r.slot], r.queued, now, r.held, min(r.stored, cached[r.slot])) for r in fresh
            ]
            for request in fresh:
                request.started = True
            if self._announce is None:
                self._started += started
            elif started:
                self._announce(started)
        record.streams, record.rationed = schedule.streams, schedule.rationed
        record.width, record.proposes = schedule.width, schedule.proposes
        self.scheduler.pace.record_launch(record.prompt_tokens, record.decodes, record.rationed)
        if self._transfers is not None:
            self._transfers.flush()
        fp("engine.step", token=batch.tokens)
        record.launched = self._clock()
        record.pending = self._launch(batch)
        self._in_flight.append(record)
        self._end_failed()

    def _end_failed(self) -> None:
        """End requests for which a part has failed."""
        for builder in self._parts:
            for request, why in builder.take_failures():
                if request.handle in self._requests:
                    self._end(request, SequenceFinished(request.handle, "error", error=why))

    def _observe(self, done: LaunchedStep) -> float:
        """Seconds a step took: from its launch, or from the end of the one before it, to its result."""
        now = self._clock()
        seconds = now - max(done.launched, self._last_result)
        self.scheduler.pace.observe(done.prompt_tokens, done.decodes, seconds, done.rationed)
        if self.config.scheduler.log_steps:
            logger.info(
                "step %d: %d prompt tokens, %d sequences decode, %.2f ms, %d run and %d wait",
                self._steps, done.prompt_tokens, done.decodes, 1e3 * seconds, len(self.scheduler.running),
                len(self.scheduler.waiting),
            )  # fmt: skip
        self._last_result = now
        return seconds

    def _outputs(self, news: StepOutput | None) -> Outputs:
        if news is None:
            out = Outputs(np.empty(0, np.int64), np.empty(0, np.int32), self._clock())
        else:
            out = Outputs(
                news.handles, news.tokens, self._clock(), logprobs=news.logprobs, prompt_scores=news.prompt_scores,
                pooled=news.pooled, each=news.each, frames=news.frames,
            )  # fmt: skip
        if self._encoded.has_news:
            started, finished, vectors = self._encoded.take()
            self._started += started
            self._finished += finished
            out.each = [*out.each, *vectors]
        if self._finished or self._started or self._steps % STATS_EVERY == 0:
            out.finished, out.started, out.stats = self._finished, self._started, self.stats()
            self._finished, self._started = [], []
        if self.scheduler.preempted:
            out.preempted, self.scheduler.preempted = self.scheduler.preempted, []
        if self._events is not None:
            out.kv_events = self._events.take()
        return out

    # ------------------------------------------------------------------ everything else

    def stats(self) -> Stats:
        """A snapshot. Block counts are those of the fullest group."""
        counters = self.scheduler.counters
        fullest = max((g.pool for g in self.kv.groups), key=lambda p: p.blocks_held / p.total)
        return Stats(
            running=len(self.scheduler.running), waiting=len(self.scheduler.waiting),
            blocks_used=fullest.blocks_held, blocks_total=fullest.total - 1,
            prefix_queries=counters.prefix_queries, prefix_hits=counters.prefix_hits, preemptions=counters.preemptions,
            steps=self._steps, prompt_tokens=counters.prompt_tokens, generated_tokens=self._generated,
            prompt_cached=counters.prompt_cached, prompt_stored=counters.prompt_stored,
            drafts=counters.drafts.rounds, draft_tokens=counters.drafts.drafted, accepted_tokens=counters.drafts.accepted,
            accepted_per_position=counters.drafts.per_position.copy(),
            **({} if self._transfers is None else self._transfers.stats()),
        )  # fmt: skip

    def read_adapter(self, path: str, digest: bytes = b"") -> bytes:
        """Read an adapter into host memory and return its digest. digest: the required one; b"": any. Errors describe the
        fault of its files. Any thread may call it during steps. Requests may name it after `adapters.load`."""
        found: bytes = b""
        try:
            found, *others = self._executor.call("read_adapter", path, digest)
            if any(other != found for other in others):
                found = b""
                raise CheckpointError(f"{path}: ranks read different adapters there: give every machine the same files")
        finally:
            self._executor.call("keep_adapter", found)
        return found

    def _write_adapter(self, slot: int, digest: bytes) -> int:
        """As the worker's operation `write_adapter`, on every rank."""
        levels: list[int] = self._executor.call("write_adapter", slot, digest)
        return max(levels)

    def _adapter_problem(self, digest: bytes) -> str | None:
        """Why a request cannot have this adapter, or None."""
        problem = "the adapter is not loaded" if self.adapters is None else self.adapters.find_problem(digest)
        return None if problem is None else f"lora_request: {problem}"

    def unload_adapter(self, digest: bytes) -> str:
        """Forget an adapter. Returns "", or the reason why not. Requests that run or wait with it keep it."""
        if self.adapters is None or digest not in self.adapters:
            return "the adapter is not loaded"
        if users := sum(r.adapter == digest for r in self._requests.values()):
            return f"{users} requests use the adapter: wait until they end, or abort them"
        self.adapters.unload(digest)
        self._executor.call("forget_adapter", digest)
        return ""

    def reset_prefix_cache(self) -> bool:
        """Forget every cached prefix. Running sequences go on. Later requests do not find the blocks those have computed."""
        self.scheduler.reset_prefix_cache()
        return True

    def check(self) -> None:
        """Check every invariant of the control plane. InvariantError names the violated one."""
        self.slots.check()
        self.scheduler.check()
        self.kv.check()
        owned = [*self.scheduler.running, *self.scheduler.waiting]
        ensure(len(owned) == len(self._requests), "requests known != running + waiting")
        ensure(all(self._requests.get(r.handle) is r for r in owned), "a request is queued under another's handle")
