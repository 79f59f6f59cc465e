"""Prompts of pooling models: texts that may be cut, and pairs of texts. Knows no request and no transport."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from thalweg.config import PoolingConfig
from thalweg.engine.client.media import MEDIA, MediaPreprocessor, find_source
from thalweg.errors import RequestError
from thalweg.media.kinds import name_kinds
from thalweg.media.kinds.base import MediaItem, MediaSource
from thalweg.text.cut import TokenizedText, Truncation, cut_ids, read_pair, read_pairs, read_text
from thalweg.text.pair_forms import FORMS, write_media_pair, write_pair
from thalweg.text.tokenizer import Tokenizer

_TOKENIZATION = ("truncate_prompt_tokens", "truncation_side", "add_special_tokens")


def read_tokenization(settings: Mapping[str, Any] | None) -> tuple[int | None, str | None, bool]:
    """`tokenization_kwargs`: (truncate_prompt_tokens, truncation_side, add_special_tokens). RequestError for others."""
    settings = settings or {}
    name = "tokenization_kwargs"
    unknown = sorted(set(map(str, settings)) - set(_TOKENIZATION))
    if unknown:
        raise RequestError(f"{name}: {unknown[0]!r:.80} is not supported; this version has {', '.join(_TOKENIZATION)}", name)
    special = settings.get("add_special_tokens", True)
    if not isinstance(special, bool):
        raise RequestError(f"{name}: add_special_tokens must be true or false, not {special!r:.80}", name)
    return settings.get("truncate_prompt_tokens"), settings.get("truncation_side"), special


def shorten_prompt(tokenizer: Tokenizer | None, prompt: Any, cut: Truncation | None, special: bool) -> Any:
    """A prompt for `InputProcessor`, with its ids cut to the limit of `cut`. special: with the tokenizer's special tokens.
    Other values are returned unchanged, to be rejected there."""
    if cut is None and special:
        return prompt
    if isinstance(prompt, str):
        prompt = {"prompt": prompt}
    if not isinstance(prompt, Mapping):
        return cut_ids(list(prompt), cut) if isinstance(prompt, Sequence) else prompt
    text, ids = prompt.get("prompt"), prompt.get("prompt_token_ids")
    if ids is None and isinstance(text, str) and tokenizer is not None:
        return {**prompt, "prompt_token_ids": read_text(tokenizer, text, cut, special).ids}
    out = dict(prompt)
    for name in ("prompt_token_ids", "token_type_ids"):
        if isinstance(prompt.get(name), list):
            out[name] = cut_ids(prompt[name], cut)
    return out


def pair_prompts(
    tokenizer: Tokenizer, pairs: Sequence[tuple[str, str]], cut: Truncation | None, pooling: PoolingConfig,
    most: tuple[int, int] = (0, 0), instruction: str | None = None,
) -> list[dict[str, Any]]:  # fmt: skip
    """The prompt of each pair of texts, in the model's form. most: kept tokens of the first and of the second text; 0 = all.
    instruction: replaces the default one, where the model's form has one."""
    form = FORMS.get(pooling.form)
    if form is None:
        return [_prompt_of(each, pooling.types) for each in read_pairs(tokenizer, pairs, cut, most)]
    return [
        _prompt_of(
            read_pair(tokenizer, a, b, cut, most) if form.written is not None and a.startswith(form.written)
            else write_pair(tokenizer, form, a, b, cut, most, instruction),
            1,
        )
        for a, b in pairs
    ]  # fmt: skip


def _prompt_of(read: TokenizedText, types: int) -> dict[str, Any]:
    return {"prompt_token_ids": read.ids, **({"token_type_ids": read.types} if types > 1 else {})}


def match_texts(first: int, second: int, names: tuple[str, str]) -> list[tuple[int, int]]:
    """Pairs of indices of texts, of so many each: one with one, one with every other, or each with its own. RequestError."""
    if not first or not second:
        raise RequestError(f"{names[0 if not first else 1]} must not be empty", names[0 if not first else 1])
    if first not in (1, second):
        raise RequestError(f"{names[0]}: {first} texts for {second} of {names[1]}; send one for all, or one for each", names[0])
    return [(0 if first == 1 else i, i) for i in range(second)]


@dataclass(frozen=True, slots=True)
class ScoredItem:
    """One side of a pair: texts and media, in order."""

    parts: tuple[str | MediaSource, ...]

    @property
    def text(self) -> str:
        """The texts, joined by newlines."""
        return "\n".join(part for part in self.parts if isinstance(part, str))

    @property
    def sources(self) -> list[MediaSource]:
        """The media, unread."""
        return [part for part in self.parts if not isinstance(part, str)]


def join_messages(messages: Sequence[Mapping[str, Any]], sources: Sequence[MediaSource]) -> ScoredItem:
    """Messages of a model that reads no conversations: their texts and media. messages: as `MediaPreprocessor.apart` returns
    them. sources: their media."""
    parts: list[str | MediaSource] = list(sources)
    for message in messages:
        content = message.get("content")
        given = [content] if isinstance(content, str) else [p.get("text") for p in content or () if isinstance(p, Mapping)]
        parts += [text for text in given if isinstance(text, str)]
    return ScoredItem(tuple(parts))


def read_scored_item(item: Any, name: str) -> ScoredItem:
    """An item to score: text, {"text": ...}, or {"content": [parts]} with parts of text and media. RequestError for anything
    else."""
    if isinstance(item, str):
        return ScoredItem((item,))
    if isinstance(item, Mapping):
        content = item.get("content")
        given = content if isinstance(content, list | tuple) else ()
        if isinstance(item.get("text"), str):
            if given:
                raise RequestError(f"{name} has both text and content; send the text as a part of content", name)
            return ScoredItem((str(item["text"]),))
        parts = [_read_part(part, f"{name}.content[{i}]") for i, part in enumerate(given)]
        if parts and None not in parts:
            return ScoredItem(tuple(part for part in parts if part is not None))
    raise RequestError(f"{name} must be text, or an object with text, or with content of parts: text, {name_kinds('or')}", name)


def _read_part(part: Any, at: str) -> str | MediaSource | None:
    """A text or a medium. None: neither."""
    if isinstance(part, Mapping) and part.get("type") == "text" and isinstance(part.get("text"), str):
        return str(part["text"])
    return find_source(part, at)


def media_pair_prompt(
    tokenizer: Tokenizer, media: MediaPreprocessor, pair: tuple[ScoredItem, ScoredItem],
    items: tuple[Sequence[MediaItem], Sequence[MediaItem]], pooling: PoolingConfig, instruction: str | None = None,
) -> dict[str, Any]:  # fmt: skip
    """The prompt of a pair with media, in the model's form. items: the media of each side, read. instruction: replaces the
    default one."""
    form = FORMS[pooling.form]
    assert form.media is not None
    before, behind = form.media
    both = [*items[0], *items[1]]
    expand = media.expand(both)
    sides = [
        [(p, True) if isinstance(p, str) else (f"{before}{expand.signs[p.kind]}{behind}", False) for p in side.parts]
        for side in pair
    ]
    return {"prompt_token_ids": write_media_pair(tokenizer, form, sides, expand, instruction), MEDIA: both}


def check_media_pairs(sides: Sequence[ScoredItem], media: MediaPreprocessor | None, pooling: PoolingConfig) -> bool:
    """Do some items hold media? RequestError where the model reads none, or none in pairs."""
    source = next((source for side in sides for source in side.sources), None)
    if source is None:
        return False
    if media is None:
        raise RequestError(f"{source.at}: this model is text-only; send text parts", source.at)
    for side in sides:
        media.check_sources(side.sources, source.at)
    form = FORMS.get(pooling.form)
    if pooling.task != "embed" and (form is None or form.media is None):
        raise RequestError(f"{source.at}: this model's pairs hold text only; send text parts", source.at)
    return True
