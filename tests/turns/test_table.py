"""Every parser name of vLLM names a row, and names that are none are refused with what there is."""

from __future__ import annotations

import pytest
import turn_samples as spec

from thalweg.errors import ConfigError
from thalweg.turns import table
from thalweg.turns.format import CallHead, Calls, JsonArgs, Reasoning


@pytest.mark.parametrize("name", [*spec.TOOL_PARSERS, *spec.TOOL_PARSERS_032])
def test_every_tool_parser_has_a_row(name):
    assert name == table.TEMPLATE or isinstance(table.calls_named(name), Calls)


@pytest.mark.parametrize("name", [*spec.REASONING_PARSERS, *spec.REASONING_PARSERS_032, "GptOss"])
def test_every_reasoning_parser_has_a_row(name):
    assert name == table.TEMPLATE or isinstance(table.reasoning_named(name)[0], Reasoning)


def test_the_lists_are_as_long_as_the_facts_say():
    counts = [
        len(set(n)) for n in (spec.TOOL_PARSERS, spec.TOOL_PARSERS_032, spec.REASONING_PARSERS, spec.REASONING_PARSERS_032)
    ]
    assert counts == [42, 13, 25, 13]


def test_unknown_names_are_refused_with_those_there_are():
    with pytest.raises(ConfigError, match=r"--tool-call-parser.*'hermos'.*hermes"):
        table.calls_named("hermos")
    with pytest.raises(ConfigError, match=r"--reasoning-parser.*'qwen'.*qwen3"):
        table.reasoning_named("qwen")


def test_a_plugin_adds_a_row(tmp_path, monkeypatch):
    monkeypatch.setattr(table, "CALLS", dict(table.CALLS))
    file = tmp_path / "mine.py"
    file.write_text(
        "from thalweg.turns.format import Calls, JsonCalls\nfrom thalweg.turns.table import register\n"
        "register(Calls('mine', JsonCalls(), '<mine>', '</mine>'))\n"
    )
    table.load_plugin("--tool-parser-plugin", str(file))
    assert table.calls_named("mine").open == "<mine>"


def test_a_plugin_that_cannot_be_run_is_refused(tmp_path):
    file = tmp_path / "theirs.py"
    file.write_text("from vllm.tool_parsers import ToolParserManager\n")
    with pytest.raises(ConfigError, match=r"theirs.py: ModuleNotFoundError.*thalweg.turns.table.register"):
        table.load_plugin("--tool-parser-plugin", str(file))
    with pytest.raises(ConfigError, match="no file"):
        table.load_plugin("--tool-parser-plugin", str(tmp_path / "none.py"))


def test_a_taken_name_is_refused():
    with pytest.raises(ConfigError, match="already"):
        table.register(Calls("hermes", JsonArgs(), "<x>", head=CallHead()))
