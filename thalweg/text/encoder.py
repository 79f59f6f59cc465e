"""Encoding prompts beside an event loop: short texts at once, long ones on threads, hopeless ones not at all.

Knows no chat and no request; whose text it is, is the caller's.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Protocol

from thalweg.errors import RequestError

INLINE, LONG = 2048, 65536
"""Characters, of all texts of a call together. More than INLINE are encoded on a thread, which costs a tenth of a
millisecond; more than LONG on another, which may be busy for seconds."""


class Encodes(Protocol):
    @property
    def max_token_chars(self) -> float: ...

    def encode(self, text: str, add_special_tokens: bool = True) -> list[int]: ...


class Encoder:
    """A tokenizer and its threads. Long texts wait for each other, middling ones for middling ones, short ones for nobody."""

    def __init__(self, tokenizer: Encodes, max_len: int) -> None:
        """max_len: tokens of the context; a text that cannot be that short is refused unread."""
        self._tokenizer, self._max_len = tokenizer, max_len
        self.most_chars = max_len * tokenizer.max_token_chars
        self._middling, self._long = ThreadPoolExecutor(1, "encode"), ThreadPoolExecutor(1, "encode-long")

    async def encode(
        self, texts: Sequence[str], add_special_tokens: bool = True, param: str = "prompt", bounded: bool = True
    ) -> list[list[int]]:
        """The ids of each text. bounded False: any length (the caller truncates). RequestError (`param`): not Unicode, or
        too long for the context whatever its tokens."""
        for text in texts if bounded else ():
            if len(text) > self.most_chars:
                raise RequestError(
                    f"{param}: {len(text)} characters cannot fit the context of {self._max_len} tokens; shorten it", param
                )

        def work() -> list[list[int]]:
            try:
                return [self._tokenizer.encode(text, add_special_tokens) for text in texts]
            except RequestError as e:
                raise RequestError(f"{param}: {e}", param) from None

        size = sum(map(len, texts))
        if size <= INLINE:
            return work()
        return await asyncio.get_running_loop().run_in_executor(self._middling if size <= LONG else self._long, work)
