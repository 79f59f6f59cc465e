"""Which format is taken: the flag's, the checkpoint's own, the one that the chat template's words say."""

from __future__ import annotations

import json
import logging

import pytest
import turn_samples as spec
from transformers.utils.chat_parsing import parse_response

from thalweg.errors import ConfigError
from thalweg.turns.bind import bind
from thalweg.turns.choose import choose, describe
from thalweg.turns.reader import read

HERMES = '<tool_call>{"name":, "arguments": }</tool_call> <think>'
OWN = {
    "defaults": {"role": "assistant"},
    "start_anchor": "<|assistant|>",
    "fields": {
        "thinking": {"open": "<hm>", "close": "</hm>"},
        "tool_calls": {
            "open": "<do>",
            "close": "</do>",
            "repeats": True,
            "content": "json",
            "transform": {"type": "function", "function": {"name": "{content.fn}", "arguments": "{content.with}"}},
        },
        "content": {},
    },
}


def test_the_flag_comes_first():
    turn = choose("mistral", "glm45", HERMES, OWN)
    assert (turn.calls.name, turn.reasoning.open) == ("mistral", "<think>")
    assert turn.source == "--tool-call-parser, --reasoning-parser"


def test_the_checkpoints_own_comes_before_the_chat_template():
    turn = choose(None, None, HERMES, OWN)
    assert (turn.calls.open, turn.reasoning.open) == ("<do>", "<hm>")
    assert "response_template" in describe(turn)


def test_the_chat_template_says_it_else():
    turn = choose(None, "", HERMES)
    assert (turn.calls.name, turn.reasoning.open) == ("hermes", "<think>")
    assert describe(turn) == "tool calls: hermes; reasoning: <think> ... </think> (by markers in the chat template)"


def test_one_flag_leaves_the_other_to_the_template():
    turn = choose("none", "auto", HERMES)
    assert turn.calls is None
    assert turn.reasoning.open == "<think>"


@pytest.mark.parametrize("flags", [("hf", None), (None, "hf")])
def test_hf_needs_a_response_template_that_can_be_read(flags):
    with pytest.raises(ConfigError, match="has no response_template"):
        choose(*flags, HERMES)
    pattern = {"fields": {"content": {"open_pattern": "x+"}}}
    with pytest.raises(ConfigError, match="regular expression"):
        choose(*flags, HERMES, pattern)
    assert choose(*flags, HERMES, OWN).calls.open == "<do>"


def test_a_response_template_that_cannot_be_read_is_said(caplog):
    with caplog.at_level(logging.INFO):
        assert (
            choose(None, None, HERMES, {"fields": {"tool_calls": {"open": "<x>", "content": "xml-inline"}}}).calls.name
            == "hermes"
        )
    assert "only plain json is read" in caplog.text


@pytest.mark.parametrize(
    "text",
    [
        '<hm>so</hm>Yes.<do>{"fn": "get_weather", "with": {"city": "x"}}</do>',
        '<do>{"fn": "get_weather", "with": {}}</do><do>{"with": {"days": 1}, "fn": "other_tool"}</do>',
        "just content",
        "<hm>a</hm>b",
    ],
)
def test_a_response_template_reads_as_transformers_reads_it(text):
    said = read(bind(choose(None, None, None, OWN), None), text, "", spec.SCHEMAS)
    theirs = parse_response(text, OWN, prefix="<|assistant|>")
    assert said.content == theirs.get("content", "")
    assert said.reasoning == theirs.get("thinking", "")
    calls = [(c["function"]["name"], c["function"]["arguments"]) for c in theirs.get("tool_calls", ())]
    assert [(c.name, json.loads(c.arguments)) for c in said.calls] == calls
