"""Drafts by n-gram lookup against a walk over all tokens: what is proposed, from the prompt and from what came after it."""

from __future__ import annotations

import numpy as np
import pytest
from amounts import some
from hypothesis import given, settings
from hypothesis import strategies as st
from world import World, make_config, ngrams

from thalweg.drafters import SpeculationConfig
from thalweg.engine.control.slots import Slots
from thalweg.engine.control.speculation.ngram import LONGEST_REST, NGramDrafter
from thalweg.engine.messages import EngineRequest, TokenSampling

MOST = 5


def expected(tokens: list[int], low: int, high: int, most: int) -> list[int]:
    """After the latest earlier occurrence of the longest n-gram at the end; what is copied may be copied again."""
    for n in range(high, low - 1, -1):
        for end in range(len(tokens) - 1, n - 1, -1):
            if len(tokens) > n and tokens[end - n : end] == tokens[-n:]:
                whole = list(tokens)
                for i in range(most):
                    whole.append(whole[end + i])
                return whole[len(tokens) :]
    return []


class Rig:
    def __init__(self, prompt: list[int], low: int, high: int) -> None:
        self.slots = Slots(2, 500)
        self.slots.serial[1] = 7
        self.drafter = NGramDrafter(ngrams(MOST, low, high), self.slots)
        self.say(prompt)

    def propose(self, most: int) -> list[int]:
        return self.drafter.propose(np.array([1], np.int32), np.array([most], np.int32)).split()[0]

    def learn(self, accepted: int) -> None:
        self.drafter.learn(np.array([1], np.int32), np.array([accepted], np.int32))

    def say(self, tokens: list[int]) -> None:
        known = int(self.slots.known[1])
        self.slots.tokens[1, known : known + len(tokens)] = tokens
        self.slots.known[1] += len(tokens)


@given(
    prompt=st.lists(st.integers(0, 3), min_size=1, max_size=40),
    more=st.lists(st.tuples(st.lists(st.integers(0, 3), min_size=1, max_size=6), st.booleans()), max_size=12),
    low=st.integers(1, 3), wider=st.integers(0, 3), most=st.integers(1, MOST),
)  # fmt: skip
@settings(max_examples=some(60, 300), deadline=None)
@pytest.mark.slow
def test_what_is_proposed_is_what_followed_last_time(prompt, more, low, wider, most):
    rig, said = Rig(prompt, low, low + wider), list(prompt)
    for tokens, look in [([], True), *more]:
        rig.say(tokens)
        said += tokens
        if look:
            rig.learn(MOST)  # as many as may be
            rig.learn(MOST)
            want = expected(said, low, low + wider, most)
            assert rig.drafter.is_promising(np.array([1])).tolist() == [bool(want)]
            assert rig.propose(most) == want


def test_another_sequence_in_the_slot_is_another_index():
    rig = Rig([1, 2, 3, 1, 2], 2, 2)
    assert rig.propose(2) == [3, 1]
    rig.slots.serial[1], rig.slots.known[1] = 8, 0
    rig.say([1, 2, 9, 1, 2])
    assert rig.propose(2) == [9, 1]


def test_a_sequence_without_luck_is_left_alone_for_longer_and_longer():
    rig, rests = Rig([1, 2] * 10, 1, 2), []
    for _ in range(9):
        rig.learn(0)
        rest = 0
        while not rig.propose(1):
            rig.say([1 + rest % 2])
            rest += 1
        rests.append(rest)
    assert rests == [0, 4, 8, 16, 32, LONGEST_REST, LONGEST_REST, LONGEST_REST, LONGEST_REST]
    rig.learn(1)
    rig.learn(0)
    assert rig.propose(1)


def test_there_are_as_many_drafts_as_were_right_and_one_more_or_twice_as_many():
    rig, widths = Rig([1, 2, 3, 4, 5, 6, 7] * 3, 2, 2), []
    for accepted in (2, 4, 5, 3, 0, 1, 1, 2):
        widths.append(len(rig.propose(MOST)))
        rig.learn(accepted)
    assert widths == [2, 4, 5, 5, 4, 1, 2, 2]


def answers(speculation: SpeculationConfig | None, depth: int) -> tuple[dict[int, list[int]], World]:
    """A small vocabulary makes the hash model repeat itself now and then; prompts that loop are copied."""
    w = World(make_config(vocab=5, max_len=120, blocks=50, depth=depth, max_seqs=6, speculation=speculation))
    for h in range(14):
        tokens = np.array([h % 5, *[1, 2, 3] * 4], np.int32)
        p = TokenSampling(max_tokens=60, temperature=0.5 * (h % 2), seed=h)
        w.submit(EngineRequest(handle=h, tokens=tokens, prompt_len=tokens.size, sampling=p))
    w.drain()
    return {h: t.tokens[: t.got] for h, t in w.tracked.items()}, w


@pytest.mark.parametrize("depth", [2, *(pytest.param(d, marks=pytest.mark.slow) for d in (1, 3))])
def test_what_is_said_is_the_same_with_drafts_and_without(depth):
    without, _ = answers(None, depth)
    with_drafts, w = answers(ngrams(3, 1, 3), depth)
    assert with_drafts == without
    stats = w.core.stats()
    assert stats.preemptions > 0
    assert 0 < stats.accepted_tokens < stats.draft_tokens  # how many depends on whether they pay
    assert sum(stats.accepted_per_position) == stats.accepted_tokens
    assert stats.drafts <= stats.draft_tokens
