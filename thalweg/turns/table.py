"""The table of turn formats, by the names users give: --tool-call-parser and --reasoning-parser."""

from __future__ import annotations

import runpy
from pathlib import Path

from thalweg.errors import ConfigError
from thalweg.turns.format import Calls, Header, Reasoning, TurnFormat
from thalweg.turns.rows import gemma, json_array, json_object, named_json, python_calls, tagged, thinking

TEMPLATE = "hf"
"""Parser name of the checkpoint's response_template."""
CALLS: dict[str, Calls] = {
    **json_object.ROWS,
    **json_array.ROWS,
    **named_json.ROWS,
    **tagged.ROWS,
    **python_calls.ROWS,
    **gemma.ROWS,
}
REASONING: dict[str, Reasoning] = dict(thinking.ROWS)
SPECIFIC = (
    named_json.OPENAI,
    tagged.MUSE_GLIMMER,
    tagged.KIMI_K3,
    tagged.MINIMAX_M3,
    tagged.HY_V3_OPEN,
    tagged.HY_V3,
    tagged.HY_V4,
    tagged.K2_HORIZON,
    tagged.SOLAR_OPEN2,
    named_json.SOLAR,
    named_json.PLAMO3,
    named_json.INKLING,
    tagged.DEEPSEEK_V32,
    tagged.DEEPSEEK_V41,
    tagged.DEEPSEEK_V4,
    tagged.STEP3,
    tagged.DOTS,
    tagged.MINIMAX_M2,
    tagged.SEED_OSS,
    tagged.MINICPM5,
    tagged.QWEN3_CODER,
    tagged.GLM45,
    tagged.GLM47,
    gemma.FUNCTIONGEMMA,
    gemma.GEMMA4,
    named_json.KIMI_K2,
    named_json.DEEPSEEK_V3,
    named_json.DEEPSEEK_V31,
    json_array.COHERE,
    json_array.APERTUS,
    json_array.NEMOTRON,
    json_object.LONGCAT,
    json_object.INTERNLM,
    json_object.GIGACHAT3,
    json_object.MINIMAX_M1,
    python_calls.LFM2,
    python_calls.OLMO3,
    python_calls.LLAMA4,
    json_array.HUNYUAN,
    json_array.SECTION,
    json_array.GRANITE,
    named_json.MISTRAL,
    json_object.TAGS,
    named_json.FUNCTIONARY,
    json_object.GRANITE_20B,
    json_array.PHI4,
    json_object.LLAMA3,
    json_object.LOOSE,
)
"""Rows that a chat template may match, with the most specific markers first."""


def register(row: Calls | Reasoning, name: str | None = None) -> None:
    """Add a third-party row under an unused name. For the files of --tool-parser-plugin and --reasoning-parser-plugin.
    ConfigError if the name is taken."""
    if isinstance(row, Calls):
        named = name or row.name
        taken = CALLS.setdefault(named, row)
    else:
        if not name:
            raise ConfigError("register: a row of reasoning needs a name")
        named, taken = name, REASONING.setdefault(name, row)  # type: ignore[assignment]
    if taken is not row:
        raise ConfigError(f"register: a format {named!r} exists already; choose another name")


def load_plugin(flag: str, path: str) -> None:
    """Run the operator's Python file, which calls `register`. ConfigError if it fails."""
    if not Path(path).is_file():
        raise ConfigError(f"{flag}: no file {path!r}")
    try:
        runpy.run_path(path)
    except ConfigError:
        raise
    except Exception as e:
        words = f"{flag}: {path}: {type(e).__name__}: {e}; a plug-in calls thalweg.turns.table.register with a row"
        raise ConfigError(words) from e


def calls_named(name: str) -> Calls:
    """ConfigError for an unknown name."""
    if name not in CALLS:
        names = ", ".join(sorted(CALLS))
        raise ConfigError(f"--tool-call-parser: unknown parser {name!r}; supported: auto, {TEMPLATE}, {names}")
    return CALLS[name]


def reasoning_named(name: str) -> tuple[Reasoning, tuple[str, ...], Header | None]:
    """(row, terminals around content, header). ConfigError for an unknown name."""
    name = {"GptOss": "openai_gptoss"}.get(name, name)
    if name not in REASONING:
        names = ", ".join(sorted(REASONING))
        raise ConfigError(f"--reasoning-parser: unknown parser {name!r}; supported: auto, {TEMPLATE}, {names}")
    return REASONING[name], thinking.WRAPS.get(name, ()), thinking.HEADERS.get(name)


def match_template(template: str) -> TurnFormat:
    """The format whose markers occur in a chat template. Parts without matching markers are None."""
    calls = next((row for row in SPECIFIC if row.markers and all(m in template for m in row.markers)), None)
    turn = TurnFormat(None, calls, source="markers in the chat template")
    for markers, row in thinking.MARKERS:
        if all(m in template for m in markers):
            reasoning, wraps, header = reasoning_named(row) if isinstance(row, str) else (row, (), None)
            return TurnFormat(reasoning, calls, wraps, header, turn.source)
    return turn
