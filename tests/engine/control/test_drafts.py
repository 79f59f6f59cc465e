"""Drafts: what is said does not depend on them; ranges of tokens end where single ones would; only what is accepted counts.

The drafter here (`world.Guesser`) knows the truth and is right as often as a test wants. Random worlds with faults have
drafts too (tests/rigs).
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from world import World, make_config

from thalweg.backends.null import SimClock
from thalweg.engine.messages import EngineRequest, TokenSampling
from thalweg.errors import ConfigError
from thalweg.hal.parts.drafts import Drafts
from thalweg.hal.parts.mask import Mask
from thalweg.hal.parts.penalties import Penalties
from thalweg.hal.parts.proposing import Proposing

MOST = 4


def everyone(slots: np.ndarray) -> np.ndarray:
    return np.ones(slots.size, bool)


def world(*, luck=1.0, **config) -> World:
    """Every sequence that may have drafts has as many as may be, and waits for its turn to."""
    w = World(make_config(**({"max_len": 96, "blocks": 80, "depth": 1} | config)), drafts=MOST, luck=luck)
    w.batch_log = []
    guesser = w.core.scheduler.speculator.drafter

    def guess(slot: int, most: int) -> list[int]:
        t, vocab = w.tracked[int(guesser.slots.handle[slot])], w.config.model.vocab
        said = int(guesser.slots.known[slot]) - t.request.prompt_len
        right = [*t.tokens[said:], *[0] * most][:most]
        return [x if guesser.rng.random() < luck else (x + 1) % vocab for x in right]

    guesser.guess, guesser.is_promising = guess, everyone
    w.core.scheduler.speculator.gain.allows = lambda rows: True  # whatever this machine's clock says
    return w


def ask(w: World, handle: int, prompt, max_tokens: int = 20, **fields) -> None:
    tokens = np.array(prompt, np.int32)
    sampling = TokenSampling(max_tokens=max_tokens, **fields)
    w.submit(EngineRequest(handle=handle, tokens=tokens, prompt_len=tokens.size, sampling=sampling))


def test_right_drafts_are_all_taken_and_one_token_more():
    w = world()
    ask(w, 0, [1, 2, 3], 21)
    w.drain()
    assert [int(b.query.sum()) for b in w.batch_log] == [3, 5, 5, 5, 5]
    drafts = w.core.scheduler.counters.drafts
    assert (drafts.rounds, drafts.drafted, drafts.accepted, drafts.per_position) == (4, 16, 16, [4, 4, 4, 4])
    assert w.tracked[0].rounds == bytes((4, 4) * 4)


def test_wrong_drafts_cost_a_step_no_token():
    w = world(luck=0.0)
    ask(w, 0, [1, 2, 3], 12)
    w.drain()
    drafts = w.core.scheduler.counters.drafts
    assert drafts.accepted == 0
    assert drafts.drafted > 20
    assert len(w.batch_log) == 12


@pytest.mark.parametrize("place", range(1, 9))
@pytest.mark.parametrize("kind", ["eos_ids", "stop_ids", "many"])
def test_a_stop_token_inside_a_range_cuts_it(place, kind):
    w = world(vocab=997)
    ask(w, 0, [5, 6, 7], 20)
    w.drain()
    said = w.tracked[0].tokens
    stops = {"stop_ids": (*range(500, 520), said[place])} if kind == "many" else {kind: (said[place],)}
    ask(w, 1, [5, 6, 7], 20, **stops)
    w.drain()
    assert w.tracked[1].log, "nothing came out"
    assert w.tracked[1].got == said.index(said[place]) + 1
    assert w.tracked[1].finished == "stop"


@pytest.mark.parametrize("max_tokens", range(1, 12))
def test_a_range_ends_at_max_tokens(max_tokens):
    w = world()
    ask(w, 0, [1, 2, 3], max_tokens)
    w.drain()
    assert (w.tracked[0].got, w.tracked[0].finished) == (max_tokens, "length")


def test_a_range_ends_with_the_context():
    w = world(max_len=16)
    ask(w, 0, [1, 2, 3], 100)
    w.drain()
    assert w.tracked[0].got == 13


@pytest.mark.parametrize(
    "fields",
    [
        {"repetition_penalty": 1.1},
        {"logit_bias": ((1, 1.5),)},
        {"bad_words": tuple((a, b) for a in range(64) for b in range(0, 64, 9))},
        {"min_tokens": 7, "stop_ids": tuple(range(0, 64, 2)), "logit_bias": ((1, float("-inf")),)},
        {"logprobs": 1},
    ],
)
@pytest.mark.parametrize("luck", [0.0, 0.6, 1.0])
def test_sequences_whose_logits_change_with_every_token_have_drafts(fields, luck):
    w = world(luck=luck)
    ask(w, 0, [1, 2, 3], 15, **fields)
    ask(w, 1, [4, 5, 6], 15)
    w.drain()
    found = [(b, d) for b in w.batch_log if (d := b.get(Drafts)) is not None]
    owners = {int(w_slot) for b, d in found for w_slot in b.slots[b.token_seq[d.row]]}
    assert len(owners) == 2
    drafts = w.core.scheduler.counters.drafts
    assert drafts.accepted >= 0.7 * drafts.drafted if luck == 1 else drafts.accepted < drafts.drafted


@pytest.mark.parametrize("fields", [{"repetition_penalty": 1.1}, {"drafts": False}])
def test_a_sequence_has_no_drafts_by_request_or_with_a_part_that_is_not_computed_for_them(monkeypatch, fields):
    monkeypatch.setattr(Penalties, "drafts", False)
    w = world()
    ask(w, 0, [1, 2, 3], 15, **fields)
    ask(w, 1, [4, 5, 6], 15)
    w.drain()
    found = [(b, d) for b in w.batch_log if (d := b.get(Drafts)) is not None]
    owners = {int(w_slot) for b, d in found for w_slot in b.slots[b.token_seq[d.row]]}
    assert len(owners) == 1
    assert any(b.slots.size == 2 for b, _ in found)
    assert w.tracked[0].rounds == b""
    assert w.tracked[1].rounds


def test_rounds_of_a_sequence_outlive_its_slot():
    w = world(blocks=14, luck=0.5)
    for handle in range(4):
        ask(w, handle, [1 + handle, 2, 3], 30)
    w.drain()
    drafts, rounds = w.core.scheduler.counters.drafts, [t.rounds for t in w.tracked.values()]
    assert w.core.scheduler.counters.preemptions > 0
    assert sum(len(r) // 2 for r in rounds) == drafts.rounds
    assert (sum(sum(r[::2]) for r in rounds), sum(sum(r[1::2]) for r in rounds)) == (drafts.drafted, drafts.accepted)


def test_masks_have_a_row_for_each_draft_and_others_beside_them_none_to_speak_of():
    """Those that are allowed are another half of the vocabulary each: no token is the one that is said without a mask."""
    w = world()
    for h in range(4):
        ask(w, h, [1, 2, 3], 15, allowed_ids=tuple(range(h % 2, 64, 2)) if h < 3 else ())
    w.drain()
    assert max(b.get(Mask).ahead.shape[0] for b in w.batch_log if b.get(Mask)) == 4 * MOST
    assert w.core.scheduler.counters.drafts.accepted == w.core.scheduler.counters.drafts.drafted == 44


def test_a_sequence_with_drafts_sits_out_while_others_go_on(monkeypatch):
    monkeypatch.setattr(Penalties, "drafts", False)
    w = world(depth=2)
    ask(w, 0, [1, 2, 3], 30)
    ask(w, 1, [4, 5, 6], 30, repetition_penalty=1.1)
    w.drain()
    alone = [b for b in w.batch_log[2:] if b.slots.size == 1]
    both = [b for b in w.batch_log[2:] if b.slots.size == 2]
    assert both
    assert alone
    assert all(b.query.tolist() == [1, 1 + MOST] for b in both[:-1])


def test_sequences_with_drafts_go_in_one_step_and_not_each_half_in_its_own():
    """The second ends its prompt in a chunk that is in flight together with drafts of the first: they are out of step."""
    w = world(depth=2, max_tokens=64, long_prefill_threshold=3)
    ask(w, 0, [1, 2, 3], 60)
    w.step()
    ask(w, 1, [4, 5, 6, 7, 8, 9], 60)
    w.drain()
    sizes = [b.slots.size for b in w.batch_log]
    assert sizes[:4] == [1, 2, 1, 1]
    assert sizes[4:12] == [2] * 8


def test_only_what_was_accepted_is_published():
    w = world(luck=0.5, block_tokens=2, max_len=64)
    ask(w, 0, [1, 2, 3], 40)
    w.drain()
    said = [1, 2, 3, *w.tracked[0].tokens]
    for h in range(1, 8):
        ask(w, h, said[: 6 * h], 8)
        w.drain()  # a wrong block would give wrong tokens
    assert w.core.stats().prefix_hits > 60


def test_drafts_take_no_block_that_others_will_need(monkeypatch):
    monkeypatch.setattr(Penalties, "drafts", False)
    preemptions = []
    for drafts in (True, False):
        w = world(blocks=13, block_tokens=2, max_len=24, max_seqs=3, luck=0.0)
        for h in range(3):
            ask(w, h, [h + 1] * 2, 18, repetition_penalty=1.0 if drafts else 1.1)
        w.drain()
        preemptions.append(w.core.stats().preemptions)
    assert preemptions[0] == preemptions[1]


def test_a_step_that_returns_more_than_asked_for_is_found():
    w = world()
    ask(w, 0, [1, 2, 3], 20)
    w.step()
    run = w.run

    def generous(batch):
        done = run(batch)
        result = done.result()
        result.counts = result.counts + 9
        return done

    w.run = generous
    with pytest.raises(AssertionError, match="more tokens than it was asked for"):
        w.step()


def test_drafts_without_spare_blocks_for_states_are_refused_in_words():
    with pytest.raises(ConfigError, match=r"speculative_config: KV groups \[1\] have no spare blocks"):
        World(make_config(windows=(0, -1)), drafts=2)


@pytest.mark.parametrize("depth", [1, 2])
def test_a_state_goes_on_from_what_was_accepted(depth):
    """Half of the drafts are wrong, and a state that had gone on by one would change every later token."""
    w = world(luck=0.5, windows=(0, -1), spare=True, depth=depth, block_tokens=(2, 8), max_len=64)
    for h in range(3):
        ask(w, h, [h, 2, 3], 40)
    w.drain()
    assert 0 < w.core.stats().accepted_tokens < w.core.stats().draft_tokens
    said = [0, 2, 3, *w.tracked[0].tokens]
    ask(w, 9, said[:30], 20)  # from a state that was kept while drafts were verified
    w.drain()
    assert w.core.stats().prefix_hits


@pytest.mark.parametrize("depth", [1, 3])
def test_what_a_step_proposes_the_next_one_verifies(depth):
    """Sequences come, go and are preempted: what was proposed after other tokens is not used."""
    w = World(make_config(max_len=48, blocks=24, depth=depth, max_seqs=4), drafts=MOST, luck=0.8, on_device=True)
    w.core.scheduler.speculator.gain.allows = lambda streams: streams % 4 != 3  # the tail comes and goes
    w.batch_log = []
    for h in range(12):
        ask(w, h, [h + 1] * (1 + h % 5), 30, logprobs=-1 if h % 4 else 0)
    w.drain()
    stats = w.core.stats()
    assert stats.preemptions
    assert 0.3 * stats.draft_tokens < stats.accepted_tokens < stats.draft_tokens
    assert {b.get(Proposing) is None for b in w.batch_log} == {True, False}
    fresh = [p.fresh for b in w.batch_log if (p := b.get(Proposing)) is not None]
    assert any(f.any() for f in fresh)
    assert any(not f.all() for f in fresh)


def test_steps_of_requests_without_drafts_propose_none():
    w = World(make_config(max_len=48, blocks=24, max_seqs=4), drafts=MOST, luck=0.8, on_device=True)
    w.core.scheduler.speculator.gain.allows = lambda streams: True
    w.batch_log = []
    ask(w, 0, [1, 2, 3], 30, drafts=False)
    w.drain()
    assert all(b.get(Proposing) is None for b in w.batch_log[2:])  # the first are of a prompt


# ---------------------------------------------------------------- do they pay? (a simulated clock)


def spent(drafts: int, luck: float, base: float, per_token: float, depth: int) -> float:
    """Simulated seconds of eight streams on a device whose steps take base + per_token for each of their tokens."""
    clock = SimClock()
    w = World(
        make_config(vocab=997, max_len=400, blocks=900, depth=depth, max_tokens=256), drafts=drafts, luck=luck, clock=clock,
        deferred=True, check=False,
    )  # fmt: skip
    w.options = replace(w.options, base=base, per_token=per_token, clock=clock)
    w.boot()
    if drafts:
        w.core.scheduler.speculator.drafter.is_promising = everyone
    for h in range(8):
        ask(w, h, [h + 1, 2, 3], 300)
    w.drain()
    return clock()


@pytest.mark.parametrize("depth", [1, 2])
def test_where_tokens_cost_little_drafts_make_all_faster(depth):
    assert spent(MOST, 0.95, 1.0, 0.001, depth) < 0.65 * spent(0, 0, 1.0, 0.001, depth)


@pytest.mark.parametrize("depth", [1, 2])
@pytest.mark.parametrize("luck", [0.0, 0.3])
@pytest.mark.sampled(1)
def test_where_every_token_costs_drafts_are_soon_given_up(depth, luck):
    assert spent(MOST, luck, 0.1, 0.1, depth) < 1.15 * spent(0, 0, 0.1, 0.1, depth)
