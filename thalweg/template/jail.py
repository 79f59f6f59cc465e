"""Rendering chat templates where they can do no harm: in child processes with limits, killed when they pass one.

`Jail` keeps a few children ready. A job that takes too long, uses too much memory or writes too much costs its own
request an error and its child its life. Other jobs never notice. Knows no tokenizer.
"""

from __future__ import annotations

import msgspec

from thalweg.errors import RequestError, ThalwegError, UnavailableError
from thalweg.host.cells import Cells, CrashedError, LostError, OverranError, StoodStillError
from thalweg.template.wire import Done, Job, Limits, Refused, frame

WALL = 20
"""Seconds of the clock for a second of processor time. Templates cannot wait: whoever needs more stands on a machine that stood
still, or is stopped."""
MEMORY = 96 << 20
"""Bytes a rendering may use. An idle child has some 25 MiB."""
MEMORY_PER_BYTE = 16
"""Bytes more for each byte of the messages: they exist as text of up to 4 bytes a character, a few times over."""
BYTES_PER_SECOND = 32 << 20
OUTPUT = 4 << 20
"""Characters of a rendered prompt, beside twice the size of the messages."""


class BrokenTemplateError(ThalwegError):
    """The template does not parse."""


class LimitError(RequestError):
    """The template used more than it may."""


class Jail:
    """Up to `cells` children that render templates. Thread-safe. Children start when first needed, or with `prepare`.
    They end with this object or this process."""

    def __init__(self, cells: int, seconds: float) -> None:
        """seconds: processor time for one job, its template's compilation included."""
        self._seconds = seconds
        self._decoder: msgspec.msgpack.Decoder[Done | Refused] = msgspec.msgpack.Decoder(Done | Refused)
        self._cells = Cells("thalweg.template.cell", cells, lambda reply: self._decoder.decode(reply).last)

    def prepare(self) -> None:
        """Have a child ready soon. Does not wait."""
        self._cells.prepare()

    def run(self, job: Job) -> str:
        """The rendered text. LimitError: a limit was passed (param "chat_template"). RequestError: what the template or its
        caller refused. BrokenTemplateError. UnavailableError: children were lost or stood still for no reason of ours."""
        data = _frame(job, self._seconds)
        try:
            reply = self._decoder.decode(self._cells.ask(data, WALL * (2 * _allowance(len(data)) + self._seconds)))
        except OverranError:
            raise _limit(f"took longer than {self._seconds:g} seconds") from None
        except CrashedError:
            raise _limit("crashed its process") from None
        except StoodStillError:
            raise UnavailableError("the process that renders chat templates stood still; try again") from None
        except LostError:
            raise UnavailableError("the process that renders chat templates was lost twice; try again") from None
        if isinstance(reply, Done):
            return reply.text
        if reply.kind == "template":
            raise BrokenTemplateError(reply.message)
        if reply.kind == "limit":
            raise _limit(reply.message)
        raise RequestError(reply.message, reply.param)

    def pids(self) -> list[int]:
        """Of the idle children."""
        return self._cells.pids()

    def close(self) -> None:
        """End the idle children. A later `run` starts new ones."""
        self._cells.close()


def _limit(why: str) -> LimitError:
    return LimitError(f"chat_template: {why}; it was stopped", "chat_template")


def _allowance(size: int) -> float:
    """Seconds for messages of this many bytes: the time limit is for templates, not for long conversations."""
    return size / BYTES_PER_SECOND


def _frame(job: Job, seconds: float) -> bytes:
    """The job with limits in proportion to its size. RequestError for values that are not JSON."""
    try:
        data = frame(job)
        limits = Limits(
            seconds=seconds + _allowance(len(data)),
            wall=WALL * (seconds + _allowance(len(data))),
            memory=MEMORY + MEMORY_PER_BYTE * len(data),
            output=OUTPUT + 2 * len(data),
        )
        return frame(msgspec.structs.replace(job, limits=limits))
    except UnicodeEncodeError as e:
        raise RequestError(f"messages: not valid Unicode text: {e}; remove the lone surrogate", "messages") from None
    except (TypeError, ValueError, OverflowError, RecursionError) as e:
        raise RequestError(f"messages: a chat template takes JSON values of moderate size and depth: {e}", "messages") from None
