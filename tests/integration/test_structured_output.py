"""Structured output end to end, on the bundled model: valid whatever happens, and the same with the same seed."""

from __future__ import annotations

import asyncio
import json
import os
import random
import re
import signal
from typing import Any

import jsonschema
import pytest

from thalweg import LLM, AsyncLLM, EngineArgs, SamplingParams, StructuredOutputsParams
from thalweg.errors import RequestError

ARGS = {"device": "cpu", "max_model_len": 256, "max_num_seqs": 8, "threads": 1, "use_tqdm_on_load": False}
SCHEMA = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "maxLength": 6},
        "n": {"type": "integer", "minimum": 0, "maximum": 99},
        "more": {"type": "array", "items": {"enum": ["x", "y", None]}, "maxItems": 3},
    },
    "required": ["name", "n", "more"],
    "additionalProperties": False,
}


def strict(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    assert len({k for k, _ in pairs}) == len(pairs), f"a key twice: {pairs}"
    return dict(pairs)


def check(text: str, schema: dict[str, Any]) -> None:
    jsonschema.validate(json.loads(text, object_pairs_hook=strict), schema)


def params(seed: int = 1, max_tokens: int = 120, **constraint: Any) -> SamplingParams:
    more = {k: constraint.pop(k) for k in ("n", "ignore_eos", "logprobs", "stop", "min_tokens") if k in constraint}
    asked = StructuredOutputsParams(**constraint) if constraint else None
    return SamplingParams(temperature=1.0, seed=seed, max_tokens=max_tokens, structured_outputs=asked, **more)


@pytest.fixture(scope="module")
def llm() -> LLM:
    return LLM(**ARGS)


def texts(llm: LLM, prompts: Any, sampling: Any) -> list[list[tuple[str, str | None]]]:
    outs = llm.generate(prompts, sampling, use_tqdm=False)
    return [[(c.text, c.finish_reason) for c in o.outputs] for o in outs]


@pytest.mark.slow
def test_every_choice_is_valid_and_the_same_seed_gives_the_same_text(llm: LLM) -> None:
    asked = params(json=SCHEMA, n=3)
    first = texts(llm, ["Ann", "Bob"], asked)
    assert first == texts(llm, ["Ann", "Bob"], asked)
    for text, reason in (c for o in first for c in o):
        assert reason == "stop"
        check(text, SCHEMA)
    assert len({t for t, _ in first[0]}) > 1


def test_other_forms(llm: LLM) -> None:
    (((regex, _),), ((choice, _),), ((ebnf, _),)) = texts(
        llm,
        ["a", "b", "c"],
        [params(regex=r"[a-c]{3}\d"), params(choice=["yes", "no"]), params(grammar='root ::= "x" [0-9]{2} "y"')],
    )
    assert re.fullmatch(r"[a-c]{3}\d", regex)
    assert choice in ("yes", "no")
    assert re.fullmatch(r"x\d\dy", ebnf)


def test_others_say_what_they_say_alone(llm: LLM) -> None:
    alone = texts(llm, "Once", params(5, 40))
    assert texts(llm, ["Once", "Ann", "Ann"], [params(5, 40), params(json=SCHEMA), params(2, json=SCHEMA)])[0] == alone[0]


def test_ends_and_limits(llm: LLM) -> None:
    (cut,) = texts(llm, "a", params(max_tokens=3, json=SCHEMA))[0]
    assert cut[1] == "length"
    (patient,) = texts(llm, "a", params(json=SCHEMA, ignore_eos=True))[0]
    check(patient[0], SCHEMA)
    (long,) = texts(llm, "a", params(regex="a*", min_tokens=5, max_tokens=9))[0]
    assert len(long[0]) >= 5
    (stopped,) = texts(llm, "a", params(regex="[0-9]{5}x[0-9]{5}", stop=["x"]))[0]
    assert re.fullmatch("[0-9]{5}", stopped[0])


def test_free_text_up_to_a_token_is_that_of_a_run_without_a_grammar(llm: LLM) -> None:
    free = llm.generate("Once", params(7, 20), use_tqdm=False)[0].outputs[0].token_ids
    mark = free[5]
    (out,) = llm.generate("Once", params(7, 40, regex="#{3}", free_until=[mark]), use_tqdm=False)[0].outputs
    at = list(free).index(mark) + 1
    assert list(out.token_ids[:at]) == list(free[:at])
    assert out.text.endswith("###")


HOST = "thalweg.backends.torch_gpu.testing:HostGpuPlatform"
"""Steps run late and two at a time, by graphs of padded sizes."""
COMPACT = {"json": SCHEMA, "disable_any_whitespace": True}


@pytest.mark.parametrize("device", ["cpu", *(pytest.param(d, marks=pytest.mark.nightly) for d in ("reference", HOST))])
@pytest.mark.slow
def test_jumps_change_no_text_and_are_never_wrong(device: str) -> None:
    said, asked = (
        [],
        [params(1, n=2, **COMPACT), params(2, **COMPACT, logprobs=1), params(3), params(4, regex="value: [0-9]{3}")],
    )
    for jump in (False, True):
        engine = LLM(
            **{k: v for k, v in ARGS.items() if k != "threads"} | {"device": device},
            structured_outputs_config={"enable_jump_forward": jump},
        )
        said.append(texts(engine, ["Ann", "Bob", "Once", "a"], asked))
        stats = engine.stats()
        assert stats.accepted_tokens == stats.draft_tokens
        assert (stats.draft_tokens > 8) == jump
        engine.shutdown()
    assert said[0] == said[1]


def test_what_is_not_served_is_refused_by_name(llm: LLM) -> None:
    with pytest.raises(RequestError, match=r"structured_outputs\.json: #/properties/a/uniqueItems") as caught:
        llm.generate("a", params(json={"properties": {"a": {"uniqueItems": True}}}), use_tqdm=False)
    assert caught.value.param == "structured_outputs.json"
    with pytest.raises(RequestError, match="one of json"):
        StructuredOutputsParams(json={}, regex="a")


@pytest.mark.slow
def test_random_schemas(llm: LLM) -> None:
    rng = random.Random(3)
    schemas = [random_schema(rng) for _ in range(40)]
    outs = texts(llm, ["a"] * len(schemas), [params(i, 200, json=s) for i, s in enumerate(schemas)])
    ended = [(t, s) for o, s in zip(outs, schemas, strict=True) for t, reason in o if reason == "stop"]
    assert len(ended) > 25
    for text, schema in ended:
        check(text, schema)


def random_schema(rng: random.Random, depth: int = 0) -> dict[str, Any]:
    kinds = ["string", "integer", "number", "boolean", "null", "enum"] + ["object", "array", "anyOf"] * (depth < 3)
    match rng.choice(kinds):
        case "string":
            return {"type": "string", "minLength": rng.randrange(2), "maxLength": rng.randrange(1, 6)}
        case "integer":
            low = rng.randrange(-20, 20)
            return {"type": "integer", "minimum": low, "exclusiveMaximum": low + rng.randrange(1, 30)}
        case "number":
            return {"type": "number", "minimum": 0, "maximum": rng.choice([1, 2.5, 100])}
        case "enum":
            return {"enum": rng.sample([1, "a", "b c", None, True, [1], {"k": 2}], rng.randrange(1, 4))}
        case "object":
            names = rng.sample(["a", "b", "c d", "é", '"q"'], rng.randrange(1, 4))
            made: dict[str, Any] = {"type": "object", "properties": {n: random_schema(rng, depth + 1) for n in names}}
            made["required"] = rng.sample(names, rng.randrange(len(names) + 1))
            made["additionalProperties"] = rng.choice([False, False, random_schema(rng, 3)])
            return made
        case "array":
            return {"type": "array", "items": random_schema(rng, depth + 1), "maxItems": rng.randrange(1, 4)}
        case "anyOf":
            return {"anyOf": [random_schema(rng, depth + 1) for _ in range(rng.randrange(1, 4))]}
        case kind:
            return {"type": kind}


@pytest.mark.slow
async def test_an_engine_is_told_the_vocabulary_before_a_grammar_comes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("thalweg.async_llm.WARM_AFTER", 0.0)
    engine = await AsyncLLM.start(EngineArgs(device="null", max_model_len=64, use_tqdm_on_load=False, standby_engine=False))
    try:
        while not engine._supervisor._told:
            await asyncio.sleep(0.01)
        async for out in engine.generate("a", params(regex="[ab]{3}"), "r"):
            last = out
        assert re.fullmatch("[ab]{3}", last.outputs[0].text)
    finally:
        await engine.shutdown()


@pytest.mark.slow
async def test_an_engine_killed_in_the_middle_goes_on_with_the_same_text() -> None:
    engine = await AsyncLLM.start(EngineArgs(**ARGS, standby_engine=False))

    async def run(i: int, kill: bool = False) -> list[str]:
        last = None
        async for out in engine.generate("Ann", params(i, json=SCHEMA, n=3), f"r{i}{kill}"):
            if kill and last is None and engine.engine_pid is not None:
                os.kill(engine.engine_pid, signal.SIGKILL)
            last = out
        assert last is not None
        return [c.text for c in last.outputs]

    try:
        calm = await asyncio.gather(*(run(i) for i in range(3)))
        killed = await asyncio.gather(run(0, True), *(run(i) for i in range(1, 3)))
        assert engine.restarts
        assert killed == calm
        for text in (t for o in killed for t in o):
            check(text, SCHEMA)
        with pytest.raises(RequestError, match="uniqueItems"):
            async for _ in engine.generate("a", params(json={"uniqueItems": True}), "bad"):
                pass
    finally:
        await engine.shutdown()
