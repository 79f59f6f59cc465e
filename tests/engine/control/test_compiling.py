"""Requests wait for their grammars beside the loop, in order, and not at all where there is nothing to compile."""

from __future__ import annotations

import queue
import sys
import threading
import time
from pathlib import Path

import msgspec
import numpy as np
from loop_rig import Wire, until_closed

from thalweg.engine.control.compiling import GrammarQueue
from thalweg.engine.main import _Loop, _Words
from thalweg.engine.messages import EngineRequest, TokenSampling
from thalweg.grammar.grammars import Grammars
from thalweg.grammar.source import GrammarSource

sys.path.insert(0, str(Path(__file__).parents[2] / "grammar"))
import grammar_rig as rig


def request(handle: int, grammar: GrammarSource | None) -> EngineRequest:
    sampling = TokenSampling(max_tokens=4, grammar=grammar)
    return EngineRequest(handle=handle, tokens=np.ones(2, np.int32), prompt_len=2, sampling=sampling)


def handles(requests: list[EngineRequest]) -> list[int]:
    return [r.handle for r in requests]


def test_only_requests_with_a_new_grammar_wait() -> None:
    given: queue.SimpleQueue[list[EngineRequest]] = queue.SimpleQueue()
    grammars = Grammars(lambda: rig.VOCABULARY)
    compiling, made = GrammarQueue(grammars, given.put), rig.source("regex", "a+")
    assert handles(compiling.start([request(1, None), request(2, made), request(3, None)])) == [1, 3]
    assert handles(compiling.ready(given.get(timeout=60))) == [2]
    assert handles(compiling.start([request(4, made)])) == [4], "it is compiled"


def test_one_that_was_aborted_meanwhile_does_not_come_back() -> None:
    given: queue.SimpleQueue[list[EngineRequest]] = queue.SimpleQueue()
    compiling = GrammarQueue(Grammars(lambda: rig.VOCABULARY), given.put)
    made = rig.source("regex", "b+")
    compiling.start([request(1, made), request(2, msgspec.structs.replace(made, free_until=(3,)))])
    compiling.abort([1])
    assert handles(compiling.ready(given.get(timeout=60))) == [2]


def test_a_grammar_that_does_not_compile_comes_back_for_the_core_to_refuse() -> None:
    given: queue.SimpleQueue[list[EngineRequest]] = queue.SimpleQueue()
    compiling = GrammarQueue(Grammars(lambda: rig.VOCABULARY), given.put)
    assert compiling.start([request(1, GrammarSource(text="start: ((("))]) == []
    assert handles(compiling.ready(given.get(timeout=60))) == [1]


class Idle:
    """As much of an engine core as a loop asks for: it has work for so many steps."""

    def __init__(self, steps: int, grammars: Grammars) -> None:
        self.left, self.grammars = steps, grammars
        self.cold_while_busy: list[bool] = []

    can_regroup = False

    def watch(self, lost: object) -> None:
        """It is its own executor, and loses no rank."""

    @property
    def has_work(self) -> bool:
        return self.left > 0

    def step(self) -> None:
        self.left -= 1
        self.cold_while_busy.append(self.grammars._made is None)

    def idle(self) -> bool:
        return False


def test_an_engine_reads_the_vocabulary_when_it_has_nothing_else_to_do() -> None:
    wire, words = Wire(rig.VOCABULARY), _Words()
    grammars = Grammars(words.get)
    core = Idle(5, grammars)
    loop = _Loop(core, lambda: core, wire, grammars, words)  # type: ignore[arg-type]
    thread = threading.Thread(target=until_closed, args=(loop,))
    thread.start()
    while grammars._made is None:
        time.sleep(0.005)
    wire.said.put(None)
    thread.join()
    assert core.cold_while_busy == [True] * 5
    assert words.sent is not None
