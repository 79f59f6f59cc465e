"""JSON read strictly, within bounds that hold before values are made."""

from __future__ import annotations

import json
from types import SimpleNamespace

import pytest
from amounts import some
from hypothesis import given, settings
from hypothesis import strategies as st

from thalweg.server.errors import ApiError
from thalweg.server.http import bodies
from thalweg.server.http.bodies import MAX_CONTAINERS, MAX_DEPTH, SMALL, load

VALUES = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**53), 2**53) | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
    max_leaves=20,
)


def refused(data: bytes) -> ApiError:
    with pytest.raises(ApiError) as e:
        load(data)
    assert e.value.status == 400
    return e.value


@settings(max_examples=some(20, 50))
@given(st.dictionaries(st.text(), VALUES, max_size=6), st.sampled_from([None, 2]), st.booleans())
@pytest.mark.slow
def test_json_is_read_as_the_standard_library_reads_it(value, indent, ascii_only):
    try:
        text = json.dumps(value, indent=indent, ensure_ascii=ascii_only).encode()
    except UnicodeEncodeError:
        return
    assert load(text) == json.loads(text)


@settings(max_examples=some(20, 50))
@given(st.lists(st.tuples(st.text(max_size=3), VALUES), min_size=1, max_size=5))
def test_a_key_given_twice_is_refused_wherever_it_is(pairs):
    seen: list[str] = []

    def twice(items: list[tuple[str, object]]) -> dict[str, object]:
        seen.extend(k for k, _ in items if [k for k, _ in items].count(k) > 1)
        return dict(items)

    inner = ", ".join(f"{json.dumps(k)}: {json.dumps(v)}" for k, v in pairs)
    text = f'{{"a": [{{{inner}}}], "b": "}} \\" {{"}}'.encode()
    json.loads(text, object_pairs_hook=twice)
    if seen:
        assert "twice" in refused(text).message
    else:
        load(text)


@pytest.mark.parametrize(
    "text",
    [
        b'{"model":"a","model":"b"}',
        b'{"mod\\u0065l":"a","model":"b"}',
        b'{"x":{"a":1,"a":1}}',
        b'{"x":[{"a":1},{"a":1,"b":{},"a":2}]}',
        b'{"a" : 1 , "a"\n:2}',
        b'{"a\\"b":1,"a\\"b":2}',
    ],
)
def test_duplicate_keys(text):
    assert "twice" in refused(text).message


def test_the_same_key_in_different_objects_is_fine():
    assert load(b'{"a":{"a":{"a":1}},"b":[{"a":1},{"a":"a"}]}')["a"] == {"a": {"a": 1}}


@pytest.mark.parametrize("number", ["NaN", "Infinity", "-Infinity", "1e999", "-1e999", "1" + "0" * 400, "1" + "0" * 5000])
def test_numbers_that_are_none_are_refused_by_field(number):
    assert refused(f'{{"n": 1, "temperature": {number}}}'.encode()).param == "temperature"
    assert refused(f'{{"logit_bias": {{"5": {number}}}}}'.encode()).param == "logit_bias.5"
    assert refused(f'{{"a": [1, {number}]}}'.encode()).param == "a[1]"


def forbid(monkeypatch: pytest.MonkeyPatch, *parsers: str) -> None:
    """From here on, these are not to be asked."""

    def asked(*args: object, **kwargs: object) -> None:
        raise AssertionError("the body was parsed")

    for name in parsers:
        monkeypatch.setattr(bodies, name, SimpleNamespace(loads=asked, JSONDecodeError=ValueError))


def test_depth_is_bounded_before_the_parser_that_calls_itself(monkeypatch):
    load(b'{"a":' + b"[" * (MAX_DEPTH - 1) + b"]" * (MAX_DEPTH - 1) + b"}")
    forbid(monkeypatch, "json")
    for n in (MAX_DEPTH, 1000, 100_000):
        if n > MAX_CONTAINERS:
            forbid(monkeypatch, "orjson")
        for left, right in ((b"[", b"]"), (b'{"a":', b"}")):
            message = refused(b'{"a":' + left * n + b"1" + right * n + b"}").message
            assert "nested" in message or (n == 100_000 and "too many" in message)


def test_text_in_strings_is_not_structure():
    text = json.dumps({"prompt": '[{"' * 1000 + ",,," * 100_000 + "\\" * 7}).encode()
    assert len(text) > SMALL
    assert load(text)["prompt"].endswith("\\" * 7)


@pytest.mark.parametrize(
    ("body", "field"),
    [
        ({"structured_outputs": {"choice": [f"w{i}" for i in range(100_000)]}}, "structured_outputs.choice"),
        ({"model": "m", "a": {"b": [1]}, "messages": [{"content": "x", "role": "user"}] * 50_000}, "messages"),
        ({"a": {"b": {"c": 1}, "d": [[1], {"e": 2}]}, "logit_bias": {str(i): 1 for i in range(300_000)}}, "logit_bias"),
        ({"a": {"x:y": "1,[{"}, "stop_token_ids": [1] * 300_000, "b": 1}, "stop_token_ids"),
    ],
)
@pytest.mark.sampled(1)
def test_a_field_of_too_many_values_is_named(body, field):
    error = refused(json.dumps(body).encode())
    assert error.param.startswith(field)
    assert "too many values" in error.message


def test_a_field_that_is_nested_too_deep_is_named():
    schema = 1
    for _ in range(200):
        schema = {"type": "object", "properties": {"a": schema}}
    error = refused(json.dumps({"model": "m", "response_format": {"schema": schema}}).encode())
    assert error.param == "response_format"
    assert error.message.startswith("response_format: the body is nested")


def test_a_bomb_of_values_is_refused_before_it_is_made(monkeypatch):
    forbid(monkeypatch, "json", "orjson")
    for bomb in (b"1," * 3_000_000, b'"",' * 100_000, b"{}," * 3_000_000):
        assert "too many values" in refused(b'{"prompt":[' + bomb + b"1]}").message


@pytest.mark.parametrize(
    "data",
    [b"", b" ", b"nul", b"{", b'{"a"', b'{"a":"', b'{"a":"\\', b"{]", b"]" * 100, b'"' * 101, b"\xef\xbb\xbf{}",
     b'{"a":"\xff"}',     b'{"a":"\xed\xa0\x80"}', b'{"a":"\\ud800"}', b'{"a":1,}',
     b"{'a':1}", b'{"a":01}', b'{"a":+1}', b'{"a":1}x', b"[1]",
     b"5",     b'{"a":"\n"}', b'{"a":.5}', b'{"a":0x5}'],
)  # fmt: skip
def test_what_is_no_json_object_is_refused(data):
    message = refused(data).message
    assert "JSON" in message
    assert "/" not in message
