"""Options that the command line itself reads: fields of no engine and no server."""

from functools import partial
from typing import Annotated, Any

import msgspec

from thalweg.options.http import check_file
from thalweg.options.option import Option
from thalweg.options.values import compilation

_option = partial(Option, group="Frontend")


class CommandOptions(msgspec.Struct, kw_only=True, frozen=True):
    """Options of a command that act before the engine starts."""

    config: Annotated[str | None, _option("YAML file supplying flags; command line wins")] = None
    models_config: Annotated[str | None, _option(
        "YAML or JSON file of several models, loaded on demand, each in an engine of its own", tier="own", check=check_file,
    )] = None  # fmt: skip
    log_level: Annotated[str, _option(
        "Least log level of server and engine", choices=("debug", "info", "warning", "error", "critical"),
    )] = "info"  # fmt: skip
    fail_on_environ_validation: Annotated[
        bool, _option("Unknown/invalid environment variables become fatal", group="EngineArgs", tier="specialist")
    ] = False
    compilation_config: Annotated[dict[str, Any] | None, _option(
        "Graph compile and capture settings as one object", group="CompilationConfig", aliases=("-cc",), read=compilation,
    )] = None  # fmt: skip
    optimization_level: Annotated[str, _option(
        "Preset 0-3 trading start-up time for speed", group="General", aliases=("-O",), choices=("0", "1", "2", "3"),
    )] = "2"  # fmt: skip
