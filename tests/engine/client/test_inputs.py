"""Requests are checked and resolved before the engine hears of them."""

from __future__ import annotations

import itertools
import random
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import vocabularies as v

from thalweg.config import CacheConfig, DeviceConfig, EngineConfig, ModelConfig, SchedulerConfig
from thalweg.engine.client.inputs import InputProcessor
from thalweg.engine.client.submission import Submission, choice_seed
from thalweg.errors import RequestError
from thalweg.params import MAX_BAD_CHARS, MAX_STOP_CHARS, RequestOutputKind, SamplingParams

VOCAB, MAX_LEN = 450, 40


def config(**model: Any) -> EngineConfig:
    fields = {"max_len": MAX_LEN, "vocab": VOCAB, "seed": 7, "max_logprobs": 5, **model}
    return EngineConfig(
        model=ModelConfig(
            path="", architecture="", dtype="float32", load_format="dummy", logprobs_mode="raw_logprobs", **fields
        ),
        device=DeviceConfig(platform="none"),
        cache=CacheConfig(block_tokens=16, groups=(), blocks=()),
        scheduler=SchedulerConfig(max_seqs=8, token_budget=64),
    )


def process(prompt: Any, tokenizer: Any = "byte_level", model: dict[str, Any] | None = None, **params: Any) -> Submission:
    tok = v.byte_level() if tokenizer == "byte_level" else tokenizer
    inputs = InputProcessor(config(**model or {}), tok, eos_ids=(2,), seed_source=random.Random(1))
    return inputs.process("r", prompt, SamplingParams(**params), handles=itertools.count(10))


def test_every_prompt_form_means_the_same_tokens() -> None:
    ids = v.byte_level().encode("the river")
    forms = ["the river", {"prompt": "the river"}, ids, tuple(ids), np.array(ids), {"prompt_token_ids": ids}]
    made = [process(f) for f in forms]
    assert all(s.prompt_ids == ids and s.requests[0].tokens.tolist() == ids for s in made)
    assert [s.prompt for s in made] == ["the river", "the river", None, None, None, None]
    both = process({"prompt": "shown", "prompt_token_ids": ids, "cache_salt": "tenant"})
    assert (both.prompt, both.prompt_ids, both.requests[0].cache_salt) == ("shown", ids, "tenant")
    assert made[0].requests[0].tokens.dtype == np.int32


@pytest.mark.parametrize(
    ("prompt", "param", "words"),
    [
        ("", "prompt", "is empty"),
        ([], "prompt_token_ids", "is empty"),
        ({}, "prompt", "give prompt"),
        ("x " * 100, "prompt", rf"\d+ tokens leave no room to answer in a context of {MAX_LEN} tokens; shorten"),
        ("x" * 10**6, "prompt", f"1000000 characters cannot fit the context of {MAX_LEN} tokens"),
        ([1] * MAX_LEN, "prompt_token_ids", f"{MAX_LEN} tokens leave no room"),
        ([1, VOCAB], "prompt_token_ids", f"token id {VOCAB} is not in the vocabulary"),
        ([-1], "prompt_token_ids", "token id -1"),
        ([2**40], "prompt_token_ids", "token id 1099511627776"),
        ([1, True], "prompt_token_ids", "integers, not True"),
        ([1, "2"], "prompt_token_ids", "integers, not '2'"),
        ([1.0], "prompt_token_ids", "integers, not 1.0"),
        ({"prompt_token_ids": "12"}, "prompt_token_ids", "must be a list of token ids"),
        ({"prompt": 3}, "prompt", "must be text"),
        (3, "prompt", "must be text or token ids"),
        (b"x", "prompt", "must be text or token ids"),
        ({"prompt": "a", "multi_modal_data": {}}, "multi_modal_data", "this is a text-only model"),
        ({"prompt": "a", "cache_salt": ""}, "cache_salt", "non-empty string"),
        ({"prompt": "a", "cache_salt": "s" * 2000}, "cache_salt", "at most 1024"),
        ("a\ud800", "prompt", "not valid Unicode text"),
    ],
)
def test_wrong_prompts_are_refused_by_field(prompt: Any, param: str, words: str) -> None:
    with pytest.raises(RequestError, match=words) as e:
        process(prompt)
    assert e.value.param == param


@pytest.mark.parametrize(
    ("params", "words"),
    [
        ({"logprobs": 6}, "logprobs: 6 is more than this engine's limit of 5"),
        ({"logprobs": -1}, "the whole vocabulary is more"),
        ({"prompt_logprobs": 9}, "prompt_logprobs: 9 is more"),
        ({"logit_bias": {VOCAB: 1.0}}, f"logit_bias: token id {VOCAB}"),
        ({"allowed_token_ids": [1, VOCAB]}, f"allowed_token_ids: token id {VOCAB}"),
        ({"stop_token_ids": [10**6]}, "stop_token_ids: token id 1000000"),
        ({"bad_words": ["  "]}, "bad_words: '  ' encodes to no tokens"),
        ({"bad_words": ["\udfff"]}, "bad_words: not valid Unicode"),
        ({"extra_args": {"no_such": 1}}, "extra_args: 'no_such' is not known; supported: alignment, states, timestamps"),
        ({"extra_args": {"timestamps": [1, 2, 3]}}, "extra_args: timestamps: this model does not transcribe audio"),
    ],
)
def test_parameters_this_model_cannot_honour_are_refused_by_field(params: dict[str, Any], words: str) -> None:
    with pytest.raises(RequestError, match=words) as e:
        process("a", **params)
    assert e.value.param == next(iter(params))


@pytest.mark.parametrize(("prompt", "params"), [("a", {}), ([1], {"stop": "x"}), ([1], {"bad_words": ["x"]})])
def test_without_a_tokenizer_text_is_refused_and_ids_are_served(prompt: Any, params: dict[str, Any]) -> None:
    with pytest.raises(RequestError, match="without a tokenizer"):
        process(prompt, tokenizer=None, **params)
    assert process([1, 2], tokenizer=None).prompt_ids == [1, 2]


def test_max_tokens_fills_the_context_and_never_passes_it() -> None:
    room = MAX_LEN - 3
    asked = {None: room, 5: 5, room: room, 10**6: room}
    got = {k: process([1, 2, 3], max_tokens=k).requests[0].sampling.max_tokens for k in asked}
    assert got == asked
    clamped = process([1, 2, 3], max_tokens=1000, min_tokens=900).requests[0].sampling
    assert clamped.min_tokens == room


def test_choices_share_the_prompt_and_differ_in_handle_and_seed() -> None:
    s = process("the", n=4, seed=-3, prompt_logprobs=2)
    assert [r.handle for r in s.requests] == [10, 11, 12, 13]
    seeds = [r.sampling.seed for r in s.requests]
    assert seeds == [choice_seed(-3, i) for i in range(4)]
    assert seeds[0] == -3
    assert len(set(seeds)) == 4
    assert [r.sampling.prompt_logprobs for r in s.requests] == [2, -1, -1, -1]
    assert [r.read_prefix_cache for r in s.requests] == [False, True, True, True]


def test_choice_seeds_are_splitmix64() -> None:
    """First outputs of SplitMix64 from state 1234567, as published with the reference implementation."""
    published = [6457827717110365317, 3203168211198807973, 9817491932198370423, 4593380528125082431, 16408922859458223821]
    assert [choice_seed(1234567, i) % 2**64 for i in range(1, 6)] == published
    assert all(-(2**63) <= choice_seed(s, i) < 2**63 for s in (-(2**63), 2**63 - 1, 0) for i in range(50))


def test_seeds_nobody_gave_come_from_the_engines_seed() -> None:
    def drawn(source: Callable[[], random.Random | None]) -> list[int]:
        inputs = InputProcessor(config(), v.byte_level(), seed_source=source())
        return [
            inputs.process(str(i), "a", SamplingParams(), handles=itertools.count()).requests[0].sampling.seed for i in range(3)
        ]

    assert drawn(lambda: None) == drawn(lambda: None)
    assert len(set(drawn(lambda: None))) == 3


def test_a_request_may_have_drafts_unless_the_caller_says_not() -> None:
    assert process("a").requests[0].sampling.drafts
    assert not any(r.sampling.drafts for r in process("a", n=2, disable_spec_decode=True).requests)


def test_prefix_cache_is_read_unless_the_caller_says_not() -> None:
    assert process("a").requests[0].read_prefix_cache
    assert not process("a", skip_reading_prefix_cache=True).requests[0].read_prefix_cache
    assert not process("a", prompt_logprobs=0).requests[0].read_prefix_cache


def test_logprobs_of_the_whole_vocabulary_where_allowed() -> None:
    s = process("a", model={"max_logprobs": -1}, logprobs=-1, prompt_logprobs=0).requests[0].sampling
    assert (s.logprobs, s.prompt_logprobs) == (VOCAB, 0)
    assert process("a").requests[0].sampling.logprobs == -1


def test_everything_else_arrives_as_it_was_asked() -> None:
    s = process(
        "a", temperature=0.5, top_k=10**6, top_p=0.9, min_p=0.1, repetition_penalty=1.1, presence_penalty=0.2,
        frequency_penalty=0.3, stop_token_ids=[5], logit_bias={3: -100, 1: 2.5}, allowed_token_ids=[9, 1, 9], min_tokens=2,
    ).requests[0].sampling  # fmt: skip
    assert (s.temperature, s.top_k, s.top_p, s.min_p) == (0.5, 0, 0.9, 0.1)
    assert (s.repetition_penalty, s.presence_penalty, s.frequency_penalty, s.min_tokens) == (1.1, 0.2, 0.3, 2)
    assert (s.eos_ids, s.stop_ids) == ((2,), (5,))
    assert (s.logit_bias, s.allowed_ids) == (((1, 2.5), (3, -100)), (1, 9))
    assert process("a", ignore_eos=True).requests[0].sampling.eos_ids == ()


def test_bad_words_are_banned_at_the_start_and_after_a_space() -> None:
    tok = v.byte_level()
    words = process("a", bad_words=["river", " the"]).requests[0].sampling.bad_words
    texts = [tok.decode(w) for w in words]
    assert {"river", "the"} <= set(texts)
    assert all(tok.decode(w) in ("river", " river", "the", " the") for w in words)
    # A spaced form is there exactly when it is as long and begins differently.
    for word in ("river", "the"):
        bare, spaced = (tok.encode(p + word) for p in ("", " "))
        assert (tuple(spaced) in words) == (len(bare) == len(spaced) and bare[0] != spaced[0])


@pytest.mark.parametrize("priority", [True, "1", 2**40, 1.5])
def test_priority_must_be_a_small_integer(priority: Any) -> None:
    inputs = InputProcessor(config(), v.byte_level())
    with pytest.raises(RequestError, match="priority"):
        inputs.process("r", "a", SamplingParams(), priority=priority, handles=itertools.count())


def test_only_requests_told_at_their_end_are_not_streamed() -> None:
    told = {kind: process("a", output_kind=kind).requests[0].streamed for kind in RequestOutputKind}
    assert told == {kind: kind is not RequestOutputKind.FINAL_ONLY for kind in RequestOutputKind}


def test_stop_strings_and_bad_words_have_a_budget_of_characters_together() -> None:
    for name, most in (("stop", MAX_STOP_CHARS), ("bad_words", MAX_BAD_CHARS)):
        half = "x" * (most // 2)
        SamplingParams(**{name: [half, half]})
        with pytest.raises(RequestError, match=f"{name}: {most + 1} characters together; the limit is {most}") as e:
            SamplingParams(**{name: [half, half, "x"]})
        assert e.value.param == name


def test_what_was_prepared_is_not_read_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """The prompts and choices of a request share their words; a server prepares them on a thread."""
    tokenizer = v.byte_level()
    inputs = InputProcessor(config(), tokenizer, seed_source=random.Random(1))
    params = SamplingParams(bad_words=["river", " the"], stop=["river mouth"])
    inputs.prepare(params)
    monkeypatch.setattr(tokenizer, "encode_batch", None)
    made = [inputs.process(f"r{i}", [1, 2], params, handles=itertools.count(10)) for i in range(2)]
    assert made[0].requests[0].sampling.bad_words is made[1].requests[0].sampling.bad_words


def test_a_request_run_in_parts_draws_the_same_seeds() -> None:
    whole = process([1, 2], n=5, seed=9).requests
    inputs = InputProcessor(config(), v.byte_level(), seed_source=random.Random(1))
    later = inputs.process("r", [1, 2], SamplingParams(n=2, seed=9), handles=itertools.count(10), first_choice=3)
    assert [r.sampling.seed for r in later.requests] == [r.sampling.seed for r in whole[3:]]


@pytest.mark.parametrize("name", ["ignore_eos", "detokenize", "skip_special_tokens", "disable_spec_decode"])
def test_a_flag_in_words_is_not_true(name: str) -> None:
    """ignore_eos="false", as clients of /inference/v1/generate may send it, was read as true."""
    with pytest.raises(RequestError, match=f"{name} must be true or false, not 'false'"):
        SamplingParams(**{name: "false"})
    assert getattr(SamplingParams(**{name: 1}), name) == 1
