"""Segments of a transcript between two timestamps, and their response formats."""

from __future__ import annotations

import math
import zlib
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from starlette.responses import Response

from thalweg.server.audio.protocol import AudioRequest
from thalweg.server.audio.recognizer import WindowedAudio
from thalweg.server.audio.tokens import STEP, WhisperTokens
from thalweg.server.audio.words import TimedWord, split_words
from thalweg.server.http.answer import respond
from thalweg.text.tokenizer import Tokenizer


@dataclass(slots=True)
class TranscriptSegment:
    start: float
    """Seconds, in the whole audio."""
    end: float
    text: str
    tokens: list[int]
    """With both times, as they were drawn."""
    offset: float
    """Of its window."""
    logprob: float
    """Mean of the window's tokens."""
    no_speech: float | None = None
    """Probability that nobody speaks in its window. None: unknown."""
    temperature: float = 0.0
    words: list[TimedWord] | None = None
    """None: without times."""


@dataclass(frozen=True, slots=True)
class TokenTimes:
    """Times of the tokens of one window."""

    begins: Sequence[float]
    """Seconds in the window, of each token."""
    language: str

    def of(self, i: int, offset: float) -> tuple[float, float]:
        """(begin, end) of token i, in the whole audio. A token ends where its weights begin: they are those of the step that
        samples the next one."""
        return round(offset + (self.begins[i - 1] if i else 0.0), 2), round(offset + self.begins[i], 2)


def cut(
    ids: Sequence[int],
    tokens: WhisperTokens,
    tokenizer: Tokenizer,
    offset: float,
    seconds: float,
    logprob: float,
    times: TokenTimes | None = None,
) -> Iterator[TranscriptSegment]:
    """Segments of one window, from its sampled tokens. seconds: length of the window. times: for words. Text after the
    last timestamp ends with the window."""
    start, held, text, at_text = 0.0, list[int](), list[int](), list[tuple[float, float]]()

    def build_piece(end: float) -> TranscriptSegment:
        words = None if times is None else split_words(text, at_text, tokenizer, times.language)
        until, written = offset + max(start, min(end, seconds)), tokenizer.decode(text, True)
        return TranscriptSegment(offset + start, until, written, list(held), offset, logprob, words=words)

    for n, i in enumerate(ids):
        held.append(i)
        if i < tokens.end:
            text.append(i)
            at_text += [] if times is None else [times.of(n, offset)]
        if i < tokens.times:
            continue
        at = (i - tokens.times) * STEP
        if not text:
            start, held = min(at, seconds), [i]
            continue
        yield build_piece(at)
        start, held, text, at_text = min(at, seconds), [], [], []
    if text:
        yield build_piece(seconds)


def verbose(pieces: Iterable[TranscriptSegment]) -> list[dict[str, Any]]:
    return [
        {
            "id": i, "seek": round(p.offset * 100), "start": round(p.start, 3), "end": round(p.end, 3), "text": p.text,
            "tokens": p.tokens, "temperature": p.temperature, "avg_logprob": p.logprob,
            "compression_ratio": compression_ratio(p.text), "no_speech_prob": p.no_speech,
        }
        for i, p in enumerate(pieces)
    ]  # fmt: skip


def list_words(pieces: Iterable[TranscriptSegment]) -> list[dict[str, Any]]:
    """Words of verbose_json."""
    return [
        {"word": word.text.strip(), "start": word.start, "end": word.end}
        for piece in pieces
        for word in piece.words or ()
        if word.text.strip()
    ]


def write_timed(found: Sequence[TranscriptSegment], request: AudioRequest, audio: WindowedAudio, task: str) -> Response:
    """The answer in a format with times."""
    form, requested = request.response_format, request.granularities
    if form in ("srt", "vtt"):
        return Response(srt(found) if form == "srt" else vtt(found), media_type="text/plain")
    return respond({
        "task": task, "language": audio.language, "duration": round(audio.seconds, 3),
        "text": "".join(p.text for p in found).strip(),
        "words": list_words(found) if "word" in requested else None,
        "segments": None if requested == {"word"} else verbose(found),
        "usage": write_usage(audio),
    })  # fmt: skip


def write_usage(audio: WindowedAudio) -> dict[str, Any]:
    return {"type": "duration", "seconds": math.ceil(audio.seconds)}


def srt(pieces: Iterable[TranscriptSegment]) -> str:
    return "".join(
        f"{i}\n{_clock(p.start, ',')} --> {_clock(p.end, ',')}\n{_line(p.text)}\n\n" for i, p in enumerate(pieces, 1)
    )  # fmt: skip


def vtt(pieces: Iterable[TranscriptSegment]) -> str:
    return "WEBVTT\n\n" + "".join(f"{_clock(p.start, '.')} --> {_clock(p.end, '.')}\n{_line(p.text)}\n\n" for p in pieces)


def _line(text: str) -> str:
    """An arrow would begin another piece."""
    return " ".join(text.split()).replace("-->", "->")


def _clock(seconds: float, point: str) -> str:
    ms = round(seconds * 1000)
    return f"{ms // 3_600_000:02}:{ms // 60_000 % 60:02}:{ms // 1000 % 60:02}{point}{ms % 1000:03}"


def compression_ratio(text: str) -> float:
    """How well it compresses: a text that repeats itself does so well."""
    raw = text.encode()
    return len(raw) / len(zlib.compress(raw)) if raw else 1.0
