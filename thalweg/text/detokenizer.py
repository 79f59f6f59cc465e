"""Incremental detokenisation: new text for new tokens, in whole characters, equal in total to the full decode.

`Detokenizer` streams bytes through an incremental UTF-8 decoder where the tokenizer's tokens are bytes (byte-level BPE,
sentencepiece): constant work per token. Other decoders (WordPiece and the like) are decoded in a small moving window. It knows
no stop strings.

Exactness: the concatenation of `push` and `finish` is decode(prompt + output) without decode(prompt). One documented
difference: a model may emit byte tokens (<0xNN>) with invalid UTF-8. Valid characters in that run are kept here. A full decode
turns the whole run into U+FFFD.
"""

from __future__ import annotations

import codecs
from collections.abc import Collection, Sequence

from thalweg.text.marks import mark
from thalweg.text.tokenizer import Tokenizer

_CONTEXT = 6
"""Prompt tokens used as left context of the window decoder."""
_UTF8 = codecs.getincrementaldecoder("utf-8")


class Detokenizer:
    """The text of one output, token by token. `push` its tokens, then call `finish` once for the text held back."""

    __slots__ = ("_decoder", "_marked", "_skip", "_started", "_tokenizer", "_window")

    def __init__(
        self,
        tokenizer: Tokenizer,
        prompt_ids: Sequence[int] = (),
        skip_special_tokens: bool = True,
        spaces_between_special_tokens: bool = True,
        marked: Collection[int] = (),
    ) -> None:
        """spaces_between_special_tokens=False: adjacent added tokens are joined without spaces. It affects only decoders that
        put spaces between tokens. marked: tokens written as marks, even if skipped."""
        self._marked = frozenset(marked)
        self._tokenizer = tokenizer
        self._skip = tokenizer.special_ids if skip_special_tokens else frozenset()
        self._window: _Window | None = None
        self._decoder = _UTF8("replace")
        self._started = False
        if tokenizer.pieces is None:
            self._window = _Window(tokenizer, prompt_ids, skip_special_tokens, spaces_between_special_tokens)
        else:
            self._read_prompt(prompt_ids)

    def _read_prompt(self, prompt_ids: Sequence[int]) -> None:
        """Feed the prompt's last bytes to the decoder, as the output may continue a character of the prompt."""
        tail: list[bytes] = []
        for id in reversed(prompt_ids):
            if id not in self._skip:
                tail.append(self._tokenizer.bytes_of(id))
                if sum(map(len, tail)) >= 4:  # no character is longer
                    break
        self._started = bool(tail)
        self._decoder.decode(b"".join(reversed(tail)))

    def push(self, ids: Sequence[int]) -> str:
        """The text that these tokens complete. An incomplete character is held back."""
        return "".join(map(self.push_one, ids))

    def push_one(self, id: int) -> str:
        """`push` for one token: the hot path."""
        if id in self._marked:
            self._started = True
            return (self._window.finish() if self._window is not None else "") + mark(id)
        if self._window is not None:
            return self._window.push(id)
        if id in self._skip:
            return ""
        piece = self._tokenizer.bytes_of(id)
        if not self._started and piece:
            assert self._tokenizer.pieces is not None
            self._started = True
            piece = self._tokenizer.pieces.first(self._tokenizer.token_of(id))
        return self._decoder.decode(piece)

    def finish(self) -> str:
        """The remaining text. Bytes of an incomplete character become U+FFFD."""
        return self._window.finish() if self._window is not None else self._decoder.decode(b"", final=True)


class _Window:
    """Decodes from `start` with and without the new tokens: the difference is new text, once it ends in a whole character."""

    __slots__ = ("_ids", "_join_special", "_last_added", "_read", "_skip", "_start", "_tokenizer")

    def __init__(self, tokenizer: Tokenizer, prompt_ids: Sequence[int], skip: bool, spaces: bool) -> None:
        self._tokenizer, self._skip, self._join_special = tokenizer, skip, not spaces and not skip
        context = [i for i in prompt_ids[-4 * _CONTEXT :] if not skip or i not in tokenizer.special_ids]
        self._ids = context[-_CONTEXT:]
        self._start, self._read = 0, len(self._ids)
        self._last_added = False

    def push(self, id: int) -> str:
        added = self._join_special and id in self._tokenizer.added_tokens
        self._ids.append(id)
        if added and self._last_added:
            self._read = self._start = len(self._ids)
            return self._tokenizer.added_tokens[id]
        self._last_added = added
        text = self._new_text()
        if text.endswith("\ufffd") or not text:
            return ""
        if self._read > 4 * _CONTEXT:  # drop ids that no window will read again
            del self._ids[: self._read]
            self._read = 0
        self._start, self._read = self._read, len(self._ids)
        return text

    def _new_text(self) -> str:
        before = self._tokenizer.decode(self._ids[self._start : self._read], self._skip)
        return self._tokenizer.decode(self._ids[self._start :], self._skip)[len(before) :]

    def finish(self) -> str:
        text = self._new_text()
        self._start = self._read = len(self._ids)
        return text
