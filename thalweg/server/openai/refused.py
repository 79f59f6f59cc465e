"""Fields of this API, and of servers like this one, that change the answer and are not honoured: refused by name."""

from __future__ import annotations

from typing import Any

from thalweg.server.core.fields import refuse_asked
from thalweg.server.errors import ApiError

NOT_YET: dict[str, tuple[Any, ...]] = {
    # OpenAI's
    "suffix": ("",),
    "response_format": ({"type": "text"},),
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
    "structured_outputs": (),
    "guided_json": (),
    "guided_regex": (),
    "guided_choice": (),
    "guided_grammar": (),
    "guided_decoding_backend": (),
    "guided_whitespace_pattern": (),
    "structural_tag": (),
    "logits_processors": ([],),
    "min_characters": (0,),
    "prompt_embeds": (),
    "kv_transfer_params": (),
    "vllm_xargs": ({},),
    "repetition_detection": ({"max_pattern_size": 0},),
    "thinking_token_budget": (),
    "include_reasoning": (True,),
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
}
"""Fields that mean the same here."""
MESSAGE_NOT_YET: dict[str, tuple[Any, ...]] = {"tools": ([],), "task": ()}
"""NOT_YET for fields of a message."""


def refuse(body: dict[str, Any]) -> None:
    """Take what asks for nothing out of `body`. ApiError for the first field that asks for something."""
    refuse_asked(body, NOT_YET, INSTEAD)
    messages = body.get("messages")
    for i, message in enumerate(messages if isinstance(messages, list) else ()):
        if isinstance(message, dict):
            refuse_asked(message, MESSAGE_NOT_YET, INSTEAD, f"messages[{i}].")


def refuse_tools(body: dict[str, Any]) -> None:
    choice, tools = body.get("tool_choice"), body.get("tools")
    if tools == [] and choice == "auto":  # none to choose from
        choice = body["tool_choice"] = None
    if choice not in (None, "none") or (tools and choice is None):
        raise ApiError(
            "calling tools is not supported by this version; send tool_choice='none' or leave out tools", "tool_choice"
        )
    for i, message in enumerate(body.get("messages") or () if isinstance(body.get("messages"), list) else ()):
        content = message.get("content") if isinstance(message, dict) else None
        for j, part in enumerate(content if isinstance(content, list) else ()):
            kind = part.get("type") if isinstance(part, dict) else None
            if kind not in ("text", "input_text", "output_text"):
                where = f"messages[{i}].content[{j}]"
                raise ApiError(f"{where}: parts of type {kind!r} are not supported by this version; only text is", where)
