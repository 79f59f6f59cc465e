"""The engine process: one worker, one core, one channel to the client that started it. Crash-only: the client keeps the state
of every request."""

from __future__ import annotations

import gc
import signal
import sys

if __name__ == "__main__":
    from thalweg.host.parent import die_with_parent

    die_with_parent()  # before the imports: the parent may die during them. The channel's end is noticed later
    gc.disable()  # imports and loading make next to no garbage, and a tenth of their time would go to collecting it
    from thalweg.engine.worker.ahead import begin
    from thalweg.host import lossy

    lossy.install()
    begin(sys.argv[2])

import contextlib
import logging
import queue
import threading
import time
from collections.abc import Callable, Iterable
from typing import Any, TypeVar

import numpy as np

from thalweg.engine import messages as m
from thalweg.engine.control.compiling import GrammarQueue
from thalweg.engine.control.core import EngineCore
from thalweg.engine.control.executor import Executor
from thalweg.engine.control.loading import AdapterLoads, LoadedAdapter
from thalweg.engine.control.profiles import Profiles
from thalweg.engine.control.store.connect import check_store, connect, key_hash
from thalweg.engine.executor.messages import describe_failure
from thalweg.engine.ipc import port
from thalweg.engine.ipc.codec import Codec, FrameError
from thalweg.engine.ipc.socket import Channel, ChannelClosedError
from thalweg.engine.worker.stages.open import prepare
from thalweg.errors import ConfigError, RequestError
from thalweg.executors import OF_PROGRAMS, load_executor
from thalweg.grammar.grammars import Grammars
from thalweg.host import envs
from thalweg.host.failpoints import fp
from thalweg.options.kv_events import read_kv_events
from thalweg.options.observation import read_profiler_config

log = logging.getLogger(__name__)
M = TypeVar("M")
HEARTBEAT_SECONDS = 0.5
LOG_FORMAT = "%(levelname)s %(asctime)s %(name)s: %(message)s"


def main(fd: int, device: str) -> int:
    """Load the code for `device`, then serve the client at the other end of the inherited socket until it closes it
    or asks to stop. Returns the exit status."""
    logging.basicConfig(level=envs.log_level(), format=LOG_FORMAT, datefmt="%H:%M:%S")
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the client handles Ctrl-C, and then closes the channel
    channel = Channel(fd, Codec[Any](m.ToCore))
    try:
        prepare(device, _next(channel, m.StartHint).args)
        start = _next(channel, m.Start)
        check_store(start.args)
        if start.args.distributed_executor_backend in OF_PROGRAMS:
            raise ConfigError(
                f"distributed_executor_backend: {start.args.distributed_executor_backend} runs ranks of a program with "
                "LLM(...); for a server omit it"
            )
        executor: Executor = load_executor(start.args)(start.args)
    except ChannelClosedError:
        return 0
    except Exception as e:
        _report(channel, e)
        return 1
    words = _Words()
    grammars = Grammars(words.get)

    def make_core() -> EngineCore:
        return EngineCore(
            executor, announce=lambda started: _announce(channel, started), grammars=grammars, hash_fn=key_hash(start.args),
            store=connect(start.args, executor), kv_events=read_kv_events(start.args) is not None,
        )  # fmt: skip

    try:
        loop = _Loop(executor, make_core, channel, grammars, words)
        with contextlib.suppress(ChannelClosedError):
            channel.send(m.Ready(executor.config, executor.plan, executor.load_seconds, list(executor.ranks)))
            # Weights and code live as long as the process: the collector must not walk them in the middle of a step. A walk
            # now, before the first answer, is not worth it either: of 200,000 objects it finds a thousand small ones.
            gc.freeze()
            gc.enable()
            loop.profiles = None if read_profiler_config(start.args) is None else Profiles(executor)
            loop.run()
        loop.close()
    except Exception as e:
        _report(channel, e)
        return 1
    finally:
        executor.close()
    return 0


def _next(channel: Channel, kind: type[M]) -> M:
    """The next message, which must be of this kind."""
    message = channel.receive()
    if not isinstance(message, kind):
        raise FrameError(f"expected a {kind.__name__} message, not {type(message).__name__}")
    return message


class _Words:
    """The vocabulary, which the client sends before the first request with a grammar."""

    def __init__(self) -> None:
        self.sent: m.GrammarVocabulary | None = None

    def get(self) -> m.GrammarVocabulary:
        if self.sent is None:
            raise FrameError("a request with a grammar came before the vocabulary")
        return self.sent


class _Loop:
    """Messages in, steps, outputs out. A reader thread fills the inbox, so a step never waits for the socket."""

    profiles: Profiles | None = None
    """None: no profiler is configured."""

    def __init__(
        self, executor: Executor, make_core: Callable[[], EngineCore], channel: Channel, grammars: Grammars, words: _Words
    ) -> None:
        """make_core: a core without requests over the executor."""
        self._executor, self._make_core, self._grammars = executor, make_core, grammars
        self._channel, self._words = channel, words
        self._inbox: queue.SimpleQueue[Any] = queue.SimpleQueue()
        executor.watch(self._inbox.put)
        self._start_anew()
        self._stopping, self._regrouping = False, False
        self._cold = False
        """The vocabulary has arrived and was not read yet."""
        self._steps = 0

    def run(self) -> None:
        threading.Thread(target=self._read, name="inbox", daemon=True).start()
        threading.Thread(target=self._beat, name="heartbeat", daemon=True).start()
        while not self._stopping:
            try:
                self._advance()
            except Exception as e:
                if not self._executor.can_regroup:
                    raise
                self._regroup(e)

    def close(self) -> None:
        self._core.close()

    def _start_anew(self) -> None:
        """No request is known. What other threads give for the former core is lost."""
        core = self._core = self._make_core()

        def give(message: Any) -> None:
            if self._core is core:
                self._inbox.put(message)

        self._compiling = GrammarQueue(self._grammars, give)
        self._loads = AdapterLoads(self._core, give)

    def _regroup(self, why: Exception) -> None:
        """Replace lost ranks, and go on without any request: the client has their state, and sends them again."""
        log.error("the ranks that live keep their weights, and form a group again: %s", why)
        failed = describe_failure(why)
        self._regrouping = True
        self._channel.send(m.Regrouping(failed.kind, failed.message))
        self._core.close(save=False)
        start = time.monotonic()
        self._executor.regroup()
        self._start_anew()
        seconds = time.monotonic() - start
        log.info("the ranks form a group again, after %.1f s", seconds)
        executor = self._executor
        self._channel.send(m.Ready(executor.config, executor.plan, seconds, list(executor.ranks)))
        while not isinstance(message := self._inbox.get(), m.Resume):
            if isinstance(message, ChannelClosedError | FrameError):
                raise message
            if isinstance(message, m.Control) and message.op == "shutdown":
                self._stopping = True
                break
        self._regrouping = False

    def _advance(self) -> None:
        """Messages, then one step if there is work."""
        if self._cold and not self._core.has_work:
            self._cold = False
            self._compiling.warm()
        self._take(wait=not self._core.has_work and not self._core.idle())
        if self._stopping or not self._core.has_work:
            return
        outputs = self._core.step()
        self._steps += 1
        if outputs is not None:
            self._channel.send(outputs)
        if self.profiles is not None:
            self._advance_profile(self.profiles)

    def _advance_profile(self, profiles: Profiles) -> None:
        try:
            profiles.advance()
        except OSError as e:
            log.error("a profile was not written: %s", e)

    def _take(self, wait: bool) -> None:
        """Apply everything in the inbox. Wait for the first message if there is no other work."""
        for message in _drain(self._inbox, wait):
            if isinstance(message, BaseException):
                raise message
            if isinstance(message, m.Add):
                fp("engine.add", token=np.concatenate([r.tokens for r in message.requests]))
                self._core.add(self._loads.hold(self._compiling.start(message.requests)))
            elif isinstance(message, list):  # requests with compiled grammars
                self._core.add(self._loads.hold(self._compiling.ready(message)))
            elif isinstance(message, m.Abort):
                self._compiling.abort(message.handles)
                self._loads.abort(message.handles)
                self._core.abort(message.handles)
            elif isinstance(message, m.GrammarVocabulary):
                self._words.sent, self._cold = message, True
            elif isinstance(message, m.Control):
                self._control(message)
            elif isinstance(message, m.LoadAdapter):
                self._load_adapter(message)
            elif isinstance(message, LoadedAdapter):
                self._adapter_loaded(message)
            elif isinstance(message, m.UnloadAdapter):
                why = self._loads.unload(message.digest)
                self._channel.send(m.Reply(message.id, not why, why))
            else:
                raise FrameError(f"{type(message).__name__} is only for the start")

    def _load_adapter(self, message: m.LoadAdapter) -> None:
        if self._core.adapters is None:
            self._channel.send(m.Reply(message.id, False, "adapters need an engine started with --enable-lora (enable_lora)"))
        else:
            self._loads.start(message)

    def _adapter_loaded(self, loaded: LoadedAdapter) -> None:
        waited = self._loads.finish(loaded)
        self._channel.send(m.Reply(loaded.message.id, not loaded.refused, loaded.refused))
        self._core.add(waited)

    def _control(self, message: m.Control) -> None:
        if message.op == "reset_prefix_cache":
            self._channel.send(m.Reply(message.id, self._core.reset_prefix_cache()))
        elif message.op in ("start_profile", "stop_profile"):
            self._channel.send(m.Reply(message.id, True, self._profile(message.op)))
        elif message.op in ("pause", "resume"):
            self._core.paused = message.op == "pause"
            self._channel.send(m.Reply(message.id, True))
        elif message.op == "shutdown":
            self._stopping = True
        else:
            raise FrameError(f"unknown control operation {message.op!r}")

    def _profile(self, op: str) -> str:
        """ "", or the reason why not, for the caller."""
        if self.profiles is None:
            return "no profiler is configured: --profiler-config"
        try:
            self.profiles.start() if op == "start_profile" else self.profiles.stop()
        except (RequestError, OSError) as e:
            return str(e)
        return ""

    def _beat(self) -> None:
        """Shows that the process lives and whether its loop advances. Steps in native code do not hold it up."""
        with contextlib.suppress(ChannelClosedError):
            while True:
                time.sleep(HEARTBEAT_SECONDS)
                self._channel.send(m.Heartbeat(self._steps, self._core.has_work and not self._regrouping))

    def _read(self) -> None:
        try:
            while True:
                self._inbox.put(self._channel.receive())
        except (ChannelClosedError, FrameError) as e:
            self._inbox.put(e)


def _announce(channel: Channel, started: list[m.SequenceStarted]) -> None:
    channel.send(m.Outputs(np.empty(0, np.int64), np.empty(0, np.int32), time.monotonic(), started=started))


def _drain(inbox: queue.SimpleQueue[Any], wait: bool) -> Iterable[Any]:
    try:
        yield inbox.get(block=wait)
        while True:
            yield inbox.get(block=False)
    except queue.Empty:
        return


def _report(channel: Channel, e: Exception) -> None:
    """Send the last message."""
    with contextlib.suppress(ChannelClosedError):
        channel.send(describe_failure(e))


if __name__ == "__main__":
    if sys.argv[3:]:
        port.adopt_port(int(sys.argv[3]))
    sys.exit(main(int(sys.argv[1]), sys.argv[2]))
