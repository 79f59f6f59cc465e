"""Spoken answers: the talker's engine speaks what the engine of a chat has written."""

from __future__ import annotations

import secrets
from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing
from typing import TYPE_CHECKING, Any

import numpy as np

from thalweg.errors import RequestError
from thalweg.media.speakers.answers import DISABLED, FIELDS, SPEECH, SpokenAnswer, find_encoder, read_modalities, request_states
from thalweg.media.speakers.base import Speaker
from thalweg.outputs import PromptStates
from thalweg.params import PoolingParams, RequestOutputKind, SamplingParams
from thalweg.server.core.serving import Serving, closing
from thalweg.server.errors import ApiError

if TYPE_CHECKING:
    from thalweg.async_llm import AsyncLLM

FIRST = 8
"""Frames of the first part of an answer. Each later part has as many as those before it."""


class AnswerSpeaker:
    """Speaks the answer to one prompt."""

    def __init__(self, serving: Serving, talker: AsyncLLM, speaker: Speaker, spoken: SpokenAnswer, form: str) -> None:
        """form: of an encoder."""
        self.serving, self.spoken, self.form, self.rate = serving, spoken, form, speaker.rate
        self.frames = 0
        """Frames so far."""
        self._talker, self._speaker = talker, speaker

    async def samples(
        self, job_id: str, requested: Sequence[int], answer: Sequence[int], states: PromptStates | None = None
    ) -> AsyncGenerator[np.ndarray, None]:
        """f32[n] of the next part of the speech, as they are computed. requested: tokens of the prompt. states: as of
        `Speaker.answer_prompt`. Closing it aborts the requests of the talker. ApiError."""
        prompt = self._speaker.answer_prompt(requested, answer, self.spoken.settings, states)
        if prompt is None:
            return
        params = SamplingParams(
            max_tokens=None, detokenize=False, output_kind=RequestOutputKind.DELTA,
            **self._speaker.sampling(self.spoken.settings),
        )  # fmt: skip
        known, sent, given = list[np.ndarray](), 0, 0
        with self.serving.under_way(job_id) as request_id:
            async with aclosing(self._talker.generate(prompt, params, request_id)) as outputs:
                async for output in outputs:
                    if output.error is not None:
                        raise ApiError(output.error, status=500)
                    if output.outputs[0].finish_reason == "abort":
                        cut = self.serving.lifecycle.cutting
                        raise closing() if cut else ApiError("this request was aborted while its answer was spoken", status=499)
                    known += self._speaker.frames(output.outputs[0])
                    while len(known) >= max(FIRST, 2 * sent) or (output.finished and len(known) > sent):
                        part = known[: max(FIRST, 2 * sent)]
                        rows = await self._decode(request_id, part)
                        yield self._speaker.samples(rows[given:])
                        sent, given, self.frames = len(part), len(rows), len(part)

    async def _decode(self, request_id: str, frames: Sequence[np.ndarray]) -> np.ndarray:
        """Rows of samples."""
        async with aclosing(
            self._talker.encode(self._speaker.decoding(frames), PoolingParams(), f"{request_id}-samples")
        ) as found:
            output = await anext(found)
        if output.error is not None:
            raise ApiError(output.error, status=500)
        rows: np.ndarray = output.outputs.data
        return rows


def check_speech(serving: Serving, request: Any, prompt: dict[str, Any], params: SamplingParams) -> AnswerSpeaker | None:
    """What speaks the answer to a chat. None: it is not spoken. RequestError or ApiError names the field. request: a
    ChatRequest. prompt, params: of the engine, which are completed."""
    seed = secrets.randbits(63) if params.seed is None else params.seed
    spoken = read_modalities(request.modalities, getattr(request, SPEECH), seed)
    if spoken is None:
        return None
    talker: AsyncLLM | None = getattr(serving.engine, "talker", None)
    speaker = None if talker is None else talker.speaker
    if talker is None or speaker is None:
        raise ApiError(DISABLED, "modalities")
    form = find_encoder(spoken, bool(request.stream))
    if params.n > 1:
        raise ApiError("n: must be 1 for an answer that is spoken", "n")
    if request.choice != "none":
        raise ApiError("tools: an answer with calls cannot be spoken; leave out tools, or send modalities ['text']", "tools")
    requested = prompt["prompt_token_ids"]
    states = request_states(speaker, params, requested, serving.engine.config.model.returns_states)
    params.extra_args = states.extra_args
    try:
        result = speaker.answer_prompt(requested, [0, 0], spoken.settings)
    except RequestError as e:
        if e.param not in FIELDS:
            raise
        raise ApiError(f"{SPEECH}.{e}", f"{SPEECH}.{e.param}") from e
    most = talker.config.model.longest_prompt
    if result is not None and (size := len(result["prompt_token_ids"])) > most:
        raise ApiError(f"messages: the talker reads {most} tokens of the user's turns, and these have {size}", "messages")
    return AnswerSpeaker(serving, talker, speaker, spoken, form)
