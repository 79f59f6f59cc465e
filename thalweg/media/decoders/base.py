"""The client's side of a decoder: tasks go to a process with limits, and failures become error messages."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Generic

from thalweg.errors import RequestError, UnavailableError
from thalweg.host.cells import CpuLimitError, CrashedError, LostError, StalledError
from thalweg.host.jobs import Jobs, Result, Task, TaskLimits, TaskRefusedError


@dataclass(frozen=True, slots=True)
class FailureWords:
    """Error messages, behind the place in the request. Templates of str.format with `seconds`, `memory` (MiB) and `detail`."""

    overran: str
    crashed: str
    lost: str
    """With nothing in front: the server is to blame."""
    refusals: Mapping[str, str]
    """By `TaskRefused.why`."""
    missing: Mapping[str, str] = field(default_factory=dict)
    """The same where the server lacks something."""


class MediaDecoder(Generic[Task, Result]):
    """Decodes files of one kind in up to `most` processes. Thread-safe."""

    def __init__(self, module: str, most: int, result: type[Result], words: FailureWords) -> None:
        """module: the process, as of `Jobs`."""
        self._jobs: Jobs[Task, Result] = Jobs(module, most, result)
        self._words = words
        self.prepare, self.close, self.pids = self._jobs.prepare, self._jobs.close, self._jobs.pids

    def decode(self, task: Task, at: str, limits: TaskLimits, extra: int = 0) -> Result:
        """at: the place in the request. extra: bytes of memory for the task itself. RequestError names the fault of the file.
        UnavailableError: the file is not to blame."""
        words, memory = self._words, limits.memory + extra
        facts = {"seconds": f"{limits.seconds:g}", "memory": limits.memory >> 20}
        try:
            return self._jobs.run(task, TaskLimits(limits.seconds, limits.wall, memory))
        except CpuLimitError:
            raise RequestError(f"{at}: {words.overran.format(**facts)}", at) from None
        except CrashedError:
            raise RequestError(f"{at}: {words.crashed.format(**facts)}", at) from None
        except (StalledError, LostError):
            raise UnavailableError(words.lost) from None
        except TaskRefusedError as e:
            if e.why in words.missing:
                raise UnavailableError(words.missing[e.why]) from None
            raise RequestError(f"{at}: {words.refusals[e.why].format(**facts, detail=e.detail)}", at) from None
