"""The token ids of a prompt, checked: text is encoded, ids are in the vocabulary, and their number fits the context."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from thalweg.config import EngineConfig
from thalweg.errors import RequestError
from thalweg.prompts import REFUSED_KEYS
from thalweg.text.tokenizer import Tokenizer

Prompt = str | Sequence[int] | Mapping[str, Any]
"""Text, token ids, {"prompt": text}, or {"prompt_token_ids": ids} with optional "prompt" and "cache_salt"."""

MAX_SALT = 1024
RESERVED = "\0"
"""Salts of blocks with inputs start with this (`Request.salt_of`), and no caller's may."""
_KEYS = frozenset({"prompt", "prompt_token_ids", "cache_salt"})


class PromptEncoder:
    """Prompts of text or ids for one model."""

    def __init__(self, config: EngineConfig, tokenizer: Tokenizer | None) -> None:
        """tokenizer None: prompts must be token ids."""
        model = config.model
        self._tokenizer, self._max_len = tokenizer, model.prompt_limit
        self._vocab = model.vocab + len(model.prompt_ids)
        self._longest, self._answers = model.longest_prompt, model.longest_prompt < model.prompt_limit
        self._special = model.speech is None
        """Does the tokenizer add its special tokens? A speech model's prompts name all of theirs."""

    def encode(self, prompt: Prompt) -> tuple[str | None, list[int], str]:
        """(text if known, ids, cache salt). RequestError names the field."""
        fields: Mapping[str, Any]
        if isinstance(prompt, str):
            fields = {"prompt": prompt}
        elif isinstance(prompt, Mapping):
            fields = prompt
        elif isinstance(prompt, Sequence | np.ndarray) and not isinstance(prompt, bytes):
            fields = {"prompt_token_ids": list(prompt)}
        else:
            raise RequestError(f"prompt must be text or token ids, not {type(prompt).__name__}", "prompt")
        for name in REFUSED_KEYS.keys() & fields.keys():
            raise RequestError(f"prompt: {name}: {REFUSED_KEYS[name]}", "prompt")
        unknown = sorted(str(k) for k in fields.keys() - _KEYS)
        if unknown:
            raise RequestError(f"prompt: {', '.join(unknown)} is not supported; known are {', '.join(sorted(_KEYS))}", "prompt")
        text, ids = fields.get("prompt"), fields.get("prompt_token_ids")
        if text is not None and not isinstance(text, str):
            raise RequestError(f"prompt must be text, not {type(text).__name__}", "prompt")
        if ids is not None:
            param = "prompt_token_ids" if text is None else "prompt"
            ids = self._checked_ids("prompt_token_ids", ids)
        elif text is not None:
            param, ids = "prompt", self._tokenise(text)
        else:
            raise RequestError("prompt: give prompt (text) or prompt_token_ids", "prompt")
        self._check_length(param, len(ids))
        return text, ids, _salt(fields.get("cache_salt"))

    def _tokenise(self, text: str) -> list[int]:
        tokenizer = self._tokenizer
        if tokenizer is None:
            raise RequestError("prompt: this engine runs without a tokenizer; send prompt_token_ids", "prompt")
        if len(text) > self._max_len * tokenizer.max_token_chars:  # too long, whatever its tokens are
            raise RequestError(
                f"prompt: {len(text)} characters cannot fit the context of {self._max_len} tokens; shorten the prompt", "prompt"
            )
        try:
            ids = tokenizer.encode(text, self._special)
        except RequestError as e:
            raise RequestError(f"prompt: {e}", "prompt") from e
        check_ids("prompt", ids, self._vocab)
        return ids

    def _checked_ids(self, param: str, ids: Any) -> list[int]:
        if isinstance(ids, np.ndarray):
            ids = ids.tolist()
        if not isinstance(ids, Sequence) or isinstance(ids, str | bytes):
            raise RequestError(f"{param} must be a list of token ids, not {type(ids).__name__}", param)
        plain = set(map(type, ids)) == {int}  # fast path: prompts may be long
        out = list(ids) if plain else [i.item() if isinstance(i, np.integer) else i for i in ids]
        if not plain and not all(type(i) is int for i in out):
            bad = next(i for i in out if type(i) is not int)
            raise RequestError(f"{param} must hold integers, not {bad!r}", param)
        check_ids(param, out, self._vocab)
        return out

    def _check_length(self, param: str, length: int) -> None:
        if length == 0:
            raise RequestError(f"{param} is empty; send at least one token", param)
        if length <= self._longest:
            return
        if not self._answers:
            raise RequestError(
                f"{param}: {length} tokens, and the model's limit is {self._max_len}; shorten the text, or let it be cut with "
                "truncate_prompt_tokens=-1",
                param,
            )
        raise RequestError(
            f"{param}: {length} tokens leave no room to answer in a context of {self._max_len} tokens; shorten the prompt"
            " or start the engine with a larger --max-model-len",
            param,
        )


def check_ids(param: str, ids: Sequence[int], vocab: int) -> None:
    """RequestError for token ids that the vocabulary lacks."""
    if ids and not (min(ids) >= 0 and max(ids) < vocab):
        bad = [i for i in ids if not 0 <= i < vocab]
        shown = ", ".join(map(str, bad[:10])) + (" ..." if len(bad) > 10 else "")
        words = f"token id {shown} is" if len(bad) == 1 else f"token ids {shown} are"
        raise RequestError(f"{param}: {words} not in the vocabulary (0 to {vocab - 1})", param)


def _salt(salt: Any) -> str:
    if salt is None:
        return ""
    if isinstance(salt, str) and salt.startswith(RESERVED):
        raise RequestError("cache_salt must not begin with a NUL character", "cache_salt")
    if not isinstance(salt, str) or not salt or len(salt) > MAX_SALT:
        raise RequestError(f"cache_salt must be a non-empty string of at most {MAX_SALT} characters", "cache_salt")
    return salt
