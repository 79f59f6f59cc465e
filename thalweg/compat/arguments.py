"""EngineArgs under vLLM's names: the honoured ones, those that ask for what happens anyway, and refusals in words."""

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
    """Makes a thalweg EngineArgs: `EngineArgs(model=..., dtype=...)`. Arguments of vLLM that this version has not are accepted
    where they ask for what happens anyway. ConfigError names the others, with why and what to do instead."""

    def __new__(cls, model: str = BUNDLED, **fields: Any) -> MadeArgs:  # type: ignore[misc]
        return build_args(engine_args({"model": model, **fields}))

    @staticmethod
    def add_cli_args(parser: argparse.ArgumentParser) -> argparse.ArgumentParser:
        """Every engine flag of vLLM, with values written as for `thalweg serve`. What is not given is None."""
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
        """Of what `add_cli_args` parsed. Other names of the namespace are the program's own."""
        known = {f.dest for f in _flags()}
        return build_args(
            engine_args({name: value for name, value in vars(args).items() if name in known and value is not None})
        )


class AsyncEngineArgs(EngineArgs):
    """The same. enable_log_requests: in Python the program logs its requests."""


def _flags() -> list[Flag]:
    others = ("Frontend", *GONE)
    return [f for f in table().values() if f.option.group not in others and f.option.tier != "own"]
