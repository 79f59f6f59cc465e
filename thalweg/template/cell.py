"""The process in which chat templates are rendered: `python -m thalweg.template.cell`, jobs on stdin, answers on
stdout.

It opens no file once it runs, starts no process, and is killed by the kernel at its deadlines. Memory beyond its
limit is refused to it. A job too big for it leaves an exhausted process behind, which says so in its answer and ends.
"""

from __future__ import annotations

import gc
import sys
from datetime import datetime

import msgspec

from thalweg.errors import CheckpointError, RequestError
from thalweg.host.confined import Confined
from thalweg.template.sandbox import ChatTemplate, OutputLimitError, load_all
from thalweg.template.wire import Done, Job, Refused, frame

KEPT_TEMPLATES = 4
"""Compiled templates kept for the next job."""
KEPT_BYTES = 48 << 20
"""Bytes of growth after which a process retires. Its heap is fragmented, and counts against the next job."""


class Cell:
    """Renders jobs."""

    def __init__(self) -> None:
        self._templates: dict[str, ChatTemplate] = {}
        load_all()
        self.process = Confined()

    def answer(self, job: Job) -> Done | Refused:
        limits = job.limits
        with self.process.limited(limits.seconds, limits.wall, limits.memory):
            try:
                text = self._render(job)
            except MemoryError:
                self.process.limit_memory(None)
                return Refused("limit", f"used more than {job.limits.memory >> 20} MiB of memory", last=True)
            except OutputLimitError:
                return Refused("limit", f"wrote more than {job.limits.output} characters")
            except CheckpointError as e:
                return Refused("template", str(e))
            except RequestError as e:
                return Refused("request", str(e), e.param)
        return Done(text, last=self.process.grown() > KEPT_BYTES)

    def _render(self, job: Job) -> str:
        template = self._templates.get(job.source)
        if template is None or template.variables != job.variables:
            template = self._templates[job.source] = ChatTemplate(job.source, job.variables)
            while len(self._templates) > KEPT_TEMPLATES:
                del self._templates[next(iter(self._templates))]
        if job.messages is None:
            return ""
        return template.fill(
            job.messages,
            job.tools,
            job.add_generation_prompt,
            job.continue_final_message,
            content_format=job.content_format,
            kwargs=job.kwargs,
            signs=job.signs,
            now=datetime.fromisoformat(job.now),
            most=job.limits.output,
        )


def main() -> int:
    cell = Cell()
    gc.freeze()
    return cell.process.serve(msgspec.msgpack.Decoder(Job).decode, cell.answer, frame)


if __name__ == "__main__":
    sys.exit(main())
