"""Arguments of calls in a conversation: an object where the text is one, and the text itself where it is none."""

from __future__ import annotations

import json
from typing import Any

import pytest

from thalweg.template.arguments import LARGEST, ArgumentText, read_arguments
from thalweg.template.sandbox import ChatTemplate


@pytest.mark.parametrize(
    ("given", "read"),
    [
        ('{"a": [1, {"b": null}]}', {"a": [1, {"b": None}]}),
        ({"a": 1}, {"a": 1}),
        (' {"a": 1}\n', {"a": 1}),
        ('{"a": "x\ny"}', {"a": "x\ny"}),
        ('{"a": 9223372036854775807}', {"a": LARGEST - 1}),
        ('{"a": 9223372036854775808}', {"a": float(LARGEST)}),
        (None, {}), ("", {}), (" \n", {}), ("null", {}), (" null ", {}), ("{}", {}),
    ],
)  # fmt: skip
def test_an_object_and_nothing_are_objects(given: Any, read: Any) -> None:
    assert read_arguments(given) == read


@pytest.mark.parametrize(
    "text",
    [
        '{"path": "mkdir', "{", "}", "[1]", '"a"', "1", "true", "nullify", "{}{}", '{"a": 1,}', "{'a': 1}", "\x00",
        '{"a": "\\ud800"}', '{"\\udfff": 1}', "[" * 100_000, '{"a": ' * 100 + "1" + "}" * 100, '{"a": ' + "9" * 5000 + "}",
    ],
    ids=lambda t: t[:16].encode("unicode_escape").decode(),
)  # fmt: skip
def test_any_other_text_stays_as_the_model_wrote_it(text: str) -> None:
    assert read_arguments(text) == text


@pytest.mark.parametrize("given", [1, True, [1], 2.5])
def test_what_is_neither_text_nor_an_object_is_no_arguments(given: Any) -> None:
    with pytest.raises(TypeError, match=type(given).__name__):
        read_arguments(given)


def show(expression: str, arguments: Any) -> str:
    call = {"id": "1", "type": "function", "function": {"name": "f", "arguments": arguments}}
    template = ChatTemplate("{% set a = messages[1].tool_calls[0].function.arguments %}" + expression)
    return template.render([{"role": "user", "content": "x"}, {"role": "assistant", "tool_calls": [call]}])


BROKEN = '{"a": "x'


@pytest.mark.parametrize(
    ("expression", "whole", "broken"),
    [
        ("{{ a }}", "{'a': 'x'}", BROKEN),
        ("{{ a | tojson }}", '{"a": "x"}', BROKEN),
        ("{{ a | tojson(indent=2) }}", '{\n  "a": "x"\n}', BROKEN),
        ("{{ {'n': 1, 'p': a} | tojson }}", '{"n": 1, "p": {"a": "x"}}', f'{{"n": 1, "p": {json.dumps(BROKEN)}}}'),
        ("{{ [a] | tojson }}", '[{"a": "x"}]', json.dumps([BROKEN])),
        ("{{ '<' + (a | tojson) + '>' }}", '<{"a": "x"}>', f"<{BROKEN}>"),
        ("{{ '<' ~ a ~ '>' }}", "<{'a': 'x'}>", f"<{BROKEN}>"),
        ("{% for k, v in a.items() %}{{ k }}={{ v }}{% endfor %}", "a=x", ""),
        ("{% for k, v in a | items %}{{ k }}={{ v }}{% endfor %}", "a=x", ""),
        ("{% for k, v in a | dictsort %}{{ k }}={{ v }}{% endfor %}", "a=x", ""),
        ("{% for k in a %}{{ k }}={{ a[k] }}{% endfor %}", "a=x", ""),
        ("{{ a.keys() | list | length }}{{ a | length }}{{ a.values() | list | length }}", "111", "000"),
        ("{{ a is mapping }} {{ a is string }}", "True False", "True False"),
        (
            "{{ a.a is defined }} {{ a['a'] is defined }} {{ a.get('a', 'none') }} {{ 'a' in a }}",
            "True True x True",
            "False False none False",
        ),
        ("{% if a %}some{% else %}none{% endif %}", "some", "some"),
        ("{{ a.__class__ }}{{ a._text }}", "", ""),
    ],
)
def test_templates_read_arguments_of_both_kinds(expression: str, whole: str, broken: str) -> None:
    assert show(expression, '{"a": "x"}') == whole
    assert show(expression, BROKEN) == broken


@pytest.mark.parametrize("expression", ["{{ '<' + a + '>' }}", "{{ a + '' }}"])
def test_a_template_that_adds_arguments_to_a_text_gets_what_was_written(expression: str) -> None:
    assert BROKEN in show(expression, BROKEN)


def test_written_arguments_are_a_mapping_without_names() -> None:
    written = ArgumentText(BROKEN)
    assert (dict(written), len(written), str(written), bool(written)) == ({}, 0, BROKEN, True)
    with pytest.raises(KeyError):
        written["a"]
