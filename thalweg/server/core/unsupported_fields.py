"""Fields of this API, and of servers like this one, that change the answer and are not honoured: refused by name."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

from thalweg.media.kinds import map_part_types, name_kinds
from thalweg.server.core.fields import refuse_asked
from thalweg.server.errors import ApiError

NOT_YET: dict[str, tuple[Any, ...]] = {
    # OpenAI's
    "suffix": ("",),
    "functions": ([],),
    "function_call": ("none",),
    "modalities": (["text"],),
    "audio": (),
    "prediction": (),
    "verbosity": ("medium",),
    "web_search_options": (),
    # vLLM's
    "use_beam_search": (False,),
    "length_penalty": (1.0, 1),
    "guided_decoding_backend": ("auto", "guidance", "xgrammar", "outlines", "lm-format-enforcer"),
    "structural_tag": (),
    "logits_processors": ([],),
    "min_characters": (0,),
    "prompt_embeds": (),
    "vllm_xargs": ({},),
    "repetition_detection": ({"max_pattern_size": 0},),
    "media_io_kwargs": ({},),
    "mm_processor_kwargs": ({},),
    "return_prompt_text": (False,),
    "documents": ([],),
    "truncation_side": ("left",),
    # llama.cpp's
    "grammar": ("",),
    "json_schema": ({},),
    "n_predict": (-1,),
    "n_probs": (0,),
    "repeat_penalty": (1.0, 1),
    "typical_p": (1.0, 1),
    "top_n_sigma": (-1.0, -1),
    "dynatemp_range": (0.0, 0),
    "mirostat": (0,),
    "xtc_probability": (0.0, 0),
    "dry_multiplier": (0.0, 0),
    "samplers": (),
    # SGLang's
    "regex": (),
    "ebnf": (),
    "stop_regex": ([],),
    "custom_logit_processor": (),
    "no_repeat_ngram_size": (0,),
}
"""Fields that change the answer and are not honoured, each with the values that ask for nothing. None always does."""
INSTEAD = {
    "n_predict": "max_tokens",
    "n_probs": "logprobs",
    "repeat_penalty": "repetition_penalty",
    "grammar": "structured_outputs with grammar",
    "json_schema": "response_format",
    "regex": "structured_outputs with regex",
    "ebnf": "structured_outputs with grammar",
    "structural_tag": "response_format of type structural_tag",
}
"""Fields that mean the same here."""
MESSAGE_NOT_YET: dict[str, tuple[Any, ...]] = {"tools": ([],), "task": ()}
"""NOT_YET for fields of a message."""


TEXTS = ("text", "input_text", "output_text")
MEDIA = {name: (kind.name, part) for name, kind in map_part_types().items() if (part := kind.part_types[name]).form != "object"}
"""Types of parts of messages. Those of media with the kind, and where and how they hold an item."""


def refuse(body: dict[str, Any], known: Collection[str] = ()) -> None:
    """Remove fields without effect from `body`. ApiError for the first field with one. known: fields that this kind of body
    has."""
    refuse_asked(body, {name: values for name, values in NOT_YET.items() if name not in known}, INSTEAD)
    messages = body.get("messages")
    for i, message in enumerate(messages if isinstance(messages, list) else ()):
        if isinstance(message, dict):
            refuse_asked(message, MESSAGE_NOT_YET, INSTEAD, f"messages[{i}].")


def drop_tools(body: dict[str, Any]) -> None:
    """Remove tools other than functions: they run at the copied API. Each counts as an unknown field, and is reported. ApiError
    for a tool_choice that asks for one."""
    tools, choice = body.get("tools"), body.get("tool_choice")
    kind = choice.get("type") if isinstance(choice, dict) else "function"
    if kind != "function":
        words = f"tool_choice of type {kind!r} is not supported by this version; name a function, or send 'auto'"
        raise ApiError(words, "tool_choice")
    for tool in tools if isinstance(tools, list) else ():
        if isinstance(tool, dict) and isinstance(tool.get("type"), str) and tool["type"] != "function":
            body[f"tools[].{tool['type']}"] = None
    if isinstance(tools, list):
        body["tools"] = [t for t in tools if not (isinstance(t, dict) and t.get("type", "function") != "function")]


def refuse_parts(body: dict[str, Any]) -> None:
    """ApiError for a part of a message other than text and supported media."""
    for i, message in enumerate(body.get("messages") or () if isinstance(body.get("messages"), list) else ()):
        content = message.get("content") if isinstance(message, dict) else None
        for j, part in enumerate(content if isinstance(content, list) else ()):
            where = f"messages[{i}].content[{j}]"
            if not isinstance(part, dict) or not isinstance(part.get("type"), str):
                raise ApiError(f"{where}: must be an object with a type, such as text", where)
            kind = part["type"]
            if kind in TEXTS and part.get("text") is None:
                raise ApiError(f"{where}.text: is missing", f"{where}.text")
            if kind not in (*TEXTS, *MEDIA):
                raise ApiError(
                    f"{where}: parts of type {kind!r} are not supported by this version; {name_kinds('and', 'text')} are", where
                )
