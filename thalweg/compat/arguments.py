"""EngineArgs under vLLM's names: honoured arguments, arguments that request the behaviour there is anyway, and rejections
with a reason."""

from __future__ import annotations

import argparse
from typing import Any

from thalweg.compat.configs import MadeArgs, MakesConfigs, build_args
from thalweg.engine.planning.arguments import engine_args
from thalweg.options.flag import Flag
from thalweg.options.model import BUNDLED
from thalweg.options.table import GONE, table
from thalweg.options.values import argument


class EngineArgs(MakesConfigs):
    """Makes a thalweg EngineArgs: `EngineArgs(model=..., dtype=...)`. Other arguments of vLLM are accepted where they request
    the behaviour there is anyway. ConfigError names the rest, each with the reason and the alternative."""

    def __new__(cls, model: str = BUNDLED, **fields: Any) -> MadeArgs:  # type: ignore[misc]
        return build_args(engine_args({"model": model, **fields}))

    @staticmethod
    def add_cli_args(parser: argparse.ArgumentParser) -> argparse.ArgumentParser:
        """Adds every engine flag of vLLM, with values written as for `thalweg serve`. The default of each is None."""
        taken = {o for a in parser._actions for o in a.option_strings}
        for flag in _flags():
            options = [o for o in flag.spellings if o not in taken]
            if not options:
                continue
            if flag.kind == "bool":
                parser.add_argument(*options, dest=flag.dest, action=argparse.BooleanOptionalAction, help=argparse.SUPPRESS)
            else:
                nargs = "+" if flag.kind == "list" else None
                parser.add_argument(*options, dest=flag.dest, nargs=nargs, type=argument(flag.value), help=argparse.SUPPRESS)
        return parser

    @classmethod
    def from_cli_args(cls, args: argparse.Namespace) -> MadeArgs:
        """EngineArgs of a namespace parsed with `add_cli_args`. Other names of the namespace are ignored."""
        known = {f.dest for f in _flags()}
        return build_args(
            engine_args({name: value for name, value in vars(args).items() if name in known and value is not None})
        )


class AsyncEngineArgs(EngineArgs):
    """The same. enable_log_requests: in Python the program logs its requests."""


def _flags() -> list[Flag]:
    others = ("Frontend", *GONE)
    return [f for f in table().values() if f.option.group not in others and f.option.tier != "own"]
