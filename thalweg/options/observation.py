"""Options of profiles and statistics."""

from collections.abc import Iterable
from functools import partial
from typing import Annotated, Any, ClassVar, Literal

import msgspec

from thalweg.errors import ConfigError
from thalweg.options.option import Option, Rules
from thalweg.options.reliability import ReliabilityOptions

_option = partial(Option, group="General")


class ProfilerConfig(msgspec.Struct, kw_only=True, frozen=True, forbid_unknown_fields=True):
    """Of torch.profiler, in the engine's process."""

    profiler: Literal["torch"]
    torch_profiler_dir: str
    torch_profiler_with_stack: bool = True
    torch_profiler_with_flops: bool = False
    torch_profiler_use_gzip: bool = True
    torch_profiler_record_shapes: bool = False
    torch_profiler_with_memory: bool = False
    delay_iterations: Annotated[int, msgspec.Meta(ge=0)] = 0
    """Steps between start and the first recorded one."""
    max_iterations: Annotated[int, msgspec.Meta(ge=0)] = 0
    """Recorded steps, at most. 0: until it is stopped."""


def check_profiler(args: "ObservationOptions") -> Iterable[str]:
    read_profiler_config(args)
    return ()


class ObservationOptions(ReliabilityOptions, kw_only=True, frozen=True):
    """Measurements and logs."""

    profiler_config: Annotated[dict[str, Any] | None, _option(
        'Content of a recording by /start_profile: {"profiler": "torch", "torch_profiler_dir": "/folder"} and options',
    )] = None  # fmt: skip
    disable_log_stats: Annotated[
        bool, _option("Stop periodic engine statistics (and stat-based metrics)", group="EngineArgs")
    ] = False
    enable_logging_iteration_details: Annotated[
        bool, _option("Log per-step context/generation counts and timing", group="ObservabilityConfig", tier="specialist")
    ] = False

    RULES: ClassVar[Rules] = (check_profiler,)


def read_profiler_config(args: "ObservationOptions") -> ProfilerConfig | None:
    """What profiles record. None: there are none. ConfigError names the field."""
    settings = args.profiler_config
    if not settings or settings.get("profiler", "") is None:
        return None
    try:
        result = msgspec.convert(settings, ProfilerConfig)
    except msgspec.ValidationError as e:
        known = ", ".join(ProfilerConfig.__struct_fields__)
        raise ConfigError(f"profiler_config: {e}; supported: {known}, and only the profiler torch") from None
    if not result.torch_profiler_dir.startswith("/"):
        raise ConfigError(f"profiler_config: torch_profiler_dir: {result.torch_profiler_dir!r} must be an absolute folder")
    return result
