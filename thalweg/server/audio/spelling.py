"""Words and segments of transcripts whose tokens have times: those of CTC models and of transducers."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from thalweg.server.audio.pieces import TranscriptSegment
from thalweg.server.audio.words import UNKNOWN, TimedWord

COLUMNS = 4
"""Numbers of a token: id, log-probability, first frame, and the frame after its last (`models.spec.transcript`)."""
PAUSE = 1.0
"""Seconds without a word after which another segment begins."""
ENDS = ".?!。？！"
"""Ends of sentences, and so of segments."""


@dataclass(slots=True)
class SpelledWord:
    """A word, and the tokens that it is made of."""

    text: str
    """With the space in front of it."""
    tokens: list[int]
    logprobs: list[float]
    start: float
    """Seconds, in the whole audio."""
    end: float


def read_rows(transcript: np.ndarray) -> np.ndarray:
    """The engine's result f32[n] -> f32[tokens, COLUMNS]."""
    count = int(transcript[0])
    return transcript[1 : 1 + COLUMNS * count].reshape(count, COLUMNS)


def spell_words(rows: np.ndarray, decode: Callable[[Sequence[int]], str], offset: float, second: float) -> list[SpelledWord]:
    """rows f32[tokens, COLUMNS]. decode: text of token ids. offset: seconds of the first frame. second: frames of a second."""
    words, space = list[SpelledWord](), False
    ids = [int(i) for i in rows[:, 0]]
    for text, first, last in _split_text(ids, decode):
        if not text.strip():
            space = space or bool(text)
            continue
        part, end = rows[first:last], round(offset + float(rows[last - 1, 3]) / second, 3)
        probabilities = [float(p) for p in part[:, 1]]
        if words and not space and not text[0].isspace():
            word = words[-1]
            word.text, word.tokens, word.end = word.text + text, word.tokens + ids[first:last], end
            word.logprobs += probabilities
        else:
            start = round(offset + float(rows[first, 2]) / second, 3)
            words.append(SpelledWord(" " + text.lstrip(), ids[first:last], probabilities, start, end))
        space = text[-1].isspace()
    return words


def _split_text(ids: Sequence[int], decode: Callable[[Sequence[int]], str]) -> Iterator[tuple[str, int, int]]:
    """(text, first token, the token after the last), of the fewest tokens each that are whole characters. Each is decoded
    behind the tokens before it, as tokenizers omit a leading space."""
    before = at = 0
    for i in range(len(ids)):
        text = decode(ids[before : i + 1])
        if text.endswith(UNKNOWN) and i + 1 < len(ids):
            continue
        yield text[len(decode(ids[before:at])) :], at, i + 1
        before, at = at, i + 1


def cut_segments(words: Sequence[SpelledWord], offset: float) -> Iterator[TranscriptSegment]:
    """Segments end with a sentence, or before a pause. offset: seconds of the window's first frame."""
    held = list[SpelledWord]()
    for word in words:
        if held and (held[-1].text.rstrip()[-1] in ENDS or word.start - held[-1].end > PAUSE):
            yield _join_words(held, offset)
            held = []
        held.append(word)
    if held:
        yield _join_words(held, offset)


def _join_words(words: Sequence[SpelledWord], offset: float) -> TranscriptSegment:
    known = [p for word in words for p in word.logprobs]
    return TranscriptSegment(
        words[0].start, words[-1].end, "".join(word.text for word in words), [i for word in words for i in word.tokens], offset,
        sum(known) / len(known), words=[TimedWord(word.text, word.start, word.end) for word in words],
    )  # fmt: skip
