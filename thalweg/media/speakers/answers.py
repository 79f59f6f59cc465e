"""Requests for spoken answers, as clients write them: `modalities` and `audio`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from msgspec.structs import replace

from thalweg.errors import RequestError
from thalweg.media.audio_files import COMPRESSED, missing_package, open_encoder, to_int16, wav_header
from thalweg.media.speakers.base import Speaker, SpeechSettings
from thalweg.params import SamplingParams

TEXT, SPEECH = "text", "audio"
"""Modalities of answers."""
FORMS = {"pcm16": "pcm", "wav": "wav", **{form: form for form in COMPRESSED}}
"""A client's name of a format -> that of an encoder."""
STREAMED = "pcm16"
"""The format of streams."""
STATES = "states"
"""Name in `SamplingParams.extra_args`."""
FIELDS = ("voice", "format", "temperature", "seed")
DISABLED = "modalities: this model was loaded without a part that speaks; send ['text'], or see --enable-talker"


@dataclass(frozen=True, slots=True, kw_only=True)
class SpokenAnswer:
    """How an answer is spoken."""

    settings: SpeechSettings
    form: str
    """The format of its samples. "": none was named."""
    written: bool
    """Does the client want the text too?"""


def read_modalities(modalities: Any, options: Any, seed: int) -> SpokenAnswer | None:
    """How an answer is spoken, from these two fields of a request. None: it is not. seed: unless `said` has one. RequestError
    names the field."""
    known = modalities is None or (
        isinstance(modalities, Sequence) and not isinstance(modalities, str) and set(modalities) <= {TEXT, SPEECH}
    )
    if not known or (modalities is not None and not modalities):
        raise RequestError(f"modalities: must be a list of {TEXT} and {SPEECH}, not {modalities!r:.80}", "modalities")
    if modalities is None or SPEECH not in modalities:
        if options is not None:
            raise RequestError(f"audio: needs modalities with {SPEECH!r}", "audio")
        return None
    if options is not None and not isinstance(options, Mapping):
        raise RequestError(f'audio: must be like {{"voice": NAME, "format": "wav"}}, not {options!r:.80}', "audio")
    fields = dict(options or {})
    if unknown := sorted(set(map(str, fields)) - {*FIELDS}):
        raise RequestError(f"audio.{unknown[0]}: unknown; known: {', '.join(FIELDS)}", f"audio.{unknown[0]}")
    voice: Any = fields.get("voice") or ""
    voice = voice.get("id") if isinstance(voice, Mapping) else voice
    form: Any = fields.get("format") or ""
    for name, value in (("voice", voice), ("format", form)):
        if not isinstance(value, str):
            raise RequestError(f"audio.{name}: must be a name, not {value!r:.80}", f"audio.{name}")
    chosen, warmth = fields.get("seed"), fields.get("temperature")
    if chosen is not None and (isinstance(chosen, bool) or not isinstance(chosen, int)):
        raise RequestError(f"audio.seed: must be a whole number, not {chosen!r:.80}", "audio.seed")
    if warmth is not None and (isinstance(warmth, bool) or not isinstance(warmth, int | float) or not 0 <= warmth <= 2):
        raise RequestError(f"audio.temperature: must be a number from 0 to 2, not {warmth!r:.80}", "audio.temperature")
    settings = SpeechSettings(voice=voice, seed=seed if chosen is None else chosen, temperature=warmth)
    return SpokenAnswer(settings=settings, form=form, written=TEXT in modalities)


def find_encoder(spoken: SpokenAnswer, stream: bool) -> str:
    """The encoder of an answer's samples. RequestError names the field."""
    form = spoken.form or (STREAMED if stream else "wav")
    if form not in FORMS:
        raise RequestError(f"audio.format: unknown {form!r:.40}; known: {', '.join(FORMS)}", "audio.format")
    if stream and form != STREAMED:
        raise RequestError(f"audio.format: a stream has {STREAMED}; send it, or leave out stream", "audio.format")
    if package := missing_package(form):
        raise RequestError(
            f"audio.format: {form} requires the package {package} (thalweg[speech]); install it, or use wav", "audio.format"
        )
    return FORMS[form]


def write_file(form: str, rate: int, samples: np.ndarray) -> bytes:
    """The whole file of samples f32[n]. form: an encoder."""
    if form == "wav":  # its header has its length
        return wav_header(rate, len(samples)) + to_int16(samples).tobytes()
    encoder = open_encoder(form, rate)
    return (encoder.write(samples) if len(samples) else b"") + encoder.close()


def request_states(speaker: Speaker, params: SamplingParams, requested: Sequence[int], known: bool) -> SamplingParams:
    """The parameters of the engine that writes an answer, so that it returns the hidden states that the speaker requires.
    requested: tokens of the prompt. known: does that engine return any? RequestError."""
    first = speaker.first_state(requested)
    if first is None:
        return params
    if not known:
        raise RequestError("modalities: the talker of this model reads no media; send ['text']", "modalities")
    if params.prompt_logprobs is not None:
        raise RequestError("prompt_logprobs: not with a spoken answer to media; send two requests", "prompt_logprobs")
    return replace(params, extra_args={**(params.extra_args or {}), STATES: first})
