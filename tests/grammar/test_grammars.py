"""What each way to ask for a form accepts and refuses, and what a mask says, byte by byte."""

from __future__ import annotations

import grammar_rig as rig
import pytest

from thalweg.grammar.source import GrammarError

NAMED = {"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"], "additionalProperties": False}
CALL = {"begin": "<function=f>", "schema": NAMED, "end": "</function>"}
THOUGHT = {"type": "tag", "begin": "<think>", "content": {"type": "any_text"}, "end": "</think>"}


@pytest.mark.parametrize(
    ("kind", "value", "good", "bad"),
    [
        ("json", NAMED, ['{"a":1}', '{"a": 1}', '{\n    "a": 1\n}'], ['{"a":1.5}', "{}", '{"a":1,"b":2}', ' {"a":1}']),
        ("json_object", "", ["{}", '{"x":[1,{"y":null}]}'], ["[]", "1", ""]),
        ("regex", r"[a-z]+/\d", ["ab/1"], ["ab", "ab/12", "/1"]),
        ("choice", ["yes", 'n"o', "ü"], ["yes", 'n"o', "ü"], ["no", "yesyes", ""]),
        ("grammar", 'root ::= sel " from " [a-z]+\nsel ::= "select " [0-9]{1,3}\n', ["select 12 from t"], ["select from t"]),
        ("grammar", 'root ::= "a" | "b" root', ["a", "bba"], ["ab"]),
        ("grammar", 'start: "a" B+\nB: /[bc]/', ["abc"], ["a", "abd"]),
        ("grammar", 'start: "go " %json {"type": "integer"}', ["go 12"], ["go x"]),
        (
            "grammar",
            'start: %json {"type": "array", "items": {"type": "integer"}}',
            ["[1, 2]"],
            [f"[{' ' * 50}1]", f"[1{' ' * 50}"],
        ),
        (
            "structural_tag",
            {"structures": [CALL], "triggers": ["<function="]},
            ["hi", 'hi <function=f>{"a":1}</function> so'],
            ["<function=g>", '<function=f>{"a":"1"}</function>'],
        ),
        (
            "structural_tag",
            {"format": {"type": "sequence", "elements": [THOUGHT, {"type": "json_schema", "json_schema": NAMED}]}},
            ['<think>a</b></think>{"a":1}'],
            ['{"a":1}', "<think>"],
        ),
        (
            "structural_tag",
            {
                "format": {
                    "type": "or",
                    "elements": [{"type": "const_string", "value": "x"}, {"type": "regex", "pattern": "y+/"}],
                }
            },
            ["x", "yy/"],
            ["y", "z"],
        ),
        (
            "structural_tag",
            {
                "format": {
                    "type": "tags_with_separator",
                    "separator": ",",
                    "at_least_one": True,
                    "tags": [{"begin": "[", "content": {"type": "grammar", "grammar": 'root ::= "a"+'}, "end": "]"}],
                }
            },
            ["[a]", "[a],[aa]"],
            ["", "[]"],
        ),
        (
            "structural_tag",
            {
                "format": {
                    "type": "triggered_tags",
                    "triggers": ["<a"],
                    "at_least_one": True,
                    "stop_after_first": True,
                    "tags": [{"begin": "<a>", "content": {"type": "regex", "pattern": "x|y"}, "end": "</a>"}],
                }
            },
            ["so <a>x</a>"],
            ["so", "<a>z</a>", "<a>x</a>!"],
        ),
    ],
)
def test_each_kind_accepts_its_sentences_and_no_others(kind, value, good, bad) -> None:
    made = rig.served(kind, value)
    assert [t for t in good if not rig.accepts(made, t)] == []
    assert [t for t in bad if rig.accepts(made, t)] == []


@pytest.mark.parametrize(
    ("kind", "value", "pointer", "why"),
    [
        ("json", {"properties": {"a": {"items": {"uniqueItems": True}}}}, "#/properties/a/items/uniqueItems", "uniqueItems"),
        ("json", {"properties": {"a/b": 3}}, "#/properties/a~1b", "must be an object or a boolean"),
        ("json", [], "#", "must be an object"),
        ("json", False, "#", "nothing satisfies it"),
        ("json", {"anyOf": []}, "#/anyOf", "at least one"),
        ("json", {"$ref": "#"}, "", ""),
        ("regex", "(", "", "regex"),
        ("regex", "a(?=b)", "", "look-around"),
        ("choice", [], "", "at least one"),
        ("grammar", "root ::= nowhere", "", "nowhere"),
        ("grammar", "root ::= a\na ::= b\nb ::= a\n", "", ""),
        ("grammar", 'start: %json {"uniqueItems": true}', "#/uniqueItems", "uniqueItems"),
        ("grammar", 'start: %json {"uniqueItems": true, "x-guidance": {"lenient": true}}', "#/uniqueItems", "uniqueItems"),
        (
            "json",
            {"x-guidance": {"lenient": True}, "properties": {"a": {"uniqueItems": True}}},
            "#/properties/a/uniqueItems",
            "",
        ),
        ("structural_tag", {}, "", "format"),
        ("structural_tag", {"format": {"type": "any_texts"}}, "#/format/type", "any_texts"),
        (
            "structural_tag",
            {"structures": [{**CALL, "schema": {"items": {"uniqueItems": True}}}], "triggers": ["<f"]},
            "#/tags/0/content/json_schema/items/uniqueItems",
            "",
        ),
    ],
)
def test_what_is_not_served_is_refused_with_a_pointer(kind, value, pointer, why) -> None:
    error = rig.refusal(kind, value)
    assert error.pointer == pointer or not pointer
    assert why in error.why


def test_a_chain_of_references_is_bounded() -> None:
    def chain(n: int) -> dict[str, object]:
        return {"$ref": "#/$defs/a0", "$defs": {**{f"a{i}": {"$ref": f"#/$defs/a{i + 1}"} for i in range(n)}, f"a{n}": {}}}

    assert rig.accepts(rig.served("json", chain(100)), "1")
    error = rig.refusal("json", chain(400))
    assert error.pointer.startswith("#/$defs/a")
    assert "256" in error.why


def test_items_of_few_values_may_be_unique() -> None:
    made = rig.served("json", {"type": "array", "items": {"enum": ["r", "w", "x", "w"]}, "uniqueItems": True, "minItems": 1})
    assert rig.accepts(made, '["r", "w", "x"]')
    assert rig.accepts(made, '["x"]')
    for text in ("[]", '["r","r"]', '["w","r","w"]', '["y"]'):
        assert not rig.accepts(made, text)


def test_whitespace_and_digits_are_bounded() -> None:
    free = rig.served("json", {})
    assert rig.accepts(free, '{\n  "a": [1, 2]\n}')
    assert not rig.accepts(free, "[" + " " * 50 + "1]")
    assert not rig.accepts(free, "[1]" + "\n" * 5)
    assert rig.accepts(free, "1234567890.12345")
    assert not rig.accepts(free, "1234567890.123456")
    assert rig.accepts(free, "1" * 24)
    assert rig.accepts(free, "1" * 24 + ".5")
    assert not rig.accepts(free, "1" * 60)
    assert rig.accepts(free, '["' + "1" * 60 + '"]')


def test_a_number_that_must_be_long_may_be() -> None:
    assert rig.accepts(rig.served("json", {"const": "7" * 60}), '"' + "7" * 60 + '"')


def test_compact_and_closed() -> None:
    schema = {"type": "object", "properties": {"a": {"type": "integer"}}}
    compact, closed = rig.served("json", schema, compact=True), rig.served("json", schema, closed=True)
    assert rig.accepts(compact, '{"a":1,"b":2}')
    assert not rig.accepts(compact, '{"a": 1}')
    assert rig.accepts(closed, '{"a": 1}')
    assert not rig.accepts(closed, '{"a":1,"b":2}')


@pytest.mark.parametrize(
    "text",
    [
        '{"a":1,"a":2}',
        '{"":1,"":2}',
        '{"b":{"a":1,"a":1}}',
        '[{"x":{}},{"k":1,"l":2,"k":3}]',
        '{"a":1,"\\u0061":2}',
        '{"ü":1,"ü":1}',
    ],
)
def test_no_object_has_a_key_twice(text: str) -> None:
    made = rig.served("json", {})
    assert not rig.accepts(made, text)
    assert rig.accepts(made, '{"a":{"a":1},"b":{"a":[{"a":1},{"a":1}]},"ab":"a"}')


def test_no_token_holds_a_key_that_is_there_already() -> None:
    """`"":1` within one token, or a key's end and the next key."""
    matcher = rig.grammars().matcher(rig.served("json", {"type": "object"}))
    matcher.accept([*b'{"a":1,"":2,"x":[', 258 + rig.MERGED.index(b'{"":1'), *b"}],"])
    now = {rig.VOCABULARY.tokens[i] for i in rig.allowed(matcher)}
    assert b'"' in now
    assert b'""' not in now
    matcher.accept([ord('"')])
    now = {rig.VOCABULARY.tokens[i] for i in rig.allowed(matcher)}
    assert not now & {b'"', b'":', b'":"', b'a"', b"\\", b"\\u00"}
    assert {b"a", b"b"} <= now


def test_an_object_whose_every_key_is_used_ends_in_an_error_not_in_a_repeated_key() -> None:
    matcher = rig.grammars().matcher(
        rig.served("json", {"patternProperties": {"^a$": {}}, "additionalProperties": False, "type": "object"})
    )
    matcher.accept(list(b'{"a":1,"'))
    matcher.accept([ord("a")])
    with pytest.raises(GrammarError, match="every key"):
        rig.allowed(matcher)


def test_text_is_free_up_to_a_token_and_constrained_after_it() -> None:
    made = rig.served("json", NAMED)
    made = type(made)(text=made.text, json=made.json, free_until=(rig.MARK,))
    matcher = rig.grammars().matcher(made)
    for token in (65, 5, 255, rig.EOS + 20, 123):
        assert rig.allowed(matcher) == set(range(rig.VOCAB)), "minus nothing"
        matcher.accept([token])
    assert matcher.complete
    assert matcher.forced_tokens() == []
    matcher.accept([7, rig.MARK])
    assert {rig.VOCABULARY.tokens[i][:1] for i in rig.allowed(matcher)} == {b"{"}
    other = matcher.copy()
    matcher.accept(list(b'{"a":1}'))
    assert rig.allowed(matcher) == {rig.EOS}
    assert {rig.VOCABULARY.tokens[i][:1] for i in rig.allowed(other)} == {b"{"}, "a copy goes its own way"


def test_tokens_that_must_come_are_told() -> None:
    matcher = rig.grammars().matcher(rig.served("regex", '"name":"[a-z]+"'))
    assert b"".join(rig.VOCABULARY.tokens[i] for i in matcher.forced_tokens()) == b'"name":"'
    matcher.accept(list(b'"name":"a'))
    assert matcher.forced_tokens() == []


def test_special_tokens_are_named_by_id() -> None:
    made = rig.served("grammar", f'start: "a" <[{rig.MARK}]> "b"')
    matcher = rig.grammars().matcher(made)
    matcher.accept([ord("a")])
    assert rig.allowed(matcher) == {rig.MARK}
    assert not rig.accepts(made, "a<mark>b")
