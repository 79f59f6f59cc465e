"""One batch: its lines checked, then answered by the routes' own functions, some at a time, into files."""

from __future__ import annotations

import asyncio
import logging
import time
import uuid
from collections.abc import Iterator
from contextlib import suppress
from typing import TYPE_CHECKING, Any

import orjson

from thalweg.server.core.lines import custom_id_of
from thalweg.server.errors import ApiError, translate

if TYPE_CHECKING:
    from thalweg.server.batches.store import File, Files
    from thalweg.server.core.lines import Answered, Lines

log = logging.getLogger(__name__)
MOST_LINES = 50_000
MOST_ERRORS = 100
"""Wrong lines that a batch which fails names."""
WINDOW = 24 * 3600
"""Seconds that a batch may take."""
ENDED = frozenset({"completed", "failed", "expired", "cancelled"})


class Batch:
    def __init__(self, owner: str, source: File, endpoint: str, metadata: dict[str, str] | None) -> None:
        self.id, self.owner, self.source, self.endpoint = f"batch_{uuid.uuid4().hex}", owner, source, endpoint
        self.metadata = metadata
        self.status = "validating"
        self.created = int(time.time())
        self.times: dict[str, int] = {}
        """When it entered each status."""
        self.errors: list[dict[str, Any]] = []
        self.total = self.completed = self.failed = 0
        self.files: dict[str, File] = {}
        """What it wrote: output, error."""
        self.task: asyncio.Task[None] | None = None

    def said(self) -> dict[str, Any]:
        at = {f"{s}_at": self.times.get(s) for s in ("in_progress", "finalizing", "cancelling", *ENDED)}
        output, error = self.files.get("output"), self.files.get("error")
        return {
            "id": self.id,
            "object": "batch",
            "endpoint": self.endpoint,
            "input_file_id": self.source.id,
            "completion_window": "24h",
            "status": self.status,
            "output_file_id": output and output.id,
            "error_file_id": error and error.id,
            "errors": {"object": "list", "data": self.errors} if self.errors else None,
            "created_at": self.created,
            "expires_at": self.created + WINDOW,
            **at,
            "request_counts": {"total": self.total, "completed": self.completed, "failed": self.failed},
            "metadata": self.metadata,
        }

    def become(self, status: str) -> None:
        self.status = status
        self.times[status] = int(time.time())


class Runner:
    """Runs a server's batches. together: lines of all batches that are under way at once."""

    def __init__(self, files: Files, lines: Lines, together: int) -> None:
        self._files, self._lines = files, lines
        self._free = asyncio.Semaphore(together)

    def start(self, batch: Batch, client: str) -> None:
        batch.task = asyncio.create_task(self._run(batch, client))

    async def _run(self, batch: Batch, client: str) -> None:
        try:
            data = await asyncio.to_thread(self._files.read, batch.source)
            lines = await asyncio.to_thread(self._checked, batch, data)
            if batch.errors:
                batch.become("failed")
                return
            batch.become("in_progress")
            await self._answer(batch, lines, client)
            batch.become("finalizing")
            batch.become("expired" if self._late(batch) and batch.failed else "completed")
        except asyncio.CancelledError:
            batch.become("cancelled")
        except Exception as e:  # no room for answers, for one
            error = translate(e)
            batch.errors.append({"code": "failed", "line": None, "message": error.message, "param": error.param})
            batch.become("failed")

    def _checked(self, batch: Batch, data: bytes) -> list[bytes]:
        """The lines. What is wrong with them is in `batch.errors`."""
        lines, seen = [], set[str]()
        for number, raw in enumerate(data.splitlines(), 1):
            if not raw.strip():
                continue
            lines.append(raw)
            try:
                line = self._lines.read(raw)
                if line.url != batch.endpoint:
                    raise ApiError(f"url: {line.url!r} is not the batch's endpoint {batch.endpoint!r}", "url")
                if line.custom_id in seen:
                    raise ApiError("custom_id: another line has it too", "custom_id")
                seen.add(line.custom_id)
            except ApiError as e:
                batch.errors.append({"code": "invalid_line", "line": number, "message": e.message, "param": e.param})
            if len(batch.errors) >= MOST_ERRORS:
                break
        if not lines:
            batch.errors.append({"code": "empty_file", "line": None, "message": "the file has no lines", "param": None})
        if len(lines) > MOST_LINES:
            words = f"the file has {len(lines)} lines; a batch has at most {MOST_LINES}"
            batch.errors.append({"code": "too_many_lines", "line": None, "message": words, "param": None})
        batch.total = len(lines)
        return lines

    async def _answer(self, batch: Batch, lines: list[bytes], client: str) -> None:
        """Every line, some at a time. The first failure of ours ends all."""
        left: Iterator[bytes] = iter(lines)

        async def work() -> None:
            for raw in left:
                if self._late(batch):
                    self._write(batch, False, _expired(raw))
                    continue
                async with self._free:
                    answered: Answered = await self._lines.answer(raw, client, batch.owner)
                self._write(batch, answered.ok, answered.line)

        workers = [asyncio.create_task(work()) for _ in range(min(len(lines), 256))]
        try:
            await asyncio.gather(*workers)
        finally:
            for worker in workers:
                worker.cancel()
            with suppress(asyncio.CancelledError):
                await asyncio.gather(*workers, return_exceptions=True)

    def _write(self, batch: Batch, ok: bool, line: bytes) -> None:
        kind = "output" if ok else "error"
        file = batch.files.get(kind)
        if file is None:
            name = f"{batch.id}_{kind}.jsonl"
            file = batch.files[kind] = self._files.add(batch.owner, name, "batch_output")
        self._files.append(file, line + b"\n")
        batch.completed += ok
        batch.failed += not ok

    def _late(self, batch: Batch) -> bool:
        return time.time() > batch.created + WINDOW


def _expired(raw: bytes) -> bytes:
    error = {"code": "batch_expired", "message": "the batch's time was over before this line's turn"}
    out = {"id": f"batch_req_{uuid.uuid4().hex}", "custom_id": custom_id_of(raw), "response": None, "error": error}
    return orjson.dumps(out)
