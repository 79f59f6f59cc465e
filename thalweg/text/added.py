"""Reads tokens from further files of a tokenizer: added tokens that tokenizer.json lacks, and named special tokens.

The keys and their precedence are those of transformers. Special tokens without an id in any file are not added: the model has
no row for them.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import tokenizers

from thalweg.errors import CheckpointError

NAMED_SPECIALS = ("bos_token", "eos_token", "unk_token", "sep_token", "pad_token", "cls_token", "mask_token")
MORE_SPECIALS = ("additional_special_tokens", "extra_special_tokens")
"""Keys of further special tokens: a list, or an object of name -> token."""
DECODER, FILE, MAP = "added_tokens_decoder", "added_tokens.json", "special_tokens_map.json"
_FLAGS = ("single_word", "lstrip", "rstrip", "special")


def merge_settings(config: Mapping[str, Any], special: Mapping[str, Any], added: Mapping[str, Any]) -> dict[str, Any]:
    """tokenizer_config.json extended by special_tokens_map.json and added_tokens.json.

    As in transformers, a configuration with an added_tokens_decoder comes from a version that needs neither file: its keys take
    precedence, and added_tokens.json is ignored. Otherwise the map takes precedence. Nulls are ignored. Further special tokens
    are joined."""
    reported = {k: v for k, v in special.items() if v is not None}
    if config.get(DECODER) is not None:
        result = {**reported, **{k: v for k, v in config.items() if v is not None or k not in reported}}
    else:
        result = {**config, **reported, **({FILE: dict(added)} if added else {})}
    for key in MORE_SPECIALS:
        both = [m[key] for m in (config, reported) if isinstance(m.get(key), list)]
        if both:
            result[key] = [token for each in both for token in each]
    return result


def special_names(config: Mapping[str, Any]) -> dict[str, str]:
    """Name -> text of special tokens: the usual names, and model-specific ones ("image_token")."""
    own = {k: v for k, v in config.items() if k.endswith("_token") and k not in NAMED_SPECIALS}
    for key in MORE_SPECIALS:
        own |= config[key] if isinstance(config.get(key), Mapping) else {}
    named = {**{n: config.get(n) for n in NAMED_SPECIALS}, **own}
    return {name: text for name, token in named.items() if (text := content(token)) is not None}


def content(token: Any) -> str | None:
    """The text of a special token, given as text or as an object with its content."""
    if isinstance(token, Mapping):
        token = token.get("content")
    return token if isinstance(token, str) and token else None


def add_missing_tokens(backend: tokenizers.Tokenizer, config: Mapping[str, Any]) -> None:
    """Adds the tokens listed in `config` (of `merge_settings`) that `backend` lacks. CheckpointError names a token that would
    not get its listed id."""
    present = backend.get_added_tokens_decoder()
    for id, token in _decoder(config):
        if id in present and (present[id].content != token.content or _same(present[id], token)):
            continue
        _add(backend, token, id, f"tokenizer_config.json: {DECODER}")
    for id, token in _file(config):
        if backend.token_to_id(token.content) is None:
            _add(backend, token, id, FILE)
    known = {t.content for t in backend.get_added_tokens_decoder().values()}
    for text in _specials(config):
        if text not in known and backend.token_to_id(text) is not None:
            backend.add_special_tokens([tokenizers.AddedToken(text, special=True, normalized=False)])


def _decoder(config: Mapping[str, Any]) -> Iterator[tuple[int, tokenizers.AddedToken]]:
    listed = config.get(DECODER)
    if not isinstance(listed, Mapping):
        return
    for key in sorted((k for k in listed if str(k).isdecimal()), key=int):
        entry, text = listed[key], content(listed[key])
        if text is None or not isinstance(entry, Mapping):
            continue
        flags = {f: bool(entry.get(f, False)) for f in _FLAGS}
        normalized = bool(entry.get("normalized", not flags["special"]))
        yield int(key), tokenizers.AddedToken(text, normalized=normalized, **flags)


def _file(config: Mapping[str, Any]) -> Iterator[tuple[int, tokenizers.AddedToken]]:
    listed = config.get(FILE) or {}
    wrong = next((k for k, i in listed.items() if isinstance(i, bool) or not isinstance(i, int) or i < 0), None)
    if wrong is not None:
        raise CheckpointError(f"{FILE}: {wrong!r:.80}: {listed[wrong]!r:.80} is not a token id")
    special = set(_specials(config))
    for text, id in sorted(listed.items(), key=lambda item: item[1]):
        marked = text in special
        yield id, tokenizers.AddedToken(text, special=marked, normalized=not marked)


def _specials(config: Mapping[str, Any]) -> Iterator[str]:
    yield from special_names(config).values()
    for key in MORE_SPECIALS:
        if isinstance(config.get(key), list):
            yield from (text for token in config[key] if (text := content(token)) is not None)


def _same(a: tokenizers.AddedToken, b: tokenizers.AddedToken) -> bool:
    return all(getattr(a, f) == getattr(b, f) for f in (*_FLAGS, "normalized"))


def _add(backend: tokenizers.Tokenizer, token: tokenizers.AddedToken, id: int, where: str) -> None:
    backend.add_special_tokens([token]) if token.special else backend.add_tokens([token])
    found = backend.token_to_id(token.content)
    if found != id:
        raise CheckpointError(
            f"{where} gives {token.content!r} the id {id}, but tokenizer.json puts it at {found}; the two files do not belong "
            "together"
        )
