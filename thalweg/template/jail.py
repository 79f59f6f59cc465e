"""Renders chat templates in confined child processes with limits, which are killed when they exceed one.

`Jail` keeps a few children ready. A job that exceeds its time, memory or output fails, and its child is killed. Other jobs are
not affected. It knows no tokenizer.
"""

from __future__ import annotations

import msgspec

from thalweg.errors import RequestError, ThalwegError, UnavailableError
from thalweg.host.cells import CpuLimitError, CrashedError, LostError, StalledError
from thalweg.host.jobs import MEMORY as NO_MEMORY
from thalweg.host.jobs import Jobs, TaskLimits, TaskRefusedError, frame_job
from thalweg.template.wire import RenderTask

WALL = 20
"""Wall-clock seconds allowed per second of CPU time. Templates cannot wait, so a job needs more only if the machine stalled or
the process was stopped."""
MEMORY = 96 << 20
"""Bytes of memory for a rendering. An idle child has some 25 MiB."""
MEMORY_PER_BYTE = 16
"""Additional bytes for each byte of the messages: several copies of the text, at up to 4 bytes per character."""
BYTES_PER_SECOND = 32 << 20
OUTPUT = 4 << 20
"""Characters of a rendered prompt, in addition to twice the size of the messages."""


class BrokenTemplateError(ThalwegError):
    """The template does not parse."""


class LimitError(RequestError):
    """The template exceeded a limit."""


class Jail:
    """Up to `cells` children that render templates. Thread-safe. Children start on first use, or with `prepare`. They end with
    this object or this process."""

    def __init__(self, cells: int, seconds: float) -> None:
        """seconds: CPU time for one job, including its template's compilation."""
        self._seconds = seconds
        self._jobs: Jobs[RenderTask, str] = Jobs("thalweg.template.cell", cells, str)

    def prepare(self) -> None:
        """Start a child without waiting for it."""
        self._jobs.prepare()

    def run(self, task: RenderTask) -> str:
        """The rendered text. LimitError: a limit was exceeded (param "chat_template"). RequestError: the template or the
        renderer rejected the arguments. BrokenTemplateError. UnavailableError: children were lost or stalled through no fault
        of the job."""
        data, limits = _frame_with_limits(task, self._seconds)
        try:
            return self._jobs.send(data, WALL * (2 * _allowance(len(data)) + self._seconds))
        except CpuLimitError:
            raise _limit(f"took longer than {self._seconds:g} seconds") from None
        except CrashedError:
            raise _limit("crashed its process") from None
        except StalledError:
            raise UnavailableError("the process that renders chat templates stood still; try again") from None
        except LostError:
            raise UnavailableError("the process that renders chat templates was lost twice; try again") from None
        except TaskRefusedError as e:
            raise _refusal(e, limits) from None

    def pids(self) -> list[int]:
        """Process ids of the idle children."""
        return self._jobs.pids()

    def close(self) -> None:
        """End the idle children. A later `run` starts new ones."""
        self._jobs.close()


def _limit(why: str) -> LimitError:
    return LimitError(f"chat_template: {why}; it was stopped", "chat_template")


def _refusal(e: TaskRefusedError, limits: TaskLimits) -> ThalwegError:
    if e.why == "template":
        return BrokenTemplateError(e.detail)
    if e.why == NO_MEMORY:
        return _limit(f"used more than {limits.memory >> 20} MiB of memory")
    return _limit(e.detail) if e.why == "limit" else RequestError(e.detail, e.place or None)


def _allowance(size: int) -> float:
    """Seconds for messages of this many bytes: the time limit is for templates, not for long conversations."""
    return size / BYTES_PER_SECOND


def _frame_with_limits(task: RenderTask, seconds: float) -> tuple[bytes, TaskLimits]:
    """The job with limits in proportion to its size. RequestError for values other than JSON."""
    try:
        size = len(frame_job(task, TaskLimits(0.0, 0.0, 0)))
        own = seconds + _allowance(size)
        limits = TaskLimits(seconds=own, wall=WALL * own, memory=MEMORY + MEMORY_PER_BYTE * size)
        return frame_job(msgspec.structs.replace(task, output=OUTPUT + 2 * size), limits), limits
    except UnicodeEncodeError as e:
        raise RequestError(f"messages: not valid Unicode text: {e}; remove the lone surrogate", "messages") from None
    except (TypeError, ValueError, OverflowError, RecursionError) as e:
        raise RequestError(
            f"messages: a chat template requires JSON values of moderate size and depth: {e}", "messages"
        ) from None
