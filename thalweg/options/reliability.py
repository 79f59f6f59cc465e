"""Options of restarts, standby processes and sleep."""

from collections.abc import Iterator
from functools import partial
from typing import Annotated, Any

from thalweg.errors import ConfigError
from thalweg.options.media import MediaOptions
from thalweg.options.option import Option
from thalweg.options.weight_transfer import read_transfer_config

_option = partial(Option, group="EngineArgs")


def check_transfer(settings: dict[str, Any]) -> Iterator[str]:
    try:
        read_transfer_config(settings)
    except ConfigError as e:
        yield str(e).removeprefix("weight_transfer_config: ")


class ReliabilityOptions(MediaOptions, kw_only=True, frozen=True):
    """When an engine process is replaced, or put to sleep."""

    heartbeat_timeout: Annotated[float, _option(
        "Seconds without a sign of life after which the engine process counts as stuck, and is replaced", tier="own", ge=1,
        le=86400, unit="seconds",
    )] = 8.0  # fmt: skip
    hang_timeout: Annotated[float, _option(
        "Seconds without a finished step, while there is work, after which the engine counts as stuck, and is replaced. A step "
        "of a large model on a slow device must fit", tier="own", ge=1, le=86400, unit="seconds",
    )] = 60.0  # fmt: skip
    max_restarts: Annotated[int, _option("Engine restarts within ten minutes before the server gives up", tier="own", ge=0)] = 5
    standby_engine: Annotated[bool, _option(
        "Keep a process with the engine's code loaded, so that a restart does not wait for that; it holds no device and no "
        "weights", tier="own",
    )] = True  # fmt: skip
    weight_transfer_config: Annotated[dict[str, Any] | None, _option(
        'Routes by which a trainer sends new weights: {"backend": "gloo"}, with staging_directory and timeout', group="General",
        tier="scale", check=check_transfer,
    )] = None  # fmt: skip
    enable_sleep_mode: Annotated[bool, _option(
        "The engine may be put to sleep: its process ends, and all its memory is given back, until it is woken",
        group="ModelConfig",
    )] = False  # fmt: skip
