"""Names of vLLM's parsers, copied from its documentation and from 0.32, and what turns of tests are made of."""

from __future__ import annotations

import json
import random
from typing import Any

from thalweg.turns.events import Call, Message

TOOL_PARSERS = [
    "hermes", "mistral", "llama3_json", "llama4_json", "llama4_pythonic", "pythonic", "qwen3_coder", "qwen3_xml",
    "deepseek_v3", "deepseek_v31", "deepseek_v32", "deepseek_v4", "glm45", "glm47", "kimi_k2", "minimax_m2",
    "minimax", "openai", "granite", "granite4", "granite-20b-fc", "internlm", "jamba", "phi4_mini_json", "xlam",
    "hunyuan_a13b", "hy_v3", "longcat", "step3", "step3p5", "seed_oss", "ernie45", "olmo3", "gigachat3",
    "functiongemma", "gemma4", "apertus", "lfm2", "mimo", "poolside_v1", "cohere_command3", "cohere_command4",
]  # fmt: skip
TOOL_PARSERS_032 = [
    "deepseek_v41", "dots", "hf", "hy_v4", "inkling", "k2_horizon", "kimi_k3", "ling3", "minicpm5", "minimax_m3",
    "muse_glimmer", "plamo3", "qwen3_json",
]  # fmt: skip
REASONING_PARSERS = [
    "deepseek_r1", "deepseek_v3", "deepseek_v4", "qwen3", "openai_gptoss", "glm45", "kimi_k2", "minimax_m2",
    "minimax_m2_append_think", "mistral", "gemma4", "granite", "hunyuan_a13b", "hy_v3", "ernie45", "holo2",
    "nemotron_v3", "olmo3", "seed_oss", "step3", "step3p5", "mimo", "poolside_v1", "cohere_command3",
    "cohere_command4",
]  # fmt: skip
REASONING_PARSERS_032 = [
    "deepseek_v41", "glm47", "granite_thinking_parser", "hf", "hy_v4", "inkling", "k2_horizon", "kimi_k3", "ling3",
    "minicpmv", "minimax_m3", "muse_glimmer", "plamo3",
]  # fmt: skip

WEATHER: dict[str, Any] = {
    "type": "object",
    "properties": {
        "city": {"type": "string", "description": "where"},
        "days": {"type": "integer", "description": "how many"},
        "deep": {"type": "object", "description": "more", "properties": {"a": {"type": "array", "items": {}}}},
    },
    "required": ["city"],
}
SCHEMAS: dict[str, Any] = {"get_weather": WEATHER, "other_tool": WEATHER}
TOOLS = [{"type": "function", "function": {"name": n, "description": "d", "parameters": s}} for n, s in SCHEMAS.items()]
PIECES = ["a", "Par", "é", "<", ">", "{", "}", "[", "]", '"', "'", "\\", "\n", " ", ",", ":", "=", "(", ")", "```", "</", "<|",
          "tool_call", "x1", "0", "日本", "😀", "null", "true", "&amp;", "[TOOL", "<think"]  # fmt: skip


def words(rng: random.Random, most: int = 8) -> str:
    """Text with everything in it that a format might trip over, but for its own terminals."""
    return "".join(rng.choice(PIECES) for _ in range(rng.randrange(most)))


def arguments(rng: random.Random) -> str:
    made: dict[str, Any] = {}
    if rng.random() < 0.9:
        made["city"] = words(rng)
    if rng.random() < 0.6:
        made["days"] = rng.randrange(-5, 100)
    if rng.random() < 0.4:
        made["deep"] = {"a": [rng.choice([1, -2.5, True, None, "s", [1]]) for _ in range(rng.randrange(1, 3))]}
    return json.dumps(made, ensure_ascii=rng.random() < 0.5)


def message(rng: random.Random) -> Message:
    calls = [Call(rng.choice(list(SCHEMAS)), arguments(rng), "") for _ in range(rng.randrange(4))]
    content, reasoning = (words(rng, 12).strip() if rng.random() < 0.6 else "" for _ in range(2))
    return Message(content, reasoning, calls)


def plain(message: Message) -> tuple[str, str, list[tuple[str, Any]]]:
    """What a turn says, without ids and with arguments read."""
    calls = [(c.name, json.loads(c.arguments)) for c in message.calls]
    return message.content, message.reasoning, calls
