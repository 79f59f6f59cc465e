"""/v1/realtime: transcripts of live audio, over a WebSocket. The events are vLLM's."""

from __future__ import annotations

import asyncio
import base64
import binascii
import logging
import time
import uuid
from collections.abc import Iterator
from contextlib import aclosing
from typing import Any

import numpy as np
import orjson
from pydantic import ValidationError
from starlette.requests import Request
from starlette.responses import Response

from thalweg.errors import RequestError
from thalweg.media.audio_windows import windows
from thalweg.media.mel import RATE
from thalweg.outputs import RequestOutput
from thalweg.server.audio.clips import PARAMS, ClipRecognizer, ClipReply
from thalweg.server.audio.protocol import AudioRequest
from thalweg.server.audio.recognizer import Recognizer, WindowedAudio
from thalweg.server.audio.timed_stream import LiveWindow, StreamRecognizer
from thalweg.server.audio.transcriptions import build_params, open_recognizer
from thalweg.server.core.admission import Ticket
from thalweg.server.core.job import GenerationJob
from thalweg.server.core.pooled import PoolingJob
from thalweg.server.core.serving import Serving
from thalweg.server.core.turn import TurnReply
from thalweg.server.errors import ApiError, translate
from thalweg.server.http.answer import STARTED
from thalweg.server.http.middleware import tenant_of
from thalweg.server.http.websocket import AWAY, POLICY, WebSocket, WebSocketClosedError, WebSocketResponse, check_handshake

log = logging.getLogger(__name__)
MOST_BYTES = 4 << 20
"""Of a client's message."""
SECONDS = 10
"""Audio transcribed at once, where the model hears as much."""
AHEAD = 120
"""Seconds of audio that may wait to be transcribed."""
IDLE, LOOK = 600.0, 1.0
"""Seconds without a message after which a connection ends, and between looks at whether the server stops."""
FAULTS = 32
"""Invalid messages after which a connection ends."""
TYPES = ("session.update", "input_audio_buffer.append", "input_audio_buffer.commit")


class EventError(Exception):
    """An invalid event. The connection stays."""

    def __init__(self, code: str, message: str) -> None:
        super().__init__(message)
        self.code = code


async def realtime(serving: Serving, http: Request) -> Response:
    check_handshake(http, serving.settings.allowed_origins)
    session = RealtimeSession(serving, http, serving.own(open_recognizer))
    return WebSocketResponse(http, session.run, MOST_BYTES)


class WindowReply(TurnReply):
    """The transcript of one window, as events."""

    def __init__(self, serving: Serving, job: GenerationJob, recognizer: Recognizer, request: AudioRequest, text: str) -> None:
        """text: of the windows before."""
        super().__init__(serving, job)
        self._recognizer, self._filter, self._begun, self.text = recognizer, recognizer.open_filter(request), False, text

    def write(self, i: int, output: RequestOutput) -> Iterator[bytes]:
        delta = self._filter.push(output.outputs[0].text) + (self._filter.finish() if output.finished else "")
        delta = delta if self.text else delta.lstrip()
        if delta:
            delta = delta if self._begun else self._recognizer.join(self.text, delta) + delta
            self.text, self._begun = self.text + delta, True
            yield orjson.dumps({"type": "transcription.delta", "delta": delta})


class RealtimeSession:
    """One connection. Audio is appended to a buffer. From a commit on, windows of it are transcribed in order. The final commit
    ends the transcript, and the next audio begins another."""

    def __init__(self, serving: Serving, http: Request, recognizer: Recognizer) -> None:
        self.serving, self.recognizer, self._tenant = serving, recognizer, tenant_of(http.scope)
        self._fields: dict[str, Any] | None = None
        """Of every request. None: no model is named yet."""
        self._audio, self._final, self._text = bytearray(), False, ""
        self._wake, self._room = asyncio.Event(), asyncio.Event()
        self._work: asyncio.Task[None] | None = None
        self._tokens = [0, 0]
        """Of prompts, and of answers."""

    async def run(self, socket: WebSocket) -> None:
        self._socket = socket
        await self._send("session.created", id=f"sess-{uuid.uuid4().hex}", created=int(time.time()))
        try:
            await self._listen()
        finally:
            if self._work is not None:
                self._work.cancel()
                await asyncio.gather(self._work, return_exceptions=True)

    async def _listen(self) -> None:
        faults, quiet = 0, 0.0
        reading = asyncio.ensure_future(self._socket.read())
        try:
            while faults < FAULTS:
                done, _ = await asyncio.wait({reading}, timeout=LOOK)
                if not done:
                    quiet = 0.0 if self._is_busy else quiet + LOOK
                    if quiet >= IDLE or (self.serving.lifecycle.draining and not self._is_busy):
                        await self._end(reading, AWAY, "idle" if quiet >= IDLE else "the server is shutting down")
                        return
                    continue
                message, quiet = reading.result(), 0.0
                try:
                    await self._handle(message)
                except EventError as e:
                    faults += 1
                    await self._send("error", error=str(e), code=e.code)
                reading = asyncio.ensure_future(self._socket.read())
            await self._end(reading, POLICY, "too many invalid events")
        finally:
            reading.cancel()

    async def _end(self, reading: asyncio.Future[bytes], code: int, reason: str) -> None:
        reading.cancel()
        await asyncio.gather(reading, return_exceptions=True)
        await self._socket.close(code, reason)

    @property
    def _is_busy(self) -> bool:
        return self._work is not None and not self._work.done()

    async def _handle(self, message: bytes) -> None:
        try:
            event = orjson.loads(message)
        except orjson.JSONDecodeError:
            raise EventError("invalid_json", "the message is no JSON") from None
        if not isinstance(event, dict) or not isinstance(event.get("type"), str):
            raise EventError("invalid_event", "an event is an object with a type")
        kind = event["type"]
        if kind == "session.update":
            self._update(event)
        elif kind == "input_audio_buffer.append":
            await self._append(event)
        elif kind == "input_audio_buffer.commit":
            self._commit(event)
        else:
            raise EventError("unknown_event", f"type: unknown {kind[:80]!r}; supported: {', '.join(TYPES)}")

    def _update(self, event: dict[str, Any]) -> None:
        fields = {key: event[key] for key in ("model", "language") if event.get(key) is not None}
        try:
            request = self.serving.fields.parse(AudioRequest, {**fields, "stream": True})
            self.serving.model_name(request.model)
            self.recognizer.check(request, "transcribe")
        except (ApiError, RequestError, ValidationError) as e:
            raise EventError("invalid_event", str(translate(e))) from None
        self._fields = fields

    async def _append(self, event: dict[str, Any]) -> None:
        """Waits while too much audio waits, so that the client's messages do too."""
        try:
            data = base64.b64decode(event.get("audio") or b"", validate=True)
        except (TypeError, ValueError, binascii.Error):
            raise EventError("invalid_audio", "audio: must be base64 of 16-bit samples at 16,000 Hz") from None
        if not data or len(data) % 2:
            raise EventError("invalid_audio", "audio: must have 16-bit samples, at least one")
        if len(self._audio) + len(data) > 2 * AHEAD * RATE and not self._is_busy:
            raise EventError("invalid_audio", f"audio: {AHEAD} seconds wait already; commit them first")
        while len(self._audio) > 2 * AHEAD * RATE and self._is_busy:
            self._room.clear()
            waiting = asyncio.ensure_future(self._room.wait())
            assert self._work is not None
            await asyncio.wait({waiting, self._work}, return_when=asyncio.FIRST_COMPLETED)
            waiting.cancel()
        self._audio += data
        self._wake.set()

    def _commit(self, event: dict[str, Any]) -> None:
        if self._fields is None:
            raise EventError("model_not_validated", "send session.update with the model first")
        final = event.get("final", False)
        if not isinstance(final, bool):
            raise EventError("invalid_event", "final: must be true or false")
        if self._final:
            raise EventError("invalid_event", "the transcript before is not done yet")
        self._final = final
        self._wake.set()
        if not self._is_busy:
            self._work = asyncio.create_task(self._transcribe())

    async def _transcribe(self) -> None:
        """Until the final commit. An error ends the transcript, not the connection."""
        assert self._fields is not None
        fields = dict(self._fields)
        most = min(SECONDS * RATE, self.recognizer.longest)
        try:
            if isinstance(self.recognizer, StreamRecognizer):
                await self._transcribe_stream(self.recognizer, fields)
            while not self._final or self._audio:
                self._wake.clear()
                if not self._final and len(self._audio) <= 2 * most:
                    await self._wake.wait()
                    continue
                sound = np.frombuffer(bytes(self._audio[: 2 * most + 2]), "<i2").astype(np.float32) / 32768
                first = windows(sound, most, RATE)[0]
                del self._audio[: 2 * first.end]
                self._room.set()
                await self._transcribe_window(sound[: first.end], fields)
            usage = self.serving.usage(self._tokens[0], self._tokens[1], None)
            await self._send("transcription.done", text=self._text.strip(), usage=usage)
        except WebSocketClosedError:
            raise
        except (ApiError, RequestError) as e:
            await self._send("error", error=str(e), code="processing_error")
        except Exception:
            log.exception("a transcript failed")
            await self._send("error", error="internal error; the server's log has it", code="processing_error")
        finally:
            self._final, self._text, self._tokens = False, "", [0, 0]

    async def _transcribe_window(self, sound: np.ndarray, fields: dict[str, Any]) -> None:
        """fields: gets the language, where the model has detected it."""
        serving = self.serving
        request = serving.fields.parse(AudioRequest, {**fields, "stream": True})
        ticket = serving.admission.enter(self._tenant)
        try:
            audio = await self.recognizer.prepare(request, sound, "transcribe", ticket)
            if audio.language:
                fields["language"] = audio.language
            if isinstance(self.recognizer, ClipRecognizer):
                await self._transcribe_clip(self.recognizer, request, audio, ticket)
                return
            job = GenerationJob(
                id=f"rt-{uuid.uuid4().hex}", model=serving.model_name(request.model), created=int(time.time()),
                prompts=audio.prompts, params=build_params(self.recognizer, request, audio), priority=0, ticket=ticket,
            )  # fmt: skip
            reply = WindowReply(serving, job, self.recognizer, request, self._text)
            async with aclosing(reply.frames()) as frames:
                async for frame in frames:
                    if frame is not STARTED:
                        await self._socket.write(frame)
            self._text = reply.text
            self._tokens[1] += reply.made
            self._tokens[0] += job.prompt_tokens
        finally:
            ticket.close()

    async def _transcribe_stream(self, recognizer: StreamRecognizer, fields: dict[str, Any]) -> None:
        """Until the final commit, in rounds of some tokens."""
        window = LiveWindow(recognizer)
        while not self._final or self._audio or window.has_audio:
            self._wake.clear()
            waiting = np.frombuffer(bytes(self._audio[: 2 * window.longest + 2]), "<i2").astype(np.float32) / 32768
            count, complete = window.take(waiting, self._final)
            if not count and not complete:
                await self._wake.wait()
                continue
            del self._audio[: 2 * count]
            self._room.set()
            prompt = await window.push(waiting[:count], complete)
            ended = complete
            if prompt is not None:
                ended |= await self._run_round(recognizer, window, prompt, complete, fields)
            if ended:
                self._tokens[0] += window.prompt_tokens
                window = LiveWindow(recognizer)

    async def _run_round(
        self, recognizer: StreamRecognizer, window: LiveWindow, prompt: dict[str, Any], complete: bool, fields: dict[str, Any]
    ) -> bool:
        """Did the model end the transcript?"""
        serving = self.serving
        request = serving.fields.parse(AudioRequest, fields)
        ticket = serving.admission.enter(self._tenant)
        try:
            job = GenerationJob(
                id=f"rt-{uuid.uuid4().hex}", model=serving.model_name(request.model), created=int(time.time()),
                prompts=[prompt], params=build_params(recognizer, request, None), priority=0, ticket=ticket,
            )  # fmt: skip
            (output,) = await serving.run(job)
        finally:
            ticket.close()
        choice = output.outputs[0]
        self._tokens[1] += len(choice.token_ids)
        ended = choice.finish_reason == "stop"
        delta = window.write(list(choice.token_ids), complete or ended)
        delta = delta if self._text else delta.lstrip()
        if delta:
            delta = recognizer.join(self._text, delta) + delta if window.is_first_text(delta) else delta
            self._text += delta
            await self._send("transcription.delta", delta=delta)
        return ended

    async def _transcribe_clip(
        self, recognizer: ClipRecognizer, request: AudioRequest, audio: WindowedAudio, ticket: Ticket
    ) -> None:
        job = PoolingJob(
            id=f"rt-{uuid.uuid4().hex}", model=self.serving.model_name(request.model), created=int(time.time()),
            prompts=audio.prompts, params=PARAMS, priority=0, ticket=ticket,
        )  # fmt: skip
        reply = ClipReply(self.serving, job, recognizer, request, audio, self._text)
        async with aclosing(reply.deltas()) as deltas:
            async for delta in deltas:
                await self._send("transcription.delta", delta=delta)
        self._text = reply.text
        self._tokens[0] += job.prompt_tokens

    async def _send(self, kind: str, **fields: Any) -> None:
        await self._socket.write(orjson.dumps({"type": kind, **fields}))
