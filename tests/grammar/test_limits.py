"""Grammars with many alternatives are served. What is too large or complex is refused by its limit before work starts."""

from __future__ import annotations

import json
import random
from typing import Any

import grammar_rig as rig
import pytest

from thalweg.grammar.compiled import STEP_ITEMS
from thalweg.grammar.convert import MOST_CHOICE
from thalweg.grammar.matcher import Matcher
from thalweg.grammar.source import GrammarError, GrammarSource, TokenRejectedError


@pytest.mark.parametrize("text", ["root ::= root", "root ::= a\na ::= b\nb ::= a", 'root ::= root "a"', "start: start"])
def test_a_rule_that_never_ends_is_refused_in_words(text: str) -> None:
    assert "a rule never ends" in rig.refusal("grammar", text).why


LETTERS = 'abcdefghijklmnopqrstuvwxyz 0123456789üß"\\/|.\n'


def words(count: int, seed: int = 0) -> list[str]:
    """Texts that begin with any letter."""
    rng = random.Random(seed)
    return list(dict.fromkeys("".join(rng.choices(LETTERS, k=rng.randrange(1, 16))) for _ in range(count)))


def ways(texts: list[str]) -> str:
    return " | ".join(map(json.dumps, texts))


FORMS: dict[str, Any] = {
    "choice": lambda texts: ("choice", texts),
    "EBNF": lambda texts: ("grammar", f"root ::= {ways(texts)}"),
    "EBNF inside": lambda texts: ("grammar", f'root ::= "<" word ">"\nword ::= {ways(texts)}'),
    "Lark": lambda texts: ("grammar", f"start: {ways(texts)}"),
    "enum": lambda texts: ("json", {"enum": texts}),
    "anyOf": lambda texts: ("json", {"anyOf": [{"const": t, "title": "x"} for t in texts]}),
    "oneOf": lambda texts: ("json", {"oneOf": [{"type": "string", "enum": [t]} for t in texts]}),
    "tags": lambda texts: (
        "structural_tag", {"format": {"type": "or", "elements": [{"type": "const_string", "value": t} for t in texts]}},
    ),
}  # fmt: skip


def written(form: str, text: str) -> str:
    if form in ("enum", "anyOf", "oneOf"):
        return json.dumps(text, ensure_ascii=False)
    return f"<{text}>" if form == "EBNF inside" else text


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("count", [100, 2500, 5000])
@pytest.mark.sampled(4)
def test_a_text_of_a_long_list_may_be_written_to_its_end(form: str, count: int) -> None:
    texts = words(count)
    if form in ("EBNF", "EBNF inside"):
        texts = [t for t in texts if t.isascii()]  # llama.cpp's form knows no other escapes
    made = rig.served(*FORMS[form](texts))
    for text in random.Random(1).sample(texts, 8):
        assert rig.accepts(made, written(form, text)), text
    assert not rig.accepts(made, written(form, "none of these"))


def test_a_choice_that_begins_another_may_end_or_go_on() -> None:
    made = rig.served("choice", ["a", "ab", "ab.c", "ab|c", "(", "[x]", "\\d", "a{2}", " ", "\n", "🙂", "\u2028"])
    for text in ("a", "ab", "ab.c", "ab|c", "(", "[x]", "\\d", "a{2}", " ", "\n", "🙂", "\u2028"):
        assert rig.accepts(made, text), text
    for text in ("abxc", "aa", "1", "ab.cc", ""):
        assert not rig.accepts(made, text), text


def test_tens_of_thousands_of_choices_are_served() -> None:
    texts = words(20_000)
    made = rig.served("choice", texts)
    assert rig.accepts(made, texts[-1])


DEEP = "(" * 20 + "a" + "{1,9}a?)" * 19 + "{1,9})"


@pytest.mark.parametrize(
    ("kind", "value", "limit"),
    [
        ("choice", ["a", "b" * (MOST_CHOICE + 1)], "item 1 has 10001 characters; the limit is 10000"),
        (
            "grammar",
            "root ::= " + ways([f"{chr(97 + i % 26)}{i}" for i in range(STEP_ITEMS + 1)]),
            "ways to go on at one place",
        ),
        ("regex", DEEP, "more than 100000 steps of its regular expressions"),
    ],
)
@pytest.mark.slow
def test_a_limit_is_named_before_work_starts(kind: str, value: Any, limit: str) -> None:
    assert limit in rig.refusal(kind, value).why


NESTED = [
    "(((((a{1,9}){1,9}){1,9}){1,9}){1,9})",
    "((((((a{1,9}){1,9}){1,9}){1,9}){1,9}){1,9}){2}",
    "(((a*){1,99}){1,99}){1,99}",
]


@pytest.mark.parametrize("pattern", NESTED)
@pytest.mark.parametrize("form", ["regex", "pattern", "tag"])
def test_counts_inside_counts_are_followed_to_their_end(pattern: str, form: str) -> None:
    asked: dict[str, tuple[str, Any]] = {
        "regex": ("regex", pattern),
        "pattern": ("json", {"type": "string", "pattern": f"^{pattern}$"}),
        "tag": ("structural_tag", {"format": {"type": "regex", "pattern": pattern}}),
    }
    made = rig.served(*asked[form])
    text = "a" * 300
    assert rig.accepts(made, f'"{text}"' if form == "pattern" else text)
    assert not rig.accepts(made, '"aab"' if form == "pattern" else "aab")


def write(matcher: Matcher, text: bytes) -> None:
    for byte in text:
        rig.allowed(matcher)
        matcher.accept([byte])


def test_what_becomes_too_complex_later_is_the_grammars_fault_and_a_forbidden_token_the_engines() -> None:
    matcher = rig.of_bytes().matcher(rig.source("regex", "((((a|b){1,9}c?){1,9}b?){1,9}){1,9}"))
    with pytest.raises(GrammarError, match="one token needs more than 100000 steps") as caught:
        write(matcher, b"a" * 200)
    assert not isinstance(caught.value, TokenRejectedError)
    matcher = rig.of_bytes().matcher(rig.source("choice", ["yes"]))
    with pytest.raises(TokenRejectedError):
        matcher.accept([ord("n")])


def test_values_of_branches_become_one_list_only_where_that_is_the_same() -> None:
    def accepted(schema: Any, *texts: str) -> list[str]:
        made = rig.served("json", schema)
        assert isinstance(made, GrammarSource)
        return [t for t in texts if rig.accepts(made, t)]

    values = ('"a"', '"b"', "1", "true", "null")
    assert accepted({"oneOf": [{"const": "a"}, {"enum": ["a", "b"]}, {"const": 1}]}, *values) == ['"b"', "1"]
    assert accepted({"anyOf": [{"const": "a"}, {"enum": [True, None]}]}, *values) == ['"a"', "true", "null"]
    assert accepted({"anyOf": [{"const": "a"}, {"const": 1}], "type": "string"}, *values) == ['"a"']
    assert accepted({"anyOf": [{"const": "a", "maxLength": 0}, {"const": "b"}]}, *values) == ['"b"']
    assert accepted({"anyOf": [{"const": "a"}, {"const": 1}], "enum": ["a", "b"]}, *values) == ['"a"']
    assert "nsatisf" in rig.refusal("json", {"oneOf": [{"const": "a"}, {"const": "a"}]}).why
