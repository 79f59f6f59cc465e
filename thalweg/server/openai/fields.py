"""What becomes of a request's fields: honoured, refused because the answer would not be what was asked for, or not known.

Clients send fields of their own and of servers to come, so what nobody here knows is ignored: said once in the log, by name
and never by value, and counted in a metric. --strict-requests refuses it. A field known to change the answer is never ignored.
"""

from __future__ import annotations

import logging
import re
import threading
from collections.abc import Callable, Iterator
from functools import cache
from typing import Any, TypeVar, get_args

from pydantic import BaseModel

from thalweg.server.errors import ApiError
from thalweg.server.openai.protocol import ChatRequest, Model

log = logging.getLogger(__name__)
R = TypeVar("R", bound=Model)

MOST_NAMES = 64
"""Unknown names that are logged and counted one by one: clients choose them."""
OTHER = "other"
_SPEAKABLE = re.compile(r"[A-Za-z_][\w.\[\]-]{0,63}", re.ASCII)

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
"""What means the same here."""
MESSAGE_NOT_YET: dict[str, tuple[Any, ...]] = {"tools": ([],), "task": ()}
"""The same, of a message."""


class Fields:
    """What a server does with the fields of its requests. Thread-safe: long bodies are read on a thread."""

    def __init__(self, strict: bool = False, count: Callable[[str], None] = lambda name: None) -> None:
        """strict: refuse unknown fields. count: told the name of every unknown field, one of a bounded number."""
        self._strict, self._count = strict, count
        self._names: set[str] = set()
        self._lock = threading.Lock()

    def parse(self, kind: type[R], body: dict[str, Any]) -> R:
        """`body` checked as `kind`. ApiError for a feature that is not here yet; pydantic's ValidationError for the rest."""
        _refuse(body, NOT_YET, "")
        messages = body.get("messages")
        for i, message in enumerate(messages if isinstance(messages, list) else ()):
            if isinstance(message, dict):
                _refuse(message, MESSAGE_NOT_YET, f"messages[{i}].")
        if issubclass(kind, ChatRequest):
            _no_tools_yet(body)
        unknown = set()
        for path in _unknown(kind, body, ""):
            if self._strict:
                raise ApiError(f"{path[:200]}: unknown field (this server was started with --strict-requests)", path[:200])
            unknown.add(re.sub(r"\[\d+\]", "[]", path))
        if unknown:
            self._note(unknown)
        return kind.model_validate(body)

    def _note(self, names: set[str]) -> None:
        for name in {self._known(n) for n in names}:
            self._count(name)

    def _known(self, name: str) -> str:
        """The name to count under; said in the log when it is new."""
        if not _SPEAKABLE.fullmatch(name):
            return OTHER
        with self._lock:
            if name in self._names:
                return name
            if len(self._names) >= MOST_NAMES:
                return OTHER
            self._names.add(name)
            last = len(self._names) == MOST_NAMES
        log.info("request field %s is not known here and is ignored; said once", name)
        if last:
            log.info("%d unknown request fields were named; more are counted only", MOST_NAMES)
        return name


def _refuse(body: dict[str, Any], table: dict[str, tuple[Any, ...]], where: str) -> None:
    """Takes fields of `table` out of `body`. ApiError for one that asks for something."""
    for name in table.keys() & body.keys():
        value = body.pop(name)
        if value is None or any(value == v and type(value) is type(v) for v in table[name]):
            continue
        remedy = f"send {INSTEAD[name]} instead" if name in INSTEAD else "leave it out"
        raise ApiError(f"{where}{name} is not supported by this version; {remedy}", where + name)


def _unknown(kind: type[BaseModel], value: dict[str, Any], path: str) -> Iterator[str]:
    """Paths of fields that `kind` and the models within it do not have."""
    nested = _nested(kind)
    for name in value:
        if name not in nested:
            yield path + name
    for name, inner in nested.items():
        if inner is None or name not in value:
            continue
        items = value[name]
        if isinstance(items, dict):
            yield from _unknown(inner, items, f"{path}{name}.")
        for i, item in enumerate(items if isinstance(items, list) else ()):
            if isinstance(item, dict):
                yield from _unknown(inner, item, f"{path}{name}[{i}].")


@cache
def _nested(kind: type[BaseModel]) -> dict[str, type[BaseModel] | None]:
    """The fields of `kind`, each with the model it holds, alone or in a list."""
    return {name: next(_models(field.annotation), None) for name, field in kind.model_fields.items()}


def _models(annotation: Any) -> Iterator[type[BaseModel]]:
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        yield annotation
    for part in get_args(annotation):
        yield from _models(part)


def _no_tools_yet(body: dict[str, Any]) -> None:
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
