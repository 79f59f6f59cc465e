"""Traces of what the engine does, by torch's profiler: a file per recording, for chrome://tracing or Perfetto."""

from __future__ import annotations

import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from thalweg.errors import ConfigError

_KNOWN = {
    "profiler": str, "torch_profiler_dir": str, "torch_profiler_with_stack": bool, "torch_profiler_with_flops": bool,
    "torch_profiler_use_gzip": bool, "torch_profiler_record_shapes": bool, "torch_profiler_with_memory": bool,
    "delay_iterations": int, "max_iterations": int,
}  # fmt: skip


class Profiler:
    """One recording at a time. Its object is torch's, imported when a recording starts."""

    def __init__(self, config: Mapping[str, Any] | None) -> None:
        """config: {"profiler": "torch", "torch_profiler_dir": folder}. None: recordings are refused. ConfigError."""
        self._said = dict(config) if config is not None else None
        self._running: Any = None
        self._name = ""
        self._steps = 0
        if self._said is not None:
            _check(self._said)

    def start(self, prefix: str | None) -> None:
        """ConfigError if nothing says where traces go, or one is being recorded."""
        if self._said is None:
            raise ConfigError('profiler_config: give it to LLM(...): {"profiler": "torch", "torch_profiler_dir": FOLDER}')
        if self._running is not None:
            raise ConfigError("start_profile: a recording runs already; call stop_profile() first")
        self._name = f"{prefix or 'thalweg'}-{time.strftime('%Y%m%d-%H%M%S')}"
        self._steps = -int(self._said.get("delay_iterations", 0))
        if self._steps == 0:
            self._record()

    def _record(self) -> None:
        import torch.profiler as torch_profiler

        said = self._said
        assert said is not None, "checked when started"
        self._running = torch_profiler.profile(
            record_shapes=said.get("torch_profiler_record_shapes", False),
            profile_memory=said.get("torch_profiler_with_memory", False),
            with_stack=said.get("torch_profiler_with_stack", True),
            with_flops=said.get("torch_profiler_with_flops", False),
        )
        self._running.start()

    def stepped(self) -> None:
        """A step of the engine has ended. A recording begins after delay_iterations and ends after max_iterations of them."""
        if not self._name:
            return
        self._steps += 1
        assert self._said is not None, "checked when started"
        if self._steps == 0 and self._running is None:
            self._record()
        elif self._running is not None and self._steps == self._said.get("max_iterations", 0):
            self.stop()

    def stop(self) -> None:
        """Writes the file. Nothing where nothing is recorded."""
        running, self._running = self._running, None
        name, self._name = self._name, ""
        if running is None:
            return
        running.stop()
        assert self._said is not None, "checked when started"
        folder = Path(self._said["torch_profiler_dir"])
        folder.mkdir(parents=True, exist_ok=True)
        zipped = self._said.get("torch_profiler_use_gzip", True)
        running.export_chrome_trace(str(folder / f"{name}.json{'.gz' if zipped else ''}"))


def _check(said: Mapping[str, Any]) -> None:
    problems = []
    for name, value in said.items():
        kind = _KNOWN.get(name)
        if kind is None:
            problems.append(f"profiler_config: {name!r:.60} is not supported; known are {', '.join(_KNOWN)}")
        elif type(value) is not kind or (isinstance(value, int) and value < 0):
            problems.append(
                f"profiler_config: {name} must be {'a number' if kind is int else kind.__name__}, not {value!r:.60}"
            )
    if said.get("profiler", "torch") != "torch":
        problems.append(f"profiler_config: profiler: this version has 'torch', not {said['profiler']!r:.60}")
    if not said.get("torch_profiler_dir"):
        problems.append("profiler_config: torch_profiler_dir: the folder that traces are written to")
    if problems:
        raise ConfigError(*problems)
