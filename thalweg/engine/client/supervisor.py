"""Keeps an engine process alive: detects death and hang, starts another, and resubmits all open requests.

The engine is crash-only. The state of each request is in `OutputProcessor`, on this side. A restart resubmits prompt +
emitted tokens. Since noise depends on the position, the continuation is unchanged. `Recovery` decides which sequences run
after a death. Knows no HTTP and no text.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import signal
import time
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from typing import Protocol

import msgspec
import numpy as np

from thalweg.config import EngineArgs, EngineConfig
from thalweg.engine import messages as m
from thalweg.engine.client.process import EngineProcess, RankHistory
from thalweg.engine.client.recovery import Recovery, Verdict
from thalweg.engine.client.reserve import EngineReserve
from thalweg.engine.client.restarts import RestartBudget, watch
from thalweg.engine.client.standby import Standby
from thalweg.engine.ipc.port import release_port
from thalweg.errors import EngineDeadError, RankLostError, RequestError, ThalwegError, UnavailableError

logger = logging.getLogger(__name__)

SILENT_SECONDS = 2.0
"""Seconds without a sign of life after which the engine does not count as ready. Several heartbeats are then missing."""
UNAWAITED = 0
"""Number of a message without a waiting caller."""
WAKE_LOOK_SECONDS = 0.02
CONVICTED = (
    "this request was running alone when the engine crashed, after it had been present in an earlier crash; it is not retried"
)


class OpenRequests(Protocol):
    """The owner of the state of every open request."""

    def open_handles(self) -> list[int]:
        """Oldest first."""

    def resubmit(self, handles: Sequence[int]) -> list[m.EngineRequest]:
        """Requests with which a fresh engine continues these. Closed handles are skipped."""


class Supervisor:
    """One engine at a time. `start`, then `submit` and `abort`, and `stop` at the end. Everything on one event loop.

    on_outputs: every frame, before this class acts on it. on_convicted: a choice that crashes the engine, with a message for
    its client. on_dead: no engine any more, and there will be none.
    """

    def __init__(
        self,
        args: EngineArgs,
        outputs: OpenRequests,
        handles: Iterator[int],
        *,
        on_outputs: Callable[[m.Outputs], None],
        on_convicted: Callable[[int, str], None],
        on_dead: Callable[[ThalwegError], None],
        vocabulary: Callable[[], m.GrammarVocabulary] | None = None,
    ) -> None:
        """vocabulary: for requests with a grammar; without it there are none."""
        self._vocabulary, self._told = vocabulary, False
        self._args, self._outputs, self._handles = args, outputs, handles
        self._on_outputs, self._on_convicted, self._on_dead = on_outputs, on_convicted, on_dead
        self._engine: EngineProcess | None = None
        self._recovery = Recovery()
        self._adapters: dict[bytes, str] = {}
        """Digest -> path of each adapter that the engine has, or will have."""
        self._running: set[int] = set()
        self._canary = 0
        self._task: asyncio.Task[None] | None = None
        self._budget = RestartBudget(args.max_restarts)
        self._reserve = EngineReserve(args.device)
        self._first_ready: asyncio.Future[None]
        self._replies: dict[int, asyncio.Future[bool]] = {}
        self.state = "starting"
        self.restarts = 0
        self.ranks = RankHistory()
        self.paused = False
        self._woken = asyncio.Event()
        self._held: list[int] | None = None
        """Sequences that a paused engine gets after its canary. None: it has them."""
        self._why = "the engine is starting"
        self._fallback: EngineArgs | None = None
        """Arguments to return to if the engine of `change_model` does not answer."""
        self._refused = ""
        """Why it did not."""

    # ------------------------------------------------------------------ what others ask

    @property
    def pid(self) -> int | None:
        return self._engine.pid if self._engine else None

    size = 1

    @property
    def members(self) -> tuple[Supervisor]:
        """As of a Fleet."""
        return (self,)

    def stats_by_engine(self) -> dict[int, m.Stats]:
        """{}: the frames have those of this engine."""
        return {}

    @property
    def model(self) -> str:
        """The checkpoint of the engine, and of those that replace it."""
        return self._args.model

    @property
    def standby_pid(self) -> int | None:
        return self._reserve.pid

    @property
    def why_not_ready(self) -> str:
        """Empty when a request could be served now."""
        if self.state != "ready":
            return self._why
        if self._engine is not None and time.monotonic() - self._engine.heard > SILENT_SECONDS:
            return f"the engine has given no sign of life for {time.monotonic() - self._engine.heard:.1f} s"
        return ""

    async def start(self, engine: Awaitable[EngineProcess]) -> EngineProcess:
        """Start the first engine, and wait for a canary generation. Raises the engine's error if it could not start."""
        self._first_ready = asyncio.get_running_loop().create_future()
        self._engine = await engine
        self._config: EngineConfig = self._engine.ready.config
        self._task = asyncio.create_task(self._run())
        await self._first_ready
        return self._engine

    def submit(self, requests: Sequence[m.EngineRequest]) -> None:
        """Submit now, or when the engine is ready: they are open in `outputs`, so nothing is lost by waiting."""
        if self._engine is not None and self._recovery.on_trial is None:
            if self._held is None:
                self._add(list(requests))
            else:
                self._held += [r.handle for r in requests]

    @property
    def recovering(self) -> bool:
        """Is the engine away, or does it run suspects of a crash in isolation?"""
        return self._engine is None or self._recovery.on_trial is not None

    def abort(self, handles: Sequence[int]) -> None:
        if handles:
            self._post(m.Abort(list(handles)))

    async def control(self, op: str) -> bool:
        """Do `op` in the engine. RequestError if it rejects it, EngineDeadError if it dies before it answers,
        UnavailableError if there is no engine now."""
        return await self._ask(lambda i: m.Control(i, op))

    async def _ask(self, make: Callable[[int], m.ToCore]) -> bool:
        """Send a message and wait for its Reply. Errors as in `control`."""
        if self._engine is None:
            raise UnavailableError(self._why)
        i = next(self._handles)
        reply: asyncio.Future[bool] = asyncio.get_running_loop().create_future()
        self._replies[i] = reply
        self._post(make(i))
        return await reply

    async def load_adapter(self, digest: bytes, path: str) -> None:
        """Load an adapter into this engine, and into every one that replaces it. RequestError if the engine refuses it.
        If it dies meanwhile, the next one answers. An engine that sleeps gets it when it wakes, unasked."""
        self._adapters[digest] = path
        while True:
            try:
                await self._ask(lambda i: m.LoadAdapter(i, digest, path))
                return
            except RequestError:
                self._adapters.pop(digest, None)
                raise
            except (EngineDeadError, UnavailableError):
                while self.state == "restarting":
                    await asyncio.sleep(WAKE_LOOK_SECONDS)
                if self.state != "ready":
                    return

    def keep_adapters(self, adapters: Mapping[bytes, str]) -> None:
        """Load these before any request. adapters: digest -> path, of adapters that other engines have accepted."""
        self._adapters.update(adapters)

    def unload_adapter(self, digest: bytes) -> None:
        """No request uses it any more."""
        if self._adapters.pop(digest, None) is not None:
            self._post(m.UnloadAdapter(UNAWAITED, digest))

    async def reset_prefix_cache(self) -> bool:
        """Forget every cached prefix. A missing process has none."""
        try:
            return await self.control("reset_prefix_cache")
        except (EngineDeadError, UnavailableError):
            return True

    async def pause(self, yes: bool) -> None:
        """Stop launching steps, or continue. A replacement of the engine is paused too. A starting engine is paused when it
        has answered."""
        while yes and self.state == "restarting":
            await asyncio.sleep(WAKE_LOOK_SECONDS)
        self.paused = yes
        with contextlib.suppress(EngineDeadError, UnavailableError):
            await self.control("pause" if yes else "resume")

    async def sleep(self, standby_too: bool) -> None:
        """End the engine's process until `wake_up`. Open requests stay open. UnavailableError while the engine's health is
        unknown: during a restart, and while suspects of a crash run in isolation."""
        engine = self._engine
        if self.state != "ready" or engine is None or self._recovery.on_trial is not None:
            raise UnavailableError(self._why or "the engine is recovering from a crash; try again later")
        self._woken.clear()
        self._forget(EngineDeadError("the engine was put to sleep"), "sleeping", "the engine sleeps")
        await engine.stop()
        if standby_too:
            self._reserve.end()
        logger.info("the engine sleeps: process %d has ended", engine.pid)

    async def wake_up(self) -> None:
        """Start an engine, and resubmit all open requests. Returns when it answers. EngineDeadError if none starts."""
        if self.state == "sleeping":
            self.state, self._why = "restarting", "the engine is waking up"
            self._woken.set()
        while self.state == "restarting":
            await asyncio.sleep(WAKE_LOOK_SECONDS)
        if self.state != "ready":
            raise EngineDeadError(self._why)

    async def change_model(self, path: str) -> None:
        """Replace the engine by one of another checkpoint of the same model. Open requests go on. UnavailableError as `sleep`.
        RequestError if it cannot be loaded: the engine then has the old one."""
        fallback, self._refused = self._args, ""
        await self.sleep(standby_too=False)
        self._args, self._fallback = msgspec.structs.replace(fallback, model=path), fallback
        await self.wake_up()
        if self._refused:
            raise RequestError(f"the new weights cannot be loaded, and the old ones serve again: {self._refused}")

    def _fall_back(self, why: ThalwegError) -> bool:
        """Return to the checkpoint before `change_model`, if its engine has not answered yet."""
        if self._fallback is None:
            return False
        self._args, self._fallback, self._refused = self._fallback, None, str(why)
        return True

    def adopt_standby(self, standby: Standby) -> None:
        """Start the next engine from this process. Without use for it, it ends."""
        self._reserve.adopt(standby)

    async def stop(self) -> None:
        """End the engine process, and the standby process."""
        self.state, self._why = "stopped", "the engine was shut down"
        if self._task is not None:
            self._task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._task
        await self._reserve.stop()
        if self._engine is not None:
            await self._engine.stop()
        if self._args.nnodes > 1:
            release_port()

    # ------------------------------------------------------------------ one engine after another

    async def _run(self) -> None:
        try:
            self._hello(self._outputs.open_handles())
            while True:
                why = await self._serve()
                if self._woken_later():
                    await self._woken.wait()
                    await self._another(None)
                    self._welcome(self._outputs.open_handles())
                else:
                    await self._replace(why)
        except ThalwegError as e:
            self._fail(e)
        except Exception as e:  # a fault of this process: open requests end with an error and do not wait for ever
            logger.exception("the engine is no longer supervised")
            if self._engine is not None:
                self._engine.kill("it is no longer supervised")
            self._fail(EngineDeadError(f"internal error: {type(e).__name__}: {e}"))

    def _fail(self, why: ThalwegError) -> None:
        """There will be no engine any more."""
        self.state, self._why = "failed", str(why)
        if not self._first_ready.done():
            self._first_ready.set_exception(why)
        self._on_dead(why)

    async def _serve(self) -> EngineDeadError:
        """Process frames until the engine dies. Returns its error."""
        engine = self._engine
        assert engine is not None
        watch = self._start_watch(engine)
        try:
            while True:
                message = await engine.receive()
                if isinstance(message, m.Reply):
                    self._answer(message)
                elif isinstance(message, m.Outputs):
                    self._take(message)
        except EngineDeadError as e:
            return e
        except ThalwegError as e:
            return EngineDeadError(str(e))
        finally:
            watch.cancel()

    def _answer(self, message: m.Reply) -> None:
        reply = self._replies.pop(message.id, None)
        if reply is None or reply.done():  # no caller waits, or no longer
            return
        if message.refused:
            reply.set_exception(RequestError(message.refused))
        else:
            reply.set_result(message.ok)

    async def _replace(self, why: EngineDeadError) -> None:
        """Start another engine, and resubmit all open requests. EngineDeadError when the budget is used up."""
        dead = self._engine
        assert dead is not None
        lost = dead.stuck is not None or isinstance(why, RankLostError)
        crashed = not lost and dead.returncode != -signal.SIGKILL
        if self.state == "starting":
            raise why
        gone = "replaces lost ranks" if dead.regrouping else "is gone"
        logger.error("engine process %d %s: %s", dead.pid, gone, why)
        if not dead.regrouping:
            self._fall_back(why)
        ran = list(self._running)
        self._forget(why, "restarting", f"the engine is being restarted: {why}")
        verdict = self._recovery.handle_death(ran, self._outputs.open_handles(), crashed=crashed)
        for handle in verdict.convicted:
            self._on_convicted(handle, CONVICTED)
        if not (dead.regrouping and await self._regroup(dead, why)):
            await self._another(why)
        self.restarts += 1
        everyone = self._outputs.open_handles()
        accused = self._recovery.on_trial
        if accused is not None and accused not in everyone:  # its client went away meanwhile
            verdict = self._recovery.handle_end(accused, everyone)
            accused = self._recovery.on_trial
        self._welcome(everyone if accused is None else verdict.submit)

    def _forget(self, why: EngineDeadError, state: str, words: str) -> None:
        """The engine is gone, or is to be ended."""
        self._engine, self.state, self._why = None, state, words
        for reply in self._replies.values():
            if not reply.done():
                reply.set_exception(why)
        self._replies.clear()
        self._running.clear()

    def _woken_later(self) -> bool:
        """Did the engine end because it was put to sleep? It may have been woken meanwhile."""
        return self.state == "sleeping" or self._woken.is_set()

    async def _regroup(self, engine: EngineProcess, why: EngineDeadError) -> bool:
        """Wait until an engine has replaced lost ranks. False: it cannot, and has ended. EngineDeadError when the budget is
        used up."""
        watch = self._start_watch(engine)
        try:
            await self._budget.spend(why)
            try:
                await engine.regroup()
            except ThalwegError as e:
                logger.error("engine process %d could not replace lost ranks: %s", engine.pid, e)
                return False
            self._engine = engine
            return True
        finally:
            watch.cancel()
            if self._engine is None:
                await engine.stop()

    async def _another(self, why: EngineDeadError | None) -> None:
        """Start an engine. why: the error of the previous one. None: it slept. EngineDeadError when the budget is used up."""
        while True:
            if why is not None:
                await self._budget.spend(why)
            try:
                self._engine = await EngineProcess.start(self._args, self._reserve.standby)
                self._woken.clear()
                return
            except ThalwegError as e:
                logger.error("the engine did not start again: %s", e)
                why = None if self._fall_back(e) else EngineDeadError(f"the engine did not start again: {e}")

    def _welcome(self, handles: Sequence[int]) -> None:
        """As `_hello`. A paused engine gets only its canary, and the rest after its pause."""
        self._held = list(handles) if self.paused else None
        self._hello([] if self.paused else handles)

    def _hello(self, handles: Sequence[int]) -> None:
        """Send a fresh engine its adapters, a canary (its token makes the engine ready), and these sequences."""
        self._canary = next(self._handles)
        sampling = m.TokenSampling(max_tokens=1)
        canary = m.EngineRequest(
            handle=self._canary, tokens=np.zeros(1, np.int32), prompt_len=1, sampling=sampling, read_prefix_cache=False,
            cache_salt="canary", pool=self._config.model.pooling is not None,
        )  # fmt: skip
        self._told = False
        for digest, path in self._adapters.items():
            self._post(m.LoadAdapter(UNAWAITED, digest, path))
        self._add([canary, *self._outputs.resubmit(handles)])

    def _start_watch(self, engine: EngineProcess) -> asyncio.Task[None]:
        return asyncio.create_task(watch(engine, self._args.heartbeat_timeout, self._args.hang_timeout))

    # ------------------------------------------------------------------ frames

    def _without_canary(self, frame: m.Outputs) -> None:
        """Counters describe requests, and the canary is none: one prompt token, one sampled token."""
        one = int(self._config.model.pooling is None)  # token that it makes
        if frame.answers(self._canary):
            frame.step_tokens = max(0, frame.step_tokens - 1 - one)
        s = frame.stats
        if s is not None:
            prompt, result = max(0, s.prompt_tokens - 1), max(0, s.generated_tokens - one)
            frame.stats = msgspec.structs.replace(s, prompt_tokens=prompt, generated_tokens=result)

    def _take(self, frame: m.Outputs) -> None:
        if self.state != "ready" and (why := frame.error_of(self._canary)) and self._engine is not None:
            # Errors of other sequences have the same cause, so they are not passed on: the next engine gets them.
            self._engine.kill(f"the engine could not generate: {why}")
            return
        self._without_canary(frame)
        if self.state != "ready" and frame.answers(self._canary):
            self._become_ready()
        self._running.update(s.handle for s in frame.started if s.handle != self._canary)
        # The engine aborts only on request of this side: the request is already closed here, or is resumed later.
        ended = [f.handle for f in frame.finished]
        frame.finished = [f for f in frame.finished if f.reason != "abort"]
        self._on_outputs(frame)
        if self._recovery.listening:
            for handle in frame.output_handles():
                if handle != self._canary:
                    self._budget.reset_delay()
                    self._act(self._recovery.token(handle))
        for handle in ended:
            self._running.discard(handle)
            if handle == self._recovery.on_trial:
                self._act(self._recovery.handle_end(handle, self._outputs.open_handles()))

    def _act(self, verdict: Verdict) -> None:
        if verdict.hold is not None:
            self._post(m.Abort([verdict.hold]))
        if verdict.submit:
            self._add(self._outputs.resubmit(verdict.submit))

    def _become_ready(self) -> None:
        self.state, self._why = "ready", ""
        if self._engine is not None:
            self.ranks.record(self._engine.ready)
        self._fallback = None
        if self._held is not None:
            if self.paused:  # else it was resumed meanwhile
                self._post(m.Control(UNAWAITED, "pause"))
            self._add(self._outputs.resubmit(self._held))
            self._held = None
        if not self._first_ready.done():
            self._first_ready.set_result(None)
        if self._args.standby_engine and self._args.max_restarts:
            self._reserve.fill(lambda: self.state == "ready")

    def _add(self, requests: list[m.EngineRequest]) -> None:
        """Each engine gets the vocabulary once, at the latest when it is needed."""
        if not requests:
            return
        if self._vocabulary is not None and any(r.sampling.grammar is not None and r.sampling.grammar.text for r in requests):
            self.tell(self._vocabulary())
        self._post(m.Add(requests))

    def tell(self, vocabulary: m.GrammarVocabulary) -> None:
        """The engine reads it when it has nothing else to do, or with the first grammar."""
        if not self._told:
            self._post(vocabulary)
            self._told = self._engine is not None

    def _post(self, message: m.ToCore) -> None:
        """Nothing is sent to a dead engine: the next one gets everything."""
        if self._engine is not None:
            with contextlib.suppress(EngineDeadError):
                self._engine.post(message)
