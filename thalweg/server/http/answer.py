"""HTTP pieces every endpoint shares: answering, streaming events, noticing disconnects.

Knows nothing of models or prompts.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncGenerator, Awaitable, Mapping
from typing import Any, TypeVar

import orjson
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from thalweg.server.errors import ApiError, ErrorForm

T = TypeVar("T")
DONE = b"data: [DONE]\n\n"
COMMENT = b": keep-alive\n\n"
"""A comment. Readers of events skip it, and proxies see activity."""
SILENCE = "thalweg.silence"
"""Key of a scope: seconds of silence after which a stream sends COMMENT."""
STARTED = b""
"""A frame without a byte: the answer has begun, so its header can go out."""


def respond(body: Any, status: int = 200) -> Response:
    """`body` as JSON."""
    return Response(orjson.dumps(body, option=orjson.OPT_NON_STR_KEYS), status, media_type="application/json")


OPENAI = ErrorForm(ApiError.body, lambda error: b"data: " + error.bytes() + b"\n\n" + DONE)
"""The form of every route without another."""


def typed_event(body: Mapping[str, Any]) -> bytes:
    """A frame that names its type, which `body` has too."""
    kind: str = body["type"]
    return b"event: " + kind.encode() + b"\ndata: " + orjson.dumps(body) + b"\n\n"


def failure(error: BaseException, fields: Mapping[str, str] | None = None, form: ErrorForm = OPENAI) -> Response:
    """`error` as an answer. fields: more of its header."""
    e = form.translate(error)
    headers = {**(fields or {}), **({"WWW-Authenticate": "Bearer"} if e.status == 401 else {})}
    if e.retry_after is not None:
        headers["Retry-After"] = str(e.retry_after)
    return Response(orjson.dumps(form.body(e)), e.status, headers, media_type="application/json")


async def _listen_for_disconnect(receive: Receive) -> None:
    """Returns when the client has disconnected. Call once the body is read."""
    while (await receive())["type"] != "http.disconnect":
        pass


async def or_disconnect(receive: Receive, work: Awaitable[T]) -> T | None:
    """The result of `work`. None, with `work` cancelled, if the client disconnects first."""
    task = asyncio.ensure_future(work)
    watcher = asyncio.ensure_future(_listen_for_disconnect(receive))
    try:
        await asyncio.wait({task, watcher}, return_when=asyncio.FIRST_COMPLETED)
        if task.done():
            return task.result()
        return None
    finally:
        for t in (task, watcher):
            t.cancel()
        with contextlib.suppress(asyncio.CancelledError, Exception):
            await task


class EventStream(Response):
    """Server-sent events from a generator of ready-made frames. The first frame, even an empty one, decides the
    status. An error before it is an ordinary error answer, an error after it an error event. A disconnect closes the
    generator. Where silence is broken by comments (SILENCE), a comment decides the status too."""

    def __init__(
        self, frames: AsyncGenerator[bytes, None], fields: Mapping[str, str] | None = None, form: ErrorForm = OPENAI,
        media_type: str = "text/event-stream",
    ) -> None:  # fmt: skip
        """fields: more of its header. form: of its errors."""
        headers = {"Cache-Control": "no-cache", "X-Accel-Buffering": "no", **(fields or {})}
        super().__init__(media_type=media_type, headers=headers)
        del self.headers["content-length"]
        self._frames, self._form = frames, form

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        with contextlib.suppress(OSError):  # the client is gone
            await or_disconnect(receive, self._run(scope, receive, send))

    async def _run(self, scope: Scope, receive: Receive, send: Send) -> None:
        started = False
        frames = _audible(self._frames, scope[SILENCE]) if SILENCE in scope else self._frames
        try:
            async for frame in frames:
                if not started:
                    await send({"type": "http.response.start", "status": 200, "headers": self.raw_headers})
                    started = True
                if frame:
                    await send({"type": "http.response.body", "body": frame, "more_body": True})
        except (asyncio.CancelledError, OSError):
            raise
        except Exception as e:
            if not started:
                await failure(e, form=self._form)(scope, receive, send)
                return
            await send({"type": "http.response.body", "body": self._form.frame(self._form.translate(e)), "more_body": True})
        finally:
            await frames.aclose()
            await self._frames.aclose()
        await send({"type": "http.response.body", "body": b"", "more_body": False})


class Download(Response):
    """Bytes read as fast as the client reads them."""

    def __init__(self, size: int, pieces: AsyncGenerator[bytes, None], media_type: str = "application/octet-stream") -> None:
        """size: bytes of all pieces together."""
        super().__init__(media_type=media_type, headers={"Content-Length": str(size)})
        self._pieces = pieces

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        with contextlib.suppress(OSError):  # the client is gone
            await or_disconnect(receive, self._run(send))

    async def _run(self, send: Send) -> None:
        try:
            await send({"type": "http.response.start", "status": 200, "headers": self.raw_headers})
            async for piece in self._pieces:
                await send({"type": "http.response.body", "body": piece, "more_body": True})
            await send({"type": "http.response.body", "body": b"", "more_body": False})
        finally:
            await self._pieces.aclose()


async def _audible(frames: AsyncGenerator[bytes, None], seconds: float) -> AsyncGenerator[bytes, None]:
    """The frames, with a comment wherever none comes for so long. An empty one breaks no silence."""
    coming: asyncio.Task[bytes | None] | None = None
    loop = asyncio.get_running_loop()
    due = loop.time() + seconds
    try:
        while True:
            coming = coming or asyncio.ensure_future(anext(frames, None))
            await asyncio.wait({coming}, timeout=max(0.0, due - loop.time()))
            if coming.done():
                frame, coming = coming.result(), None
                if frame is None:
                    return
            else:
                frame = COMMENT
            if frame:
                due = loop.time() + seconds
            yield frame
    finally:
        if coming is not None:
            coming.cancel()
            with contextlib.suppress(asyncio.CancelledError, Exception):
                await coming
