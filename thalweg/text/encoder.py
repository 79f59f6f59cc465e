"""Encodes prompts for an event loop: short texts inline, long ones on threads, and impossible ones not at all.

It knows no chat and no request. The caller names the tenant.
"""

from __future__ import annotations

import asyncio
import ctypes
import math
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Protocol, TypeVar

from thalweg.errors import RequestError
from thalweg.host.turns import FairSemaphore

T = TypeVar("T")
INLINE, LONG = 2048, 65536
"""Characters of all texts of a call. More than INLINE are encoded on a thread, which costs a tenth of a millisecond. More than
LONG are encoded on a second thread, which may be busy for seconds."""


MARGIN = 16
"""Extra tokens to encode at a text's end: a cut through a word may change that many."""


HUGE = 1 << 20
"""Characters. After larger texts the library's memory is returned to the system, because malloc would keep it."""


def give_back() -> None:
    """Return free memory to the system, with glibc. It needs a tenth of a second, without the GIL."""
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
    if trim is not None:
        trim(0)


class TokenizerLike(Protocol):
    @property
    def max_token_chars(self) -> float: ...

    def encode(self, text: str, add_special_tokens: bool = True) -> list[int]: ...


def last_chars(keep: int, max_token_chars: float) -> int | None:
    """Most characters that the last `keep` tokens of a text can span. None: unknown."""
    return None if math.isinf(max_token_chars) else int((keep + MARGIN) * max_token_chars)


class AsyncTokenizer:
    """A tokenizer and its threads. Long texts wait for each other, in turn by tenant. Middling texts wait for middling ones,
    and short ones do not wait."""

    def __init__(self, tokenizer: TokenizerLike, max_len: int) -> None:
        """max_len: tokens of the context. A text that cannot fit is rejected without encoding."""
        self._tokenizer, self._max_len = tokenizer, max_len
        self.most_chars = max_len * tokenizer.max_token_chars
        self._middling, self._long = ThreadPoolExecutor(1, "encode"), ThreadPoolExecutor(1, "encode-long")
        self._turns = FairSemaphore()

    async def encode(
        self,
        texts: Sequence[str],
        add_special_tokens: bool = True,
        param: str = "prompt",
        keep: int | None = None,
        tenant: str = "",
        bounded: bool = True,
    ) -> list[list[int]]:
        """The ids of each text. bounded False: any length. keep: any length, and at least the last `keep` ids of each (the
        caller cuts the others off). tenant: for the fair queue. RequestError (`param`): not Unicode, or too long for the
        context with any tokens."""
        if keep is not None and (last := last_chars(keep, self._tokenizer.max_token_chars)) is not None:
            texts = [text[-last:] for text in texts]
        for text in texts if bounded and keep is None else ():
            self.check(text, param)
        work = [partial(self._tokenizer.encode, text, add_special_tokens) for text in texts]
        return await self.run(lambda: [one() for one in work], sum(map(len, texts)), param, tenant)

    def check(self, text: str, param: str) -> None:
        """RequestError if the text is too long for the context with any tokens."""
        if len(text) > self.most_chars:
            raise RequestError(
                f"{param}: {len(text)} characters cannot fit the context of {self._max_len} tokens; shorten it", param
            )

    async def run(self, encode: Callable[[], T], size: int, param: str = "prompt", tenant: str = "") -> T:
        """The result of `encode`, called inline or on a thread by the number of characters (`size`). param: the field of
        RequestErrors that name none."""

        def work() -> T:
            try:
                return encode()
            except RequestError as e:
                raise e if e.param else RequestError(f"{param}: {e}", param) from None
            finally:
                if size > HUGE:
                    give_back()

        if size <= INLINE:
            return work()
        loop = asyncio.get_running_loop()
        if size <= LONG:
            return await loop.run_in_executor(self._middling, work)
        return await self._turns.run(tenant, self._long, work)
