"""Expressions are simplified to others of the same texts, and listed completely. Python's re is the judge."""

from __future__ import annotations

import random
import re
from itertools import product

import pytest
from amounts import some

from thalweg.grammar.regexes import endless, literal, simplify, texts


def expression(rng: random.Random, depth: int = 0) -> str:
    if depth > 3 or rng.random() < 0.3:
        return rng.choice(["a", "b", "[ab]", "[a-c]", ".", "\\.", "(?:a|b)", "[^a]", "\\d"])
    inner = expression(rng, depth + 1)
    counts = rng.choice(["*", "+", "?", "{2}", "{1,3}", "{0,2}", "{2,}", "{3,4}", "*?"])
    return rng.choice([f"({inner}){counts}", f"(?:{inner}){counts}", inner + expression(rng, depth + 1), f"({inner}|b{inner})"])


def test_a_simplified_expression_matches_the_same_texts() -> None:
    rng, changed = random.Random(0), 0
    samples = ["".join(p) for n in range(6) for p in product("ab.", repeat=n)] + ["a" * n for n in range(6, 12)]
    for _ in range(some(300, 800)):
        before = expression(rng)
        after = simplify(before)
        changed += after != before
        old, new = re.compile(before, re.DOTALL), re.compile(after, re.DOTALL)
        for text in rng.sample(samples, 60):
            assert bool(old.fullmatch(text)) == bool(new.fullmatch(text)), (before, after, text)
    assert changed > 20


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ("(((((a{1,9}){1,9}){1,9}){1,9}){1,9})", "(a{1,59049})"),
        ("((a|b){2,3}){2,3}", "(a|b){4,9}"),
        ("(a{3,4}){1,2}", "(a{3,4}){1,2}"),
        ("(a{2})*", "(a{2})*"),
        ("(?i)(a{1,9}){1,9}", "(?i)(a{1,9}){1,9}"),
        ("(a{1,9}(?=b)){1,9}", "(a{1,9}(?=b)){1,9}"),
    ],
)
def test_counts_are_multiplied_where_no_number_is_left_out(before: str, after: str) -> None:
    assert simplify(before) == after


def test_all_texts_of_a_finite_expression_are_listed() -> None:
    rng, listed = random.Random(1), 0
    everything = ["".join(p) for n in range(5) for p in product("abc.", repeat=n)]
    for _ in range(some(300, 2000)):
        pattern = f"^(?:{expression(rng, 2)})$"
        found = texts(pattern)
        if found is not None:
            listed += 1
            compiled = re.compile(pattern)
            assert {t for t in found if len(t) < 5} == {t for t in everything if compiled.fullmatch(t)}, pattern
            assert all(compiled.fullmatch(t) for t in found)
    assert listed > 30


@pytest.mark.parametrize(
    "pattern", ["a", "^a", "a$", "^a+$", "^\\d$", "^[^a]$", "^.$", "^(a|b$)", "^(?!a)b$", "^(?i)a$", "^\\p{L}$", "^[]a]$"]
)
def test_what_is_not_known_to_be_finite_is_not_listed(pattern: str) -> None:
    assert texts(pattern) is None


def test_a_literal_is_that_text_only() -> None:
    for text in ("a.b", "x|y", "(a)", "[", "\\d", " ", "a b", "ü", "🙂", "\n", "", "^$", "{1}"):
        assert texts(f"^{literal(text)}$") == [text]


@pytest.mark.parametrize(
    ("pattern", "known"),
    [
        ("^x-", True),
        ("^[a-z]+$", True),
        ("a", True),
        ("^(a+|b*)$", True),
        ("^(a+|b+)$", True),
        ("^a{1,9}$", False),
        ("^a$|b", False),
    ],
)
def test_an_expression_is_endless_where_every_beginning_has_endless_ways_on(pattern: str, known: bool) -> None:
    assert endless(pattern) is known
