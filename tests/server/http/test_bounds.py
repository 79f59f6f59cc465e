"""Every field a client can fill is bounded: a walk over the schemas, and huge values in every field."""

from __future__ import annotations

import json
import time
import types
from typing import Annotated, Any, Literal, Union, get_args, get_origin

import annotated_types as at
import httpx
import pytest
from pydantic import BaseModel
from pydantic.fields import FieldInfo

from thalweg.server.core.request import ChatRequest
from thalweg.server.core.schema import MaxBytes
from thalweg.server.openai.protocol import CompletionRequest, DetokenizeRequest, TokenizeChat, TokenizeText

MODELS = (ChatRequest, CompletionRequest, DetokenizeRequest, TokenizeChat, TokenizeText)


def unbounded(kind: Any, limits: list[Any], where: str, seen: set[type]) -> list[str]:
    """Paths of the parts of a type that hold as much as a client likes."""
    limits = [m for one in limits for m in (one.metadata if isinstance(one, FieldInfo) else [one])]
    origin = get_origin(kind)
    if origin is Annotated:
        inner, *more = get_args(kind)
        return unbounded(inner, [*limits, *more], where, seen)
    if any(isinstance(m, MaxBytes) for m in limits):
        return []
    if origin in (Union, types.UnionType):
        return [p for i, a in enumerate(get_args(kind)) for p in unbounded(a, limits, f"{where}|{i}", seen)]
    if origin is Literal or kind in (bool, type(None)):
        return []
    if isinstance(kind, type) and issubclass(kind, BaseModel):
        if kind in seen:
            return []
        fields = kind.model_fields.items()
        return [p for n, f in fields for p in unbounded(f.annotation, f.metadata, f"{where}.{n}", seen | {kind})]
    found = {type(m) for m in limits}
    needed: dict[Any, tuple[set[type], ...]] = {
        str: ({at.MaxLen},), list: ({at.MaxLen},), dict: ({at.MaxLen},),
        int: ({at.Ge, at.Gt}, {at.Le, at.Lt}), float: ({at.Ge, at.Gt}, {at.Le, at.Lt}),
    }  # fmt: skip
    base = origin or kind
    if base not in needed:
        return [f"{where}: {kind}"]
    missing = [] if all(found & choice for choice in needed[base]) else [f"{where}: {kind}"]
    return missing + [p for a in get_args(kind) for p in unbounded(a, [], f"{where}[]", seen)]


@pytest.mark.parametrize("model", MODELS, ids=lambda m: m.__name__)
def test_every_field_is_bounded(model):
    assert unbounded(model, [], model.__name__, set()) == []


def test_the_walk_sees_what_is_unbounded():
    class Inner(BaseModel):
        deep: list[Annotated[str, at.MaxLen(3)]]

    class Bad(BaseModel):
        s: str
        i: Annotated[int, at.Ge(0)] | None
        x: dict[Annotated[str, at.MaxLen(1)], Any]
        inner: Inner

    found = " ".join(unbounded(Bad, [], "Bad", set()))
    for part in ("Bad.s", "Bad.i", "Bad.x:", "Bad.x[]", "Bad.inner.deep"):
        assert part in found


NUMBERS = sorted(
    name
    for name, f in ChatRequest.model_fields.items()
    if any(k in (int, float) for a in (f.annotation, *get_args(f.annotation)) for k in (a, *get_args(a)))
)
MESSAGES = [{"role": "user", "content": "hi"}]


@pytest.mark.parametrize("name", NUMBERS)
@pytest.mark.sampled(4)
def test_every_number_refuses_what_is_no_number_by_name(server, name):
    assert len(NUMBERS) > 12
    for value in ("NaN", "Infinity", "-Infinity", "1e999", "1" + "0" * 400, str(2**64), '"five"', '"1e999"', "true"):
        if name == "seed" and value == "1.0":
            continue
        body = f'{{"messages": {json.dumps(MESSAGES)}, "max_tokens": 1, "{name}": {value}}}'
        if name == "max_tokens":
            body = body.replace('"max_tokens": 1, ', "")
        r = server.http.post("/v1/chat/completions", content=body, headers={"content-type": "application/json"})
        assert r.status_code == 400, (value, r.text)
        assert r.json()["error"]["param"] == name, (value, r.text)


BOMBS = {
    "n": 10**9,
    "stop": ["x"] * 100_000,
    "logit_bias": {str(i): 1 for i in range(200_000)},
    "bad_words": ["x"] * 200_000,
    "stop_token_ids": [1] * 200_000,
    "allowed_token_ids": [1] * 200_000,
    "cache_salt": "x" * 10_000_000,
    "user": "x" * 10_000_000,
    "metadata": {str(i): "x" for i in range(10_000)},
    "top_logprobs": 10**6,
    "messages": [{"role": "user", "content": "x"}] * 100_000,
    "tools": [{"type": "function", "function": {"name": "f"}}] * 10_000,
    "chat_template_kwargs": {"a": "x" * 1_000_000},
    "request_id": "x" * 100_000,
}


@pytest.mark.parametrize("name", BOMBS)
@pytest.mark.sampled(4)
def test_a_quantity_without_measure_is_refused(server, name):
    body = {"messages": MESSAGES, "logprobs": True, "tool_choice": "none", "max_tokens": 1, name: BOMBS[name]}
    data = json.dumps(body).encode()
    start = time.perf_counter()
    r = httpx.post(server.url + "/v1/chat/completions", content=data, headers={"content-type": "application/json"}, timeout=30)
    seconds = time.perf_counter() - start
    error = r.json()["error"]
    if r.status_code == 413:
        assert len(data) > 8 * 2**20
    else:
        assert r.status_code == 400, r.text
        named = (error["param"] or "").split("[")[0].split(".")[0] == name
        assert named or (error["message"] == "the body has too many values" and len(data) > 400_000)
    assert len(r.content) < 2000
    assert seconds < 15


@pytest.mark.parametrize("ids", [[-1], [257], [2**31], [2**70], [1.5], [1, "1"], [], [[]], [1] * 2_100_000])
@pytest.mark.slow
def test_token_ids_out_of_range_are_refused(server, ids):
    r = server.post("/v1/completions", {"prompt": ids, "max_tokens": 1})
    assert r.status_code == 400, r.text
    assert (r.json()["error"]["param"] or "prompt").startswith("prompt")
    assert len(r.content) < 2000
