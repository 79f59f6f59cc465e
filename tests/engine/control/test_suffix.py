"""Suffix drafts: the votes after the longest match, in the sequence and in outputs of the same scope, within bounds."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from world import World, make_config, suffixes

from thalweg.engine.control.speculation import suffix
from thalweg.engine.control.speculation.suffix import PLACES, SuffixDrafter
from thalweg.engine.messages import EngineRequest, TokenSampling

SPEC = {"depth": 8, "factor": 2.0, "least": 0.3}


def find_drafts(tokens: list[int], most: int) -> list[int]:
    """By a walk over all tokens: each earlier place is compared with the end."""

    def common(end: int) -> int:
        n = 0
        while n < min(end, SPEC["depth"]) and tokens[end - 1 - n] == tokens[-1 - n]:
            n += 1
        return n

    lengths = {end: common(end) for end in range(1, len(tokens))}
    longest = max(lengths.values(), default=0)
    places = [end for end in reversed(lengths) if lengths[end] == longest] if longest > 1 else []
    said, probability = list(tokens), 1.0
    while places and len(said) - len(tokens) < min(most, int(SPEC["factor"] * longest)):
        followers = [said[at] for at in places]
        best = max(followers, key=followers.count)
        probability *= followers.count(best) / len(followers)
        if probability < SPEC["least"]:
            break
        said.append(best)
        places = [at + 1 for at, token in zip(places, followers, strict=True) if token == best]
    return said[len(tokens) :]


def make_world(**fields: Any) -> World:
    return World(make_config(speculation=suffixes(6, **fields), max_len=200, blocks=200, depth=1, max_tokens=256))


def drafter(w: World) -> SuffixDrafter:
    return w.core.scheduler.speculator.drafter._drafter  # in its guard


def ask(w: World, handle: int, prompt: list[int], **fields: Any) -> None:
    tokens, sampling = np.array(prompt, np.int32), TokenSampling(max_tokens=12)
    w.submit(EngineRequest(handle=handle, tokens=tokens, prompt_len=tokens.size, sampling=sampling, **fields))


@given(st.lists(st.integers(0, 2), min_size=2, max_size=PLACES), st.integers(1, 6))
@settings(max_examples=60, deadline=None)
def test_drafts_are_the_votes_after_the_longest_match(tokens: list[int], most: int) -> None:
    w = make_world(**SPEC, requests=0)
    ask(w, 0, tokens[:-1])
    w.core.scheduler.schedule(0)  # it has a slot
    slots, slot = w.core.slots, w.core.scheduler.running[0].slot
    slots.tokens[slot, len(tokens) - 1], slots.known[slot] = tokens[-1], len(tokens)
    assert drafter(w).propose(np.array([slot]), np.array([most])).split() == [find_drafts(tokens, most)]


@pytest.mark.parametrize(
    ("first", "second", "shared"),
    [({}, {}, True), ({"cache_salt": "a"}, {"cache_salt": "a"}, True), ({"cache_salt": "a"}, {}, False),
     ({"cache_salt": "a"}, {"cache_salt": "b"}, False)],
)  # fmt: skip
def test_outputs_are_proposed_to_requests_of_the_same_salt_only(first, second, shared) -> None:
    """The tokens of this model follow from the prompt, so an equal prompt has the same output."""
    w = make_world()
    w.core.scheduler.speculator.gain.allows = lambda streams: True
    ask(w, 0, [1, 2, 3], **first)
    w.drain()
    before = w.core.stats().accepted_tokens
    ask(w, 1, [1, 2, 3], **second)
    w.drain()
    assert (w.core.stats().accepted_tokens - before > 5) == shared


def test_adapters_are_scopes_too() -> None:
    w = World(make_config(speculation=suffixes(6), adapter_slots=2), adapters=2, loaded=(b"a",))
    ask(w, 0, [1, 2, 3], adapter=b"a")
    w.drain()
    outputs = drafter(w).outputs
    (text,) = outputs._texts.values()
    assert text.scope != b""
    assert outputs.index.longest(text.scope, text.tokens[:3], 8, None)[1]
    assert not outputs.index.longest(b"", text.tokens[:3], 8, None)[1]


def test_cached_outputs_are_bounded_in_requests_and_tokens(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(suffix, "MOST_TOKENS", 40)
    w = make_world(requests=5)
    for h in range(20):
        ask(w, h, [h, 1, 2])
        w.drain()
        outputs = drafter(w).outputs
        kept = [each.tokens for each in outputs._texts.values()]
        assert outputs.tokens == sum(map(len, kept)) <= 40
        assert outputs.requests <= 5
    assert kept[-1] == w.tracked[19].tokens
    assert {text for places in outputs.index._places.values() for text, _ in places} <= set(outputs._texts.values())


def test_the_least_recently_used_output_is_forgotten() -> None:
    outputs = suffix._Outputs((2,), 2)
    a, b, c = (suffix._CachedText() for _ in range(3))
    for text in (a, b, a, c):
        outputs.append(text, [1, 2])
    assert [a.cached, b.cached, c.cached] == [True, False, True]


def test_equal_tokens_cost_a_bounded_number_of_comparisons(monkeypatch: pytest.MonkeyPatch) -> None:
    compared = []
    common = suffix._common
    monkeypatch.setattr(suffix, "_common", lambda *args: compared.append(common(*args)) or compared[-1])
    w = make_world()
    ask(w, 0, [7] * 180)
    w.core.scheduler.schedule(0)
    slot = w.core.scheduler.running[0].slot
    assert drafter(w).propose(np.array([slot]), np.array([6])).split() == [[7] * 6]
    assert len(compared) <= 2 * PLACES
    assert max(compared) <= 24
