"""A streamed answer of a model that is still loading: comments keep the connection open until it begins."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable

from starlette.responses import Response
from starlette.types import Message, Receive, Scope, Send

from thalweg.server.http.answer import COMMENT, DONE
from thalweg.server.routes import Row, error_response


class LateAnswer(Response):
    """The answer that `work` gives. A comment after every `silence` seconds decides the status. Later errors are events."""

    def __init__(self, work: Awaitable[Response], silence: float, row: Row) -> None:
        super().__init__(media_type="text/event-stream", headers={"Cache-Control": "no-cache", "X-Accel-Buffering": "no"})
        del self.headers["content-length"]
        self._work, self._silence, self._row = work, silence, row

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        task, begun = asyncio.ensure_future(self._work), False
        try:
            while not (await asyncio.wait({task}, timeout=self._silence))[0]:
                if not begun:
                    await send({"type": "http.response.start", "status": 200, "headers": self.raw_headers})
                    begun = True
                await send({"type": "http.response.body", "body": COMMENT, "more_body": True})
        finally:
            task.cancel()
        try:
            answer = task.result()
        except Exception as e:
            answer = error_response(self._row, e)
        if not begun:
            await answer(scope, receive, send)
            return
        failed = False

        async def send_body(message: Message) -> None:
            nonlocal failed
            if message["type"] == "http.response.start":
                failed = message["status"] != 200
            elif failed:
                await send({**message, "body": self._error_frame(message["body"])})
            else:
                await send(message)

        await answer(scope, receive, send_body)

    def _error_frame(self, body: bytes) -> bytes:
        """The body of an error as the event that ends a stream."""
        return b"event: error\ndata: " + body + b"\n\n" if self._row.errors else b"data: " + body + b"\n\n" + DONE
