"""The flags of `serve` and of every command that starts an engine: one table (thalweg.options.table), three fates.

A flag is honoured (a field of EngineArgs, ServerSettings or CommandOptions), or refused with a reason, or unknown and
refused with the nearest name. Nothing is parsed and ignored.
"""

from __future__ import annotations

import argparse
import difflib
import json
import re
import sys
from functools import cache, partial
from typing import Any, NoReturn

from thalweg.config import EngineArgs, check_args
from thalweg.engine.planning.arguments import compiling
from thalweg.errors import ConfigError
from thalweg.host import envs
from thalweg.options.command import CommandOptions
from thalweg.options.flag import Flag, convert, spell
from thalweg.options.table import GONE, REMOVED, asks_nothing, table
from thalweg.options.values import argument, merge, parse_dotted
from thalweg.server.settings import ServerSettings

_UNSET = object()


ENGINE = frozenset(EngineArgs.__struct_fields__)
SERVER = frozenset(ServerSettings.__struct_fields__)
COMMAND = frozenset(CommandOptions.__struct_fields__)


class Parser(argparse.ArgumentParser):
    """argparse with our error style: the flag's name, the problem, where to look. Exit status 2."""

    where = ""
    """Place of the words being parsed, if not the command line: a file, and a colon."""

    def error(self, message: str) -> NoReturn:
        message = message.removeprefix("argument ")
        print(f"{self.prog}: error: {self.where}{message}\n(try {self.prog} --help)", file=sys.stderr)
        raise SystemExit(2)


@cache
def flag_parser(taken: frozenset[str], *, server: bool, skip: frozenset[str]) -> argparse.ArgumentParser:
    """A parent parser with every flag of the table, honoured or not, so that each is recognised. Flags are hidden from
    argparse's help, which would be pages long. `taken`: options of the command itself. `skip`: its names. `server` False: the
    server's flags are unknown."""
    parser = argparse.ArgumentParser(add_help=False, formatter_class=partial(argparse.HelpFormatter, width=80))
    for flag in table().values():
        if flag.name in skip or (not server and flag.option.group == "Frontend"):
            continue
        options = [o for o in flag.spellings if o not in taken]
        kwargs: dict[str, Any] = {"dest": flag.dest, "default": _UNSET, "help": argparse.SUPPRESS}
        if flag.kind == "bool":
            parser.add_argument(*options, f"--no-{flag.name}", action=_OnOff, nargs=0, **kwargs)
            continue
        nargs = {"list": "+"}.get(flag.kind)
        if flag.bare:
            nargs = "*" if flag.kind == "list" else "?"
            kwargs["const"] = True
        if nargs == "*":
            del kwargs["const"]
        parser.add_argument(
            *options,
            nargs=nargs,
            type=argument(flag.value if flag.is_supported else str),
            metavar=flag.kind.upper(),
            action=_Extend if flag.option.repeats else _Last,
            **kwargs,
        )
    return parser


class _OnOff(argparse.Action):
    def __call__(self, parser: Any, namespace: Any, values: Any, option_string: str | None = None) -> None:
        _warn_repeat(self, namespace)
        setattr(namespace, self.dest, not (option_string or "").startswith("--no-"))


class _Last(argparse.Action):
    """The last of several wins, with a word about it. Keys of JSON objects are merged."""

    def __call__(self, parser: Any, namespace: Any, values: Any, option_string: str | None = None) -> None:
        before = getattr(namespace, self.dest, _UNSET)
        if isinstance(before, dict) and isinstance(values, dict):
            values = merge(before, values)
        else:
            _warn_repeat(self, namespace)
        setattr(namespace, self.dest, values)


class _Extend(argparse.Action):
    """The values of all."""

    def __call__(self, parser: Any, namespace: Any, values: Any, option_string: str | None = None) -> None:
        before = getattr(namespace, self.dest, _UNSET)
        setattr(namespace, self.dest, values if before is _UNSET else before + values)


def _warn_repeat(action: argparse.Action, namespace: Any) -> None:
    if getattr(namespace, action.dest, _UNSET) is not _UNSET:
        print(f"warning: {action.option_strings[0]} is given more than once; the last one counts", file=sys.stderr)


def normalise(argv: list[str], parser: argparse.ArgumentParser) -> list[str]:
    """Underscores in names as dashes, dotted keys as JSON, -O3 as -O 3, and an error for an unknown flag."""
    known = {o for a in parser._actions for o in a.option_strings}
    out: list[str] = []
    rest = iter(argv)
    for word in rest:
        if word == "--":
            return [*out, word, *rest]
        name, equals, value = word.partition("=")
        base, dot, path = name.partition(".")
        if not word.startswith("--"):
            if re.fullmatch("-O=?[0-9]", word):
                out += ["-O", word[-1]]
                continue
            if not (dot and word.startswith("-") and base in known):
                out.append(word)
                continue
        else:
            base = "--" + base[2:].replace("_", "-")
        if base not in known:
            _unknown(parser, base, known)
        if dot:
            if not equals:
                value = next(rest, "")
            out += [base, json.dumps(parse_dotted(path, value))]
        else:
            out.append(base + equals + value)
    return out


def _unknown(parser: argparse.ArgumentParser, name: str, known: set[str]) -> NoReturn:
    near = difflib.get_close_matches(name, known, n=1, cutoff=0.6)
    parser.error(f"unknown flag {name}" + (f"; did you mean {near[0]}?" if near else "; --help=all lists every flag"))


def check_given(namespace: argparse.Namespace) -> None:
    """ConfigError naming every flag that was given and cannot be honoured. A warning for each that lost its effect."""
    problems = []
    for flag in table().values():
        value = getattr(namespace, flag.dest, _UNSET)
        if value is _UNSET or flag.is_supported or asks_nothing(flag, value):
            continue
        if flag.option.group == REMOVED:
            print(f"warning: --{flag.name} has no effect: {flag.refusal}", file=sys.stderr)
        else:
            problems.append(f"--{flag.name}: {flag.refusal}")
    if problems:
        raise ConfigError(*problems)


def explicit_value(namespace: argparse.Namespace, dest: str) -> Any:
    """The value of a flag that was given. None if it was not."""
    value = getattr(namespace, dest, _UNSET)
    return None if value is _UNSET else value


def given_names(namespace: argparse.Namespace) -> list[str]:
    """The engine flags that were given, as written on the command line."""
    return [spell(n) for n in sorted(_explicit_values(namespace, ENGINE))]


def engine_args(namespace: argparse.Namespace) -> EngineArgs:
    """The engine's share of the flags, checked."""
    explicit = _explicit_values(namespace, COMMAND)
    presets = compiling(explicit.get("compilation_config"), explicit.get("optimization_level"))
    fields = {**envs.engine_fields(), **presets, **_explicit_values(namespace, ENGINE)}
    args = EngineArgs(**convert(EngineArgs, fields, spell))
    check_args(args)
    return args


def server_settings(namespace: argparse.Namespace) -> dict[str, Any]:
    """The server's share, as fields of ServerSettings. ConfigError lists values of a wrong type."""
    return convert(ServerSettings, _explicit_values(namespace, SERVER), spell)


def _explicit_values(namespace: argparse.Namespace, names: frozenset[str]) -> dict[str, Any]:
    values = {n: getattr(namespace, n, _UNSET) for n in names}
    return {n: v for n, v in values.items() if v is not _UNSET and v is not None}


# ---------------------------------------------------------------- help


def show_help(prog: str, usage: str, own: str, topic: str | None, *, server: bool) -> str:
    """--help: the groups and the honoured flags, briefly. --help=all, =Group, =keyword: the flags, each with its fate."""
    flags = [f for f in table().values() if f.option.group not in GONE and (server or f.option.group != "Frontend")]
    if topic is None:
        groups: dict[str, list[Flag]] = {}
        for f in flags:
            groups.setdefault(f.option.group, []).append(f)
        lines = [
            f"  {g:26} {sum(f.is_supported for f in fs):3} of {len(fs):3} flags supported" for g, fs in sorted(groups.items())
        ]
        main = "\n".join(_line(f) for f in flags if f.is_supported)
        more = f"{prog} --help=all | --help=<Group> | --help=<keyword>"
        return f"usage: {usage}\n\n{own}\nflags supported:\n{main}\n\ngroups (more: {more}):\n" + "\n".join(lines) + "\n"
    word = topic.lower().replace("_", "-")
    chosen = [f for f in flags if word == "all" or f.option.group.lower() == word]
    chosen = chosen or [f for f in flags if word.lstrip("-") in f.name or word in f.option.help.lower()]
    if not chosen:
        return f"no flag or group matches {topic!r}; {prog} --help lists the groups\n"
    return "\n".join(_line(f) + ("" if f.is_supported else f"\n      [not supported: {f.refusal}]") for f in chosen) + "\n"


def _line(flag: Flag) -> str:
    name = f"--{'[no-]' if flag.kind == 'bool' else ''}{flag.name}"
    kind = "" if flag.kind == "bool" else f" {flag.kind.upper()}"
    choices = f" [{', '.join(flag.option.choices)}]" if flag.option.choices else ""
    shown = json.dumps(flag.default) if flag.kind == "json" else flag.default
    default = "" if flag.default in (None, "", [], {}) else f" (default: {shown})"
    return f"  {name}{kind}\n      {flag.option.help}{choices}{default}"
