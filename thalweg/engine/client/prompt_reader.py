"""Prompts of every form, as `InputProcessor` accepts them: media read, long texts cut or encoded."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from thalweg.engine.client.frontend import Frontend
from thalweg.engine.client.media import MEDIA, NAME
from thalweg.engine.client.pairs import read_tokenization, shorten_prompt
from thalweg.errors import RequestError
from thalweg.media.kinds import name_kinds
from thalweg.prompts import drop_empty
from thalweg.text.cut import Truncation, read_cut
from thalweg.text.encoder import INLINE, AsyncTokenizer


class PromptReader:
    """Reads the prompts of one model. `read` blocks. `read_async` leaves the event loop to others during long work."""

    def __init__(self, frontend: Frontend, max_len: int) -> None:
        """max_len: tokens of the model's context."""
        self._media, self._tokenizer, self._max_len = frontend.media, frontend.tokenizer, max_len
        self._encoder = AsyncTokenizer(frontend.tokenizer, max_len) if frontend.tokenizer else None

    def read(self, prompt: Any, tokenization_kwargs: Mapping[str, Any] | None = None) -> Any:
        """RequestError names the field. Other values than prompts are returned unchanged: `InputProcessor` rejects them."""
        cut, special = self.cut(tokenization_kwargs)
        prompt = drop_empty(prompt)
        if self._media is not None and isinstance(prompt, Mapping) and NAME in prompt:
            prompt = self._media.prompt(prompt)
        return self._shorten(prompt, cut, special)

    async def read_async(self, prompt: Any, tokenization_kwargs: Mapping[str, Any] | None = None) -> Any:
        """As `read`. Media are read on a thread, and a long text is encoded on one."""
        cut, special = self.cut(tokenization_kwargs)
        prompt = drop_empty(prompt)
        if self._media is not None and isinstance(prompt, Mapping) and NAME in prompt:
            prompt = await self._media.prompt_async(prompt)
        prompt = self._shorten(prompt, cut, special)
        fields = {"prompt": prompt} if isinstance(prompt, str) else prompt
        if self._encoder is None or not isinstance(fields, dict) or "prompt_token_ids" in fields:
            return prompt
        text = fields.get("prompt")
        if not isinstance(text, str) or len(text) <= INLINE:
            return prompt
        (ids,) = await self._encoder.encode([text])
        return {**fields, "prompt_token_ids": ids}

    def cut(self, tokenization_kwargs: Mapping[str, Any] | None) -> tuple[Truncation | None, bool]:
        """(limit of prompts, or None; whether the tokenizer adds its special tokens)."""
        keep, side, special = read_tokenization(tokenization_kwargs)
        usual = self._tokenizer.truncation_side if self._tokenizer else "right"
        return read_cut(keep, side, self._max_len, usual), special

    def _shorten(self, prompt: Any, cut: Truncation | None, special: bool) -> Any:
        if cut is not None and isinstance(prompt, Mapping) and prompt.get(MEDIA):
            raise RequestError(
                f"truncate_prompt_tokens: a prompt with {name_kinds('or')} is not cut; omit it", "truncate_prompt_tokens"
            )
        return shorten_prompt(self._tokenizer, prompt, cut, special)
