"""What readers of JSON make of numbers and dates: nothing that the schema forbids."""

from __future__ import annotations

import itertools
import json
import math
import random
from datetime import date

import grammar_rig as rig
import jsonschema
import pytest

from thalweg.grammar.source import GrammarError


@pytest.mark.parametrize(
    ("schema", "good", "bad"),
    [
        (
            {"type": "number", "exclusiveMinimum": 7.25},
            ["7.26", "8", "7.25000000000001"],
            ["7.25", "7.2500000000000000001", "7"],
        ),
        ({"type": "number", "exclusiveMaximum": 5}, ["4.9", "4.99999999999999", "-1"], ["5", "4.99999999999999999999", "5.1"]),
        ({"type": "number", "exclusiveMinimum": 0}, ["0.1", "1"], ["0", "0.0", "-1"]),
        ({"type": "number", "exclusiveMinimum": 0, "minimum": 3}, ["3", "3.5"], ["2.9"]),
        ({"exclusiveMaximum": -2}, ["-3", '"x"', "-2.5"], ["-2", "-1.99999999999999999999"]),
        ({"type": "integer", "exclusiveMinimum": 5}, ["6"], ["5"]),
        ({"type": ["integer", "null"], "exclusiveMinimum": 5}, ["6", "null"], ["5"]),
        ({"type": "number", "exclusiveMinimum": 1, "multipleOf": 0.5}, ["1.5"], ["1", "0.5"]),
        ({"type": "number"}, ["1e5", "1E-3", "2.5e+10", "1e99"], ["1e999", "1E+400", "3e100"]),
        ({}, ["[1e5]", '"1e999"', '{"1e999":true}'], ["[1e999]", '{"a":1e-999}']),
        (
            {"type": "string", "format": "date"},
            ['"2020-02-29"', '"2000-02-29"', '"0001-01-01"'],
            ['"2021-02-29"', '"0000-01-01"'],
        ),
        (
            {"type": "string", "format": "date-time"},
            ['"2020-02-29T23:59:59Z"'],
            ['"2021-02-29T00:00:00Z"', '"2020-01-01T23:59:60Z"'],
        ),
        ({"type": "string", "format": "time"}, ['"23:59:59Z"'], ['"23:59:60Z"']),
    ],
)
def test_numbers_and_dates_are_what_readers_take_them_for(schema, good, bad) -> None:
    made = rig.served("json", schema, compact=True)
    assert [t for t in good if not rig.accepts(made, t)] == []
    assert [t for t in bad if rig.accepts(made, t)] == []


def test_every_date_that_is_one_and_no_other() -> None:
    made, rng = rig.served("json", {"type": "string", "format": "date"}), random.Random(1)
    for _ in range(300):
        year, month, day = (
            rng.choice([rng.randrange(10_000), 100 * rng.randrange(100)]),
            rng.randrange(14),
            rng.randrange(27, 33),
        )
        text = f"{year:04}-{rng.choice([month, 2]):02}-{day:02}"
        try:
            date.fromisoformat(text)
            real = True
        except ValueError:
            real = False
        assert rig.accepts(made, f'"{text}"') == real, text


@pytest.mark.parametrize("bound", [0, 1, -1, 0.1, 7.25, 999999.5, 10**9, 123456789012345, -0.001, 1e-12])
@pytest.mark.parametrize("key", ["exclusiveMinimum", "exclusiveMaximum"])
def test_random_numbers_beside_a_bound_are_on_its_side_in_64_bits(bound: float, key: str) -> None:
    made, rng = rig.served("json", {"type": "number", key: bound}), random.Random(2)
    for _ in range(8):
        matcher, out = rig.of_bytes().matcher(made), bytearray()
        near = list(repr(bound).encode()) + [ord("0"), ord("9")] * 40
        while True:
            now = [i for i in rig.allowed(matcher) if i <= rig.EOS]
            token = near[len(out)] if near[len(out)] in now and rng.random() < 0.95 else rng.choice(now)
            if token == rig.EOS or len(out) > 60:
                break
            out.append(token)
            matcher.accept([token])
        value = json.loads(out)
        assert math.isfinite(value)
        assert value > bound if key == "exclusiveMinimum" else value < bound, out
        assert len(out) <= 60


@pytest.mark.slow
def test_bounds_accept_nothing_that_the_schema_does_not() -> None:
    """The library alone takes 7 to be more than 7, where less than 8 is asked too."""
    values, texts = [-1.5, -1, 0, 0.5, 7, 7.5], ["-1.50", "-1", "-1.0", "0", "0.0", "0.5", "7", "7.0", "7.5", "7.50"]
    for low, high, a, b, step in itertools.product(
        values, values, ("minimum", "exclusiveMinimum"), ("maximum", "exclusiveMaximum"), ({}, {"multipleOf": 0.25})
    ):
        schema = {"type": "number", a: low, b: high, **step}
        try:
            made = rig.served("json", schema)
        except GrammarError:
            continue
        here = jsonschema.Draft202012Validator(schema)
        assert [t for t in texts if rig.accepts(made, t) and not here.is_valid(json.loads(t))] == [], schema
