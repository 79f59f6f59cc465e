"""The open list of executors, and the check of `distributed_executor_backend`. Imports no executor until one is asked for.

An installed package adds one with an entry point of the group `thalweg.executors` ("NAME = package.module:function"). The
function has the EngineArgs as its argument and returns an `engine.control.executor.Executor`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from thalweg.errors import ConfigError
from thalweg.plugins import PluginRegistry

if TYPE_CHECKING:
    from thalweg.config import EngineArgs

_HERE = "thalweg.engine.executor"
EXECUTORS: Mapping[str, str] = {
    "external_launcher": f"{_HERE}.launched:open_launched",
    "mp": f"{_HERE}.processes:open_processes",
    "ray": f"{_HERE}.ray_cluster:open_ray",
    "uni": f"{_HERE}.inline:open_inline",
}
"""mp: a process for each rank; the first rank runs in the engine's process. Equal to uni with one rank. external_launcher:
every rank is a process that torchrun has started. ray: as mp, with the further ranks on nodes of a Ray cluster."""
OF_PROGRAMS = frozenset({"external_launcher"})
"""Executors whose ranks are programs with `LLM(...)`. A server cannot use them."""
_LIST = PluginRegistry("thalweg.executors", EXECUTORS)


def is_inline(name: str | None) -> bool:
    """Does the first rank run in the engine's process? False for executors of other packages: unknown."""
    return name is None or name in EXECUTORS


def find_problem(name: str | None) -> str | None:
    """Why no executor has this name, in words. None: one has it, or no name is given."""
    if name is None or name in _LIST:
        return None
    return f"must be one of {', '.join(_LIST.names())}, or the name that an installed package adds, not {name!r}"


def load_executor(args: EngineArgs) -> Any:
    """The function that opens the executor of these arguments: (EngineArgs) -> Executor. ConfigError if `find_problem` finds
    one. UnsupportedModelError if a package's function cannot be imported."""
    name = args.distributed_executor_backend
    if (problem := find_problem(name)) is not None:
        raise ConfigError(f"distributed_executor_backend: {problem}")
    return _LIST.load(name or ("mp" if args.tensor_parallel_size * args.pipeline_parallel_size > 1 else "uni"))
