"""Chats with spoken answers: `message.audio` of a whole answer, `delta.audio` of a stream."""

from __future__ import annotations

import asyncio
import base64
import time
from collections.abc import AsyncGenerator
from contextlib import aclosing
from typing import Any

import numpy as np

from thalweg.media.speakers.answers import SPEECH, write_file
from thalweg.outputs import CompletionOutput, PromptStates, RequestOutput
from thalweg.server.core.answer import Answer
from thalweg.server.core.job import GenerationJob
from thalweg.server.core.request import ChatRequest
from thalweg.server.core.serving import Serving
from thalweg.server.core.speech import AnswerSpeaker
from thalweg.server.openai.chat import ChatReply


class SpokenChatReply(ChatReply):
    """The answer of a chat and its speech, which begins when the text is complete."""

    def __init__(
        self, serving: Serving, job: GenerationJob, request: ChatRequest, answer: Answer, speaker: AnswerSpeaker
    ) -> None:
        super().__init__(serving, job, request, answer)
        self._speaker, self._id = speaker, f"{SPEECH}_{job.id.partition('-')[2]}"
        self._bare = False
        self._answer: list[int] = []
        """Tokens of the answer, of a stream."""
        self._transcript = ""
        self._ending: dict[str, Any] = {}
        """How the choice of a stream ends."""
        self._file = b""
        self._states: PromptStates | None = None
        """Hidden states of the prompt, where the speaker requires any."""

    def usage(self, result: int) -> dict[str, Any]:
        """Frames of the speech are tokens, too."""
        return self._with_frames(super().usage(result))

    def _with_frames(self, usage: dict[str, Any]) -> dict[str, Any]:
        text, frames = usage["completion_tokens"], self._speaker.frames
        return usage | {
            "completion_tokens": text + frames, "total_tokens": usage["total_tokens"] + frames,
            "completion_tokens_details": {f"{SPEECH}_tokens": frames, "text_tokens": text},
        }  # fmt: skip

    # ------------------------------------------------------------ whole

    async def finish(self, outputs: list[RequestOutput]) -> bytes:
        (choice,) = outputs[0].outputs
        self._states = outputs[0].states
        parts = [np.zeros(0, np.float32)]
        async with aclosing(self._samples(list(choice.token_ids))) as samples:
            parts += [part async for part in samples]
        self._file = await asyncio.to_thread(write_file, self._speaker.form, self._speaker.rate, np.concatenate(parts))
        return await super().finish(outputs)

    def _samples(self, answer: list[int]) -> AsyncGenerator[np.ndarray, None]:
        return self._speaker.samples(self.job.id, self.job.prompts[0]["prompt_token_ids"], answer, self._states)

    def write_body(self, outputs: list[RequestOutput]) -> dict[str, Any]:
        body = super().write_body(outputs)
        return body | {"usage": self._with_frames(body["usage"])}

    def choice(self, choice: CompletionOutput) -> dict[str, Any]:
        result = super().choice(choice)
        message = result["message"]
        message[SPEECH] = {
            "id": self._id, "data": base64.b64encode(self._file).decode(), "transcript": message["content"] or "",
            "expires_at": int(time.time()),
        }  # fmt: skip
        if not self._speaker.spoken.written:
            message["content"] = None
        return result

    # ------------------------------------------------------------ streamed

    def write(self, i: int, output: RequestOutput) -> list[bytes]:
        self._states = output.states
        return super().write(i, output)

    def _deltas(self, choice: CompletionOutput) -> list[dict[str, Any]]:
        """Without the end, which follows the speech. A text that is not wanted is a transcript only."""
        self._answer += choice.token_ids
        bodies, kept = super()._deltas(choice), list[dict[str, Any]]()
        for body in bodies:
            text = body["delta"].get("content")
            self._transcript += text or ""
            if text and not self._speaker.spoken.written:
                body["delta"] = {SPEECH: {"id": self._id, "transcript": text}}
            if choice.finish_reason is not None and body is bodies[-1]:
                self._ending = {key: body.pop(key) for key in ("finish_reason", "stop_reason") if key in body}
                body["finish_reason"] = None
            if body["delta"] or body["logprobs"] or body.get("token_ids"):
                kept.append(body)
        return kept

    async def rest(self) -> AsyncGenerator[bytes, None]:
        """Parts of the speech, then the end of the choice."""
        if self._speaker.spoken.written and self._transcript:
            yield self._part({"transcript": self._transcript})
        async with aclosing(self._samples(self._answer)) as samples:
            async for part in samples:
                data = write_file(self._speaker.form, self._speaker.rate, part)
                yield self._part({"data": base64.b64encode(data).decode()})
        yield self._part({"expires_at": int(time.time())})
        body = {"index": 0, "delta": {}, "logprobs": None, **self._ending}
        yield self._chunks.choice(body, self._usage_at(self.made))

    def _part(self, fields: dict[str, Any]) -> bytes:
        body = {"index": 0, "delta": {SPEECH: {"id": self._id, **fields}}, "logprobs": None, "finish_reason": None}
        return self._chunks.choice(body, self._usage_at(self.made))
