"""One batch: its lines checked, then answered by the routes' own functions, some at a time, into files."""

from __future__ import annotations

import asyncio
import time
import uuid
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext
from functools import partial
from typing import TYPE_CHECKING, Any
from weakref import WeakValueDictionary

import orjson

from thalweg.host.turns import FairSemaphore, complete
from thalweg.server.batches.check import BatchCheckResult, Check
from thalweg.server.batches.reading import Cursor, LineSpan
from thalweg.server.core.lines import LineAnswer, custom_id_of
from thalweg.server.errors import translate
from thalweg.server.http.bodies import SMALL

if TYPE_CHECKING:
    from thalweg.server.batches.store import File, FileStore
    from thalweg.server.core.lines import LineRunner

MOST_BYTES = 16 << 20
"""Bytes of long lines in progress at once. A key without one gets one more."""
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
        """Files written: output, error."""
        self.task: asyncio.Task[None] | None = None
        self.writing = asyncio.Lock()

    def describe(self) -> dict[str, Any]:
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


class BatchRunner:
    """Runs a server's batches. Keys take turns, and the batches of a key: for checking lines, and for answering them."""

    def __init__(self, files: FileStore, lines: LineRunner, together: int) -> None:
        """together: lines in progress at once, of all batches. A key without one gets one more."""
        self._files, self._lines = files, lines
        self._places, self._room = FairSemaphore(together, spare=True), FairSemaphore(MOST_BYTES, spare=True)
        self._looks = FairSemaphore()
        self._thread = ThreadPoolExecutor(1, "batch-lines")
        self._checking: WeakValueDictionary[str, asyncio.Lock] = WeakValueDictionary()
        """By client: it has one file checked after another."""

    def start(self, batch: Batch, client: str) -> None:
        """client: the tenant that it counts against."""
        self._files.use(batch.source)
        batch.task = asyncio.create_task(self._run(batch, client))
        batch.task.add_done_callback(lambda _: self._close(batch))

    def _close(self, batch: Batch) -> None:
        self._files.leave(batch.source)
        if batch.status not in ENDED:  # cancelled before it began
            batch.become("cancelled")

    async def _run(self, batch: Batch, client: str) -> None:
        try:
            batch.total, errors = await self._check(batch, client)
            batch.errors += errors
            if batch.errors:
                batch.become("failed")
                return
            batch.become("in_progress")
            await self._answer(batch, client)
            batch.become("finalizing")
            batch.become("expired" if self._late(batch) and batch.failed else "completed")
        except asyncio.CancelledError:
            batch.become("cancelled")
        except Exception as e:  # no room for answers, for one
            error = translate(e)
            batch.errors.append({"code": "failed", "line": None, "message": error.message, "param": error.param})
            batch.become("failed")

    async def _check(self, batch: Batch, client: str) -> BatchCheckResult:
        """Of the file's lines. They are read once for all batches of one endpoint."""
        file, endpoint = batch.source, batch.endpoint
        lock = self._checking.get(client)
        if lock is None:
            lock = self._checking[client] = asyncio.Lock()
        async with lock:
            if endpoint not in file.checked:
                check = Check(self._lines, endpoint, self._cursor(file), partial(self._files.piece, file))
                while not check.is_done:
                    await self._looks.run(client, self._thread, check.look)
                file.checked[endpoint] = check.verdict()
            return file.checked[endpoint]

    async def _answer(self, batch: Batch, client: str) -> None:
        """Every line, some at a time. The first failure of ours ends all."""
        cursor = self._cursor(batch.source)
        try:
            async with asyncio.TaskGroup() as group:
                while not cursor.is_done:
                    for span in await self._looks.run(client, self._thread, cursor.look):
                        place = await self._places.take(client)
                        line = group.create_task(self._line(batch, span, client))
                        line.add_done_callback(partial(self._give_back, client, place))
        except ExceptionGroup as e:
            raise e.exceptions[0] from None

    def _give_back(self, client: str, place: int, _: asyncio.Task[None]) -> None:
        self._places.give(client, place)

    async def _line(self, batch: Batch, span: LineSpan, client: str) -> None:
        size = span.end - span.start
        async with self._room.turn(client, size) if size > SMALL else nullcontext():
            raw = self._files.read(batch.source, span.start, span.end)
            if self._late(batch):
                answered = LineAnswer(await asyncio.to_thread(_expiry_line, await raw), False)
            else:
                answered = await self._lines.answer(await raw, client, batch.owner)
        await self._write(batch, answered)

    async def _write(self, batch: Batch, answered: LineAnswer) -> None:
        async with batch.writing:
            await complete(self._record(batch, answered))

    async def _record(self, batch: Batch, answered: LineAnswer) -> None:
        """Write a line and count it. Not cancelled between the two: a cancelled batch counts the lines of its files."""
        kind = "output" if answered.ok else "error"
        file = batch.files.get(kind)
        if file is None:
            name = f"{batch.id}_{kind}.jsonl"
            file = batch.files[kind] = await self._files.add(batch.owner, name, "batch_output")
        await self._files.append(file, answered.line + b"\n")
        batch.completed += answered.ok
        batch.failed += not answered.ok

    def _cursor(self, file: File) -> Cursor:
        return Cursor(partial(self._files.piece, file), file.size)

    def _late(self, batch: Batch) -> bool:
        return time.time() > batch.created + WINDOW


def _expiry_line(raw: bytes) -> bytes:
    error = {"code": "batch_expired", "message": "the batch's time was over before this line's turn"}
    out = {"id": f"batch_req_{uuid.uuid4().hex}", "custom_id": custom_id_of(raw), "response": None, "error": error}
    return orjson.dumps(out)
