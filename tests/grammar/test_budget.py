"""A bound on reasoning: which tokens are forced and when, alone, beside a grammar, and through an engine."""

from __future__ import annotations

import numpy as np
import pytest

from thalweg.config import EngineArgs
from thalweg.engine.client.thinking import ReasoningMarkers, marks
from thalweg.errors import ConfigError, RequestError
from thalweg.grammar.budget import ALL, BudgetMatcher
from thalweg.grammar.source import Budget
from thalweg.llm import LLM
from thalweg.params import SamplingParams, StructuredOutputsParams

OPEN, CLOSE = (7,), (8, 9)


def allowed(follower: BudgetMatcher) -> set[int] | None:
    """The tokens that may come next. None: all."""
    words = np.zeros(2, np.uint32)
    follower.mask(words)
    return None if (words == ALL).all() else {i for i in range(64) if words[i // 32] >> np.uint32(i % 32) & 1}


def bounded(most: int, begun: int = -1, forced: tuple[int, ...] = CLOSE, inner: object = None) -> BudgetMatcher:
    return BudgetMatcher(Budget(open=OPEN, close=CLOSE, forced=forced, most=most, begun=begun), inner)  # type: ignore[arg-type]


def test_reasoning_ends_where_the_budget_does_and_text_is_free_elsewhere():
    follower = bounded(3)
    follower.accept([1, 2, 3, 4, 5])
    assert allowed(follower) is None
    follower.accept([7, 1, 1])
    assert allowed(follower) is None
    follower.accept([1])
    assert allowed(follower) == {8}
    follower.accept([8])
    assert allowed(follower) == {9}
    follower.accept([9, 1, 1, 1, 1, 1])
    assert allowed(follower) is None
    follower.accept([7])  # it begins anew, and nothing is left
    assert allowed(follower) == {8}


def test_reasoning_that_ends_by_itself_or_began_in_the_prompt_is_counted_so():
    follower = bounded(4)
    follower.accept([7, 1, 8, 9, 2, 2, 2, 2])
    assert allowed(follower) is None
    assert allowed(bounded(2, begun=2)) == {8}
    follower = bounded(3, begun=2, forced=(5, 8, 9))
    assert allowed(follower) is None
    follower.accept([1])
    for token in (5, 8, 9):
        assert allowed(follower) == {token}
        follower.accept([token])
    assert allowed(follower) is None
    assert allowed(bounded(0, begun=0)) == {8}


def test_a_grammar_beside_it_sees_every_token():
    class Inner:
        seen: list[int] = []

        def accept(self, tokens):
            self.seen += tokens

        def mask(self, words):
            words[:] = 0
            words[1] = 4

    inner = Inner()
    follower = bounded(1, begun=0, inner=inner)
    assert allowed(follower) == {34}
    follower.accept([34])
    assert allowed(follower) == {8}
    follower.accept([8, 9, 34])
    assert (inner.seen, allowed(follower)) == ([34, 8, 9, 34], {34})


def test_a_prompt_says_whether_reasoning_has_begun():
    found = ReasoningMarkers(OPEN, CLOSE, (5, *CLOSE))
    begun = [found.budget(3, p).begun for p in ([1, 2], [1, 7], [7, 1, 1], [7, 1, 8, 9], [7, 8, 9, 7, 1], [8, 9, 1])]
    assert begun == [-1, 0, 2, -1, 1, -1]


@pytest.fixture(scope="module")
def nano():
    llm = LLM(
        device="cpu", max_model_len=128, num_gpu_blocks_override=64, use_tqdm_on_load=False,
        reasoning_config={"reasoning_start_str": "3 +", "reasoning_end_str": " so §"},
    )  # fmt: skip
    yield llm
    llm.shutdown()


def test_an_engine_ends_reasoning_and_what_comes_before_is_the_same(nano):
    tokenizer = nano.get_tokenizer()
    forced = tokenizer.encode(" so §", False)
    plain, cut, late = (
        SamplingParams(temperature=t, seed=3, max_tokens=24, ignore_eos=True, thinking_token_budget=b)
        for t, b in ((0.8, None), (0.8, 6), (0.8, 1000))
    )
    free, bound, loose = (nano.generate("3 +", p, use_tqdm=False)[0].outputs[0].token_ids for p in (plain, cut, late))
    assert list(loose) == list(free)
    assert list(bound[:6]) == list(free[:6])
    assert list(bound[6 : 6 + len(forced)]) == forced
    assert len(bound) == 24
    drawn = SamplingParams(max_tokens=24, seed=1, top_p=0.9, n=2, thinking_token_budget=2, ignore_eos=True)
    for choice in nano.generate("3 +", drawn, use_tqdm=False)[0].outputs:
        assert list(choice.token_ids[2 : 2 + len(forced)]) == forced


def test_the_answer_behind_it_may_follow_a_grammar(nano):
    until = nano.get_tokenizer().encode(" so §", False)[-1]
    asked = StructuredOutputsParams(choice=["yes", "no"], free_until=[until])
    params = SamplingParams(temperature=0, max_tokens=40, thinking_token_budget=4, structured_outputs=asked)
    choice = nano.generate("3 +", params, use_tqdm=False)[0].outputs[0]
    assert choice.text.endswith((" so §yes", " so §no"))
    assert choice.finish_reason == "stop"


def test_what_nothing_says_is_refused_by_name(nano):
    for said, words in (
        ({"end": "x"}, "'end' is not known"),
        ({"reasoning_parser": "nothing"}, "unknown parser 'nothing'; supported: "),
        ({"reasoning_end_str": 3}, "must be text"),
    ):
        with pytest.raises(ConfigError, match=words):
            marks(said, nano.get_tokenizer())
    with pytest.raises(ConfigError, match="skip-tokenizer-init"):
        marks({"reasoning_start_str": "<think>"}, None)
    assert marks(None, None) is None

    class Poor:
        def encode(self, text, special):
            raise RequestError("no such letters")

    assert marks(None, Poor()) is None
    with pytest.raises(ConfigError, match="no such letters"):
        marks({"reasoning_parser": "qwen3"}, Poor())
    with pytest.raises(RequestError, match="thinking_token_budget"):
        SamplingParams(thinking_token_budget=-1)
    llm = LLM(device="null", max_model_len=64)
    try:
        if marks(EngineArgs().reasoning_config, llm.get_tokenizer()) is None:
            with pytest.raises(RequestError, match="--reasoning-config"):
                llm.generate("a", SamplingParams(thinking_token_budget=3), use_tqdm=False)
    finally:
        llm.shutdown()
