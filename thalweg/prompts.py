"""Prompts as mappings, with vLLM's names. Plain text and a list of token ids are prompts too."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, TypedDict


class _Common(TypedDict, total=False):
    cache_salt: str
    """Prompts share cached prefixes only with those of the same salt."""
    multi_modal_data: dict[str, Any]
    """For a speech model: {"audio": samples at 16,000 a second, or (samples, rate)}."""


class _Text(TypedDict):
    prompt: str


class _Tokens(TypedDict):
    prompt_token_ids: list[int]


class _Embeds(TypedDict):
    prompt_embeds: Any


class TextPrompt(_Text, _Common, total=False):
    """{"prompt": text}, and images where the text holds the model's placeholder for each."""

    multi_modal_data: dict[str, Any]
    """{"image": one or several}: of PIL, u8[height, width, 3] of numpy, bytes of a file, or URLs."""
    multi_modal_uuids: dict[str, Any]
    """{"image": names}: an image with a cached name (mm_processor_cache_gb) is not read again, and may be None."""


class TokensPrompt(_Tokens, _Common, total=False):
    """{"prompt_token_ids": ids}, and optionally the text, which is returned."""

    prompt: str
    token_type_ids: list[int]
    """Pooling models: which of two texts a token belongs to."""


class EmbedsPrompt(_Embeds, _Common, total=False):
    """{"prompt_embeds": f32[tokens, hidden]}, of numpy or torch."""

    prompt: str
    """The text, to be returned."""
    prompt_token_ids: list[int]
    """One id for each vector, returned too."""
    prompt_is_token_ids: list[bool]
    """Which ids count as tokens: their vectors are not read. With prompt_token_ids."""


class ExplicitEncoderDecoderPrompt(TypedDict):
    """For a speech model."""

    encoder_prompt: dict[str, Any]
    """{"multi_modal_data": {"audio": ...}}, with an empty text or none."""
    decoder_prompt: str | list[int] | dict[str, Any]
    """Text or ids at the start of the transcript."""


REFUSED_KEYS = {
    "mm_processor_kwargs": "the model's files and the engine's mm_processor_kwargs say how images are processed; omit it"
}
"""Known but unsupported keys of a prompt -> the reason."""
_BESIDE = frozenset({"multi_modal_data", "multi_modal_uuids", *REFUSED_KEYS})


def drop_empty(prompt: Any) -> Any:
    """The prompt without empty keys: programs send None or {} for keys of images."""
    if not isinstance(prompt, Mapping) or not _BESIDE & prompt.keys():
        return prompt
    return {k: v for k, v in prompt.items() if k not in _BESIDE or not (v is None or (isinstance(v, Mapping) and not v))}


PromptType = str | list[int] | TextPrompt | TokensPrompt | EmbedsPrompt | ExplicitEncoderDecoderPrompt
