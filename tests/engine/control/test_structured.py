"""Sequences that follow a grammar: what comes out is what a fresh matcher allows token by token, whatever the engine does
meanwhile. The oracle knows no batches, no pipeline and no preemption.
"""

from __future__ import annotations

import json
import random
import sys
from pathlib import Path
from typing import Any

import jsonschema
import msgspec
import numpy as np
import pytest
from oracle import Oracle
from world import Guesser, World, make_config, ngrams

from thalweg.engine.control.parts.grammar import GrammarMatchers
from thalweg.engine.control.slots import Slots
from thalweg.engine.messages import EngineRequest, TokenSampling
from thalweg.errors import ConfigError
from thalweg.grammar.source import GrammarSource
from thalweg.text.marks import mark
from thalweg.turns import table
from thalweg.turns.bind import bind
from thalweg.turns.format import TurnFormat
from thalweg.turns.grammar import begun_grammar
from thalweg.turns.reader import read

sys.path.insert(0, str(Path(__file__).parents[2] / "grammar"))
import grammar_rig as rig

PERSON = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "maxLength": 3},
        "kind": {"enum": ["a", "bc"]},
        "tags": {"type": "array", "items": {"type": "boolean"}, "maxItems": 3},
    },
    "required": ["name", "kind", "tags"],
    "additionalProperties": False,
}


class GrammarOracle(Oracle):
    """The hash model, which skips tokens that a matcher made for this one token does not allow."""

    def generate(self, request: EngineRequest, max_len: int) -> tuple[list[int], str, int]:
        """With a grammar a stop counts from the first token: its mask keeps it off as long as it can."""
        self.least = request.sampling.min_tokens
        if request.sampling.grammar is not None:
            request = msgspec.structs.replace(request, sampling=msgspec.structs.replace(request.sampling, min_tokens=0))
        return super().generate(request, max_len)

    def banned(self, p: TokenSampling, tokens: list[int], count: int, stops: set[int]) -> set[int]:
        if p.grammar is None:
            return super().banned(p, tokens, count, stops)
        matcher = rig.grammars().matcher(p.grammar)
        matcher.accept(tokens[len(tokens) - count :])
        left = rig.allowed(matcher)
        bad = {w[-1] for w in p.bad_words if len(w) == 1 or tuple(tokens[len(tokens) - len(w) + 1 :]) == tuple(w[:-1])}
        for forbidden in (set(range(rig.VOCAB)) - set(p.allowed_ids) if p.allowed_ids else set(), bad):
            left = left - forbidden or left
        if count < self.least:
            left = left - stops or left
        return set(range(rig.VOCAB)) - left


def world(depth: int = 2, **config: Any) -> World:
    sizes: dict[str, Any] = {"vocab": rig.VOCAB, "max_len": 96, "blocks": 120, "depth": depth, "max_seqs": 6}
    made = World(make_config(**(sizes | config)), deferred=True)
    made.oracle = GrammarOracle(0, rig.VOCAB, made.windows)
    made.kwargs["grammars"] = rig.grammars()
    made.boot()
    return made


def request(handle: int, grammar: GrammarSource | None, prompt: tuple[int, ...] = (5, 6, 7), **fields: Any) -> EngineRequest:
    sampling = TokenSampling(**({"max_tokens": 60, "eos_ids": (rig.EOS,), "grammar": grammar} | fields))
    tokens = np.array([*prompt, handle % 250], np.int32)
    return EngineRequest(handle=handle, tokens=tokens, prompt_len=tokens.size, sampling=sampling)


def text_of(w: World, handle: int) -> str:
    t = w.tracked[handle]
    return b"".join(rig.VOCABULARY.tokens[i] for i in t.tokens if i != rig.EOS).decode()


def strict(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    assert len({k for k, _ in pairs}) == len(pairs), f"a key twice: {pairs}"
    return dict(pairs)


@pytest.mark.parametrize("depth", [pytest.param(1, marks=pytest.mark.slow), 2, pytest.param(3, marks=pytest.mark.slow)])
def test_every_answer_is_valid_beside_others_that_are_free(depth: int) -> None:
    w, made = world(depth), rig.served("json", PERSON, compact=True)
    for h in range(12):
        w.submit(request(h, made if h % 2 else None, prompt=tuple(range(1, 2 + h))))
    w.drain()
    for h in range(1, 12, 2):
        if w.tracked[h].finished == "stop":
            jsonschema.validate(json.loads(text_of(w, h), object_pairs_hook=strict), PERSON)
    assert sum(w.tracked[h].finished == "stop" for h in range(1, 12, 2)) >= 3


@pytest.mark.parametrize("depth", [pytest.param(1, marks=pytest.mark.slow), 2])
@pytest.mark.slow
def test_preemption_and_prefix_hits_change_nothing(depth: int) -> None:
    w, made = world(depth, blocks=16, max_len=48, max_seqs=6), rig.served("json", PERSON, compact=True)
    for h in range(8):
        w.submit(request(h, made, prompt=(1, 2, 3, 4, 5), max_tokens=40))
    w.drain()
    assert w.core.stats().preemptions
    assert w.core.stats().prefix_hits


@pytest.mark.slow
def test_an_engine_that_is_replaced_goes_on_where_the_tokens_ended() -> None:
    w, made = world(), rig.served("json", PERSON, compact=True)
    for h in range(6):
        w.submit(request(h, made))
    for _ in range(9):
        w.step()
    open_ = [t for t in w.tracked.values() if t.finished is None]
    assert any(t.got for t in open_)
    w.boot()
    for t in open_:
        tokens = np.array([*t.request.tokens[: t.request.prompt_len], *t.tokens[: t.got]], np.int32)
        w.core.add([msgspec.structs.replace(t.request, tokens=tokens)])
    w.drain()


def test_others_take_part_in_every_step() -> None:
    """A constrained sequence waits for its own token, and nobody waits for it."""
    w, made = world(depth=2), rig.served("regex", "[a-z]{40}")
    w.submit(request(0, None, max_tokens=40, eos_ids=()))
    w.submit(request(1, made, max_tokens=40))
    w.batch_log = []
    w.drain()
    free = w.tracked[0].request.handle
    decodes = [b for b in w.batch_log if b.uniform == 1]
    assert len(decodes) >= 39
    assert w.tracked[free].finished == "length"
    slots = {int(s) for b in w.batch_log[:1] for s in b.slots}
    alone = [b for b in decodes if b.slots.size == 1]
    both = [b for b in decodes if b.slots.size == len(slots) == 2]
    assert alone, "one in every second step"
    assert both, "the other in all"
    first = next(i for i, b in enumerate(w.batch_log) if b.uniform == 1)
    steps_of_free = [b for b in w.batch_log[first : first + 38] if b.slots.size == 2 or b.parts == ()]
    assert len(steps_of_free) == 38


def test_a_mask_wins_over_what_leaves_nothing_and_yields_where_there_is_a_choice() -> None:
    w = world()
    yes = rig.served("choice", ["yes", "no"])
    w.submit(request(0, yes, bad_words=((ord("y"),),)))
    w.submit(request(1, yes, bad_words=((ord("y"),), (ord("n"),), (ord("n"), ord("o")))))
    w.submit(request(2, rig.served("regex", "a{2,9}"), min_tokens=5))
    w.submit(request(3, rig.served("regex", "a{2}"), min_tokens=5))
    w.submit(request(4, rig.served("regex", "[ab]{4}"), allowed_ids=(ord("b"), ord("x"))))
    w.drain()
    assert text_of(w, 0) == "no"
    assert text_of(w, 1) in ("yes", "no")
    assert len(text_of(w, 2)) >= 5
    assert (text_of(w, 3), w.tracked[3].finished) == ("aa", "stop")
    assert text_of(w, 4) == "bbbb"


def test_text_before_the_mark_is_that_of_a_run_without_a_grammar() -> None:
    made = msgspec.structs.replace(rig.served("regex", "x{3}"), free_until=(rig.MARK,))
    w = world()
    w.submit(request(1, None, eos_ids=(rig.EOS,), max_tokens=30))
    w.drain()
    free = w.tracked[1].tokens
    w = world()
    w.submit(request(1, msgspec.structs.replace(made, free_until=(free[4],)), max_tokens=30))
    w.drain()
    first = free.index(free[4])
    assert w.tracked[1].tokens == [*free[: first + 1], *b"xxx", rig.EOS]


def test_a_grammar_that_becomes_impossible_ends_its_request_alone() -> None:
    schema = {"type": "object", "patternProperties": {"^a$": {"const": 1}}, "additionalProperties": False, "minProperties": 2}
    w = world()
    made = rig.source("json", schema)
    w.submit(request(1, None, max_tokens=20, eos_ids=()))
    w.core.add([request(2, made)])
    w.tracked[2] = w.tracked[1].__class__(request(2, made), [], "error", -1, [], may_fail=True)
    out = []
    while w.core.has_work:
        got = w.core.step()
        out += got.finished if got is not None else []
    assert {f.handle: f.reason for f in out} == {1: "length", 2: "error"}
    assert "structured_outputs" in next(f.error for f in out if f.handle == 2)


def test_without_an_end_of_sequence_or_a_vocabulary_a_request_is_refused() -> None:
    made = rig.served("regex", "a")
    w = world()
    w.core.add([request(1, made, eos_ids=())])
    assert "end-of-sequence" in w.core.step().finished[0].error
    w.kwargs.pop("grammars")
    w.boot()
    w.core.add([request(1, made)])
    assert "vocabulary" in w.core.step().finished[0].error


def jumping(depth: int = 1, **config: Any) -> World:
    w = world(depth, jump_forward=True, **config)
    w.core.scheduler.speculator.gain.allows = lambda streams: True  # whatever this machine's clock says
    w.batch_log = []
    return w


KEYS = {
    "type": "object",
    "properties": {"a long name": {"enum": [1, 2]}, "another": {"type": "boolean"}, "last": {"const": "a text"}},
    "required": ["a long name", "another", "last"],
    "additionalProperties": False,
}


@pytest.mark.parametrize("depth", [1, 2, pytest.param(3, marks=pytest.mark.slow)])
@pytest.mark.parametrize(
    "kind",
    [{}, {"temperature": 1.0, "top_k": 9}, {"min_tokens": 9, "bad_words": ((65,), (3, 4))},
     {"logprobs": 1, "logit_bias": ((1, 1.5),), "repetition_penalty": 1.1}],
)  # fmt: skip
@pytest.mark.sampled(1)
def test_what_a_grammar_leaves_no_choice_about_takes_few_steps_and_is_the_same(depth: int, kind: dict[str, Any]) -> None:
    """The oracle knows no jumps, and every token is compared with it."""
    made, steps = rig.served("json", KEYS, compact=True), []
    for w in (world(depth), jumping(depth)):
        w.submit(request(0, made, max_tokens=90, **kind))
        w.submit(request(1, None, max_tokens=90, eos_ids=()))
        before = w.batches
        while w.tracked[0].finished is None:
            w.step()
        steps.append(w.batches - before)
        assert json.loads(text_of(w, 0))["last"] == "a text"
        w.drain()
    assert steps[1] < 0.4 * steps[0]
    counted = w.core.stats()
    assert counted.accepted_tokens == counted.draft_tokens > 20, "no guess is wrong"


def test_a_jump_ends_with_the_limit_and_with_a_stop() -> None:
    w, made = jumping(), rig.served("regex", "abcdefghijklmnopqrst")
    w.submit(request(0, made, max_tokens=5))
    w.submit(request(1, made, stop_ids=(ord("k"),)))
    w.submit(request(2, made))
    w.drain()
    assert [text_of(w, h) for h in range(3)] == ["abcde", "abcdefghijk", "abcdefghijklmnopqrst"]
    assert [w.tracked[h].finished for h in range(3)] == ["length", "stop", "stop"]


def test_jumps_under_preemption_prefix_hits_and_a_new_engine() -> None:
    w, made = jumping(2, blocks=30, max_len=96), rig.served("json", KEYS, compact=True)
    for h in range(8):
        w.submit(request(h, made, prompt=(1, 2, 3, 4, 5), max_tokens=80))
    for _ in range(9):
        w.step()
    w.boot()
    w.core.scheduler.speculator.gain.allows = lambda streams: True
    for t in [t for t in w.tracked.values() if t.finished is None]:
        tokens = np.array([*t.request.tokens[: t.request.prompt_len], *t.tokens[: t.got]], np.int32)
        w.core.add([msgspec.structs.replace(t.request, tokens=tokens)])
    w.drain()
    stats = w.core.stats()
    assert stats.preemptions
    assert stats.prefix_hits
    assert stats.accepted_tokens


def test_jumps_without_spare_blocks_for_states_are_refused() -> None:
    with pytest.raises(ConfigError, match="enable_jump_forward: KV groups"):
        world(windows=(0, -1), block_tokens=(4, 4), blocks=(120, 40), jump_forward=True)


@pytest.mark.parametrize("luck", [1.0, 0.5])
def test_guesses_of_a_drafter_are_cut_where_the_grammar_ends_them(luck: float) -> None:
    w = world(2)
    w.kwargs["drafter"] = lambda slots: Guesser(w, slots, 4, luck)
    w.boot()
    w.core.scheduler.speculator.gain.allows = lambda streams: True
    for h in range(6):
        w.submit(request(h, rig.served("json", PERSON, compact=True) if h % 2 else None, max_tokens=40))
    w.drain()
    assert w.core.stats().accepted_tokens > 30


@pytest.mark.slow
def test_random_worlds_with_grammars() -> None:
    sources = [
        rig.served("json", PERSON, compact=True),
        rig.served("regex", "[a-f]{2,30}"),
        rig.served("choice", ["alpha", "beta", "albatross"]),
        rig.served("json", {"type": "object", "additionalProperties": {"type": "boolean"}}),
        rig.served("json_object", ""),
        rig.served("grammar", 'root ::= "(" root ")" | [0-9]{1,4}'),
    ]
    for seed in range(6):
        rng = random.Random(seed)
        lookup = ngrams(4, 1, 2) if rng.random() < 0.5 else None
        w = world(
            rng.randrange(1, 4), blocks=rng.choice([16, 24, 60]), max_len=48, max_seqs=rng.choice([2, 4, 7]),
            speculation=lookup, jump_forward=rng.random() < 0.6,
        )  # fmt: skip
        for h in range(14):
            grammar = rng.choice([*sources, None, None])
            prompt = tuple(rng.randrange(9) for _ in range(rng.randrange(1, 7)))
            w.submit(request(h, grammar, prompt, max_tokens=rng.randrange(1, 41), logprobs=rng.choice([-1, 2])))
            for _ in range(rng.randrange(4)):
                w.step()
            if rng.random() < 0.1:
                w.abort(h)
        w.drain()


ANY = msgspec.structs.replace(rig.source("regex", "x"), free_until=(rig.VOCAB - 1,))
"""Allows everything, as no text has its mark."""


@pytest.mark.parametrize(
    ("fields", "whole"),
    [
        pytest.param({}, True, id="greedy"),
        pytest.param({"temperature": 1.0}, True, id="drawn"),
        pytest.param({"temperature": 1.0, "top_p": 0.9}, False, id="top_p"),
        pytest.param({"temperature": 1.0, "top_k": 5}, False, id="top_k"),
    ],
)
def test_a_sequence_whose_tokens_are_allowed_is_in_every_step_unless_it_is_truncated(fields, whole: bool) -> None:
    w = world(depth=2)
    w.submit(request(1, ANY, max_tokens=30, **fields))
    w.submit(request(2, None, max_tokens=80, eos_ids=()))
    while w.tracked[1].finished is None:
        w.step()
    assert w.tracked[1].got == 30
    assert abs(w.tracked[2].got - (30 if whole else 60)) <= 3, "tokens of one that does not wait"
    w.drain()


@pytest.mark.parametrize("depth", [2, pytest.param(3, marks=pytest.mark.slow)])
def test_tokens_that_are_taken_back_change_nothing(depth: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every token is compared with the oracle's. Half of the hash model's bytes are in the grammar."""
    kept, back = [], []
    refuses = GrammarMatchers.refuses
    rewind = Slots.rewind
    monkeypatch.setattr(GrammarMatchers, "refuses", lambda *a: kept.append(refuses(*a)) or kept[-1])
    monkeypatch.setattr(Slots, "rewind", lambda self, slot: back.append(slot) or rewind(self, slot))
    most = rig.served("regex", r"(?s:.){5,80}x?")
    w = world(depth, blocks=24, max_len=80)
    for h in range(9):
        w.submit(request(h, most if h % 3 else None, max_tokens=50, logprobs=2 if h % 2 else -1, min_tokens=h % 4))
    w.drain()
    assert w.core.stats().preemptions
    assert len(back) == sum(kept) > 10
    assert len(kept) - sum(kept) > 40, "and most are right"


def test_nothing_is_drawn_ahead_where_it_cannot_be_taken_back() -> None:
    recurrent = world(windows=(0, -1), block_tokens=(4, 4), blocks=(120, 40))
    assert not recurrent.core.slots.may_hope
    recurrent.submit(request(1, ANY, max_tokens=9))
    recurrent.drain()


@pytest.mark.slow
def test_a_call_that_begins_in_free_text_is_one_of_the_tools() -> None:
    """What the server asks for strict tools: nothing is held before the token, everything after it."""
    turn = bind(TurnFormat(None, table.CALLS["hermes"]), MarkIsACall())
    tool = {"type": "object", "properties": {"n": {"enum": [1, 22]}}, "required": ["n"], "additionalProperties": False}
    source = rig.served("grammar", begun_grammar(turn, {"go": tool, "come": tool}, False))
    w = world(max_len=420, blocks=300)
    w.submit(request(0, None, max_tokens=40))
    w.drain()
    free = w.tracked[0].tokens
    w = world(max_len=420, blocks=300)
    w.submit(request(0, msgspec.structs.replace(source, free_until=(free[7],)), max_tokens=400))
    w.drain()
    first = free.index(free[7])
    assert w.tracked[0].tokens[: first + 1] == free[: first + 1]
    call = b"".join(rig.VOCABULARY.tokens[i] for i in w.tracked[0].tokens[first + 1 : -1]).decode()
    said = read(turn, mark(rig.MARK) + call, "", {"go": tool, "come": tool})
    assert w.tracked[0].finished == "stop"
    for made in said.calls:
        jsonschema.validate(json.loads(made.arguments), tool)
    assert {c.name for c in said.calls} <= {"go", "come"}
    assert said.calls


class MarkIsACall:
    added_tokens = {rig.MARK: "<tool_call>"}
    special_ids = frozenset({rig.MARK})
