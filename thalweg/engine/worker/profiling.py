"""Profiles of steps by torch.profiler, for the engine's own process: a trace for chrome://tracing or Perfetto, and a table."""

from __future__ import annotations

import itertools
import os
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, cast

from thalweg.errors import RequestError
from thalweg.options.observation import ProfilerConfig

ROWS = 60
"""Lines of the table."""
_NUMBERS = itertools.count(1)
"""Numbers of the profiles of this process: an engine that slept does not overwrite earlier ones."""


class Profiler:
    """One profile at a time, of the thread that starts and stops it."""

    def __init__(self, config: ProfilerConfig) -> None:
        self._config = config
        self._profile: Any = None
        self._name = ""
        """Name of the started profile. "": none."""
        self._steps = 0

    def start(self, prefix: str = "thalweg") -> None:
        """prefix: of the files' names. RequestError if a profile runs, or torch can record nothing here."""
        if self._name:
            raise RequestError("a profile is running: stop it first")
        if "torch" not in sys.modules:
            raise RequestError("this device runs no torch, so there is nothing to profile")
        self._name, self._steps = f"{prefix}-{os.getpid()}-{next(_NUMBERS)}", -self._config.delay_iterations
        if not self._steps:
            self._record()

    def step(self) -> Path | None:
        """A step has ended: a profile may begin or end with it, and then has a file. OSError as `stop`."""
        if not self._name:
            return None
        self._steps += 1
        if self._profile is None and self._steps == 0:
            self._record()
        return self.stop() if self._profile is not None and self._steps == self._config.max_iterations else None

    def _record(self) -> None:
        import torch.profiler

        config, kit = self._config, cast(Any, torch.profiler)  # partly untyped
        self._profile = kit.profile(
            activities=kit.supported_activities(),
            record_shapes=config.torch_profiler_record_shapes,
            profile_memory=config.torch_profiler_with_memory,
            with_stack=config.torch_profiler_with_stack,
            with_flops=config.torch_profiler_with_flops,
        )
        self._profile.start()

    def stop(self) -> Path:
        """Write the trace and return its file. RequestError if no profile runs, OSError if the folder is not writable."""
        profile, self._profile = self._profile, None
        name, self._name = self._name, ""
        if profile is None:
            raise RequestError("no step was recorded" if name else "no profile is running: start one first")
        profile.stop()
        folder = Path(self._config.torch_profiler_dir)
        folder.mkdir(parents=True, exist_ok=True)
        trace = folder / f"{name}.pt.trace.json{'.gz' if self._config.torch_profiler_use_gzip else ''}"
        profile.export_chrome_trace(str(trace))
        table = profile.key_averages().table(sort_by="self_cpu_time_total", row_limit=ROWS)
        (folder / f"{name}.txt").write_text(table, encoding="utf-8")
        return trace


def profile_operations(config: ProfilerConfig | None) -> Mapping[str, Callable[..., Any]]:
    """Operations of a worker (`Worker.operations`). Files are named by their whole path, as text."""
    if config is None:
        return {}
    profiler = Profiler(config)

    def advance() -> str | None:
        trace = profiler.step()
        return None if trace is None else str(trace)

    return {"start_profile": profiler.start, "stop_profile": lambda: str(profiler.stop()), "advance_profile": advance}
