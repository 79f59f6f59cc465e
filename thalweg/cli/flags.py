"""The flags of `serve` and of every command that starts an engine: one table (thalweg.flag_table), three fates.

A flag is honoured (a field of EngineArgs or ServerSettings, or one of COMMAND), or refused with a reason, or unknown
and refused with the nearest name. Nothing is parsed and ignored. A flag that is honoured takes its default from the
settings class.
"""

from __future__ import annotations

import argparse
import difflib
import json
import re
import sys
from functools import cache, partial
from typing import Any, NoReturn

import msgspec

from thalweg.config import (
    CACHES_REFUSED,
    DTYPES,
    KV_CACHE_DTYPES,
    LOAD_FORMATS,
    LOAD_REFUSED,
    LOAD_STRATEGIES,
    LOGPROBS_MODES,
    POLICIES,
    PREFIX_HASHES,
    QUANTIZATIONS,
    RUNNERS,
    TOKENIZER_MODES,
    TOKENIZER_REFUSED,
    EngineArgs,
    check_args,
)
from thalweg.engine.planning.arguments import compiling
from thalweg.errors import ConfigError
from thalweg.flag_table import ANYWAY, GONE, REMOVED, Flag, table
from thalweg.flag_values import OWN_VALUES, VALUES, dotted, merge
from thalweg.host import envs
from thalweg.server.settings import ServerSettings

CHOICES = {
    "dtype": DTYPES,
    "kv_cache_dtype": tuple(KV_CACHE_DTYPES),
    "load_format": LOAD_FORMATS,
    "logprobs_mode": LOGPROBS_MODES,
    "mm_processor_cache_type": ("lru",),
    "prefix_caching_hash_algo": PREFIX_HASHES,
    "quantization": QUANTIZATIONS,
    "safetensors_load_strategy": LOAD_STRATEGIES,
    "runner": RUNNERS,
    "scheduling_policy": POLICIES,
    "tokenizer_mode": TOKENIZER_MODES,
}
"""Values of flags for which this version has fewer (or other) values than the field."""
REFUSED_VALUES = {
    "mm_processor_cache_type": CACHES_REFUSED,
    "load_format": LOAD_REFUSED,
    "safetensors_load_strategy": {"torchao": "torchao's checkpoints are known by their config.json; leave it out"},
    "tokenizer_mode": TOKENIZER_REFUSED,
}
"""Values of the field that a flag does not take here -> what to do instead."""
COMMAND = frozenset({*ANYWAY, "compilation_config", "config", "fail_on_environ_validation", "log_level", "optimization_level"})
"""Honoured by the command line itself, here or in common.parse, or what happens anyway (`flag_table.ANYWAY`)."""
_UNSET = object()


UNKNOWN = Flag("", (), "str", None, None, "", "", "")
ENGINE = frozenset(EngineArgs.__struct_fields__)
SERVER = frozenset(ServerSettings.__struct_fields__)


class Parser(argparse.ArgumentParser):
    """argparse with our error style: the flag's name, what is wrong, where to look. Exit status 2."""

    where = ""
    """Place of the words being parsed, if not the command line: a file, and a colon."""

    def error(self, message: str) -> NoReturn:
        message = message.removeprefix("argument ")
        print(f"{self.prog}: error: {self.where}{message}\n(try {self.prog} --help)", file=sys.stderr)
        raise SystemExit(2)


@cache
def known(taken: frozenset[str], *, server: bool, skip: frozenset[str]) -> argparse.ArgumentParser:
    """A parser, to be another's parent, of every flag of the table, honoured or not, so that each is recognised. Hidden from
    argparse's own help, which would be pages long. `taken`: options of the command's own, and `skip`: names of its own.
    `server` False: the server's own flags are not known."""
    parser = argparse.ArgumentParser(add_help=False, formatter_class=partial(argparse.HelpFormatter, width=80))
    for flag in table().values():
        if flag.name in skip or (not server and flag.group == "Frontend"):
            continue
        options = [o for o in flag.options if o not in taken]
        kwargs: dict[str, Any] = {"dest": flag.dest, "default": _UNSET, "help": argparse.SUPPRESS}
        if flag.type == "bool":
            parser.add_argument(*options, f"--no-{flag.name}", action=_OnOff, nargs=0, **kwargs)
            continue
        nargs = {"list": "+"}.get(flag.type)
        if flag.name == "hf-token" or not is_honoured(flag):
            nargs = "*" if flag.type == "list" else "?"
            kwargs["const"] = True
        if nargs == "*":
            del kwargs["const"]
        parser.add_argument(*options, nargs=nargs, type=_value(flag), metavar=flag.type.upper(), action=_Last, **kwargs)
    return parser


def is_honoured(flag: Flag) -> bool:
    """Does this version do what the flag asks?"""
    return flag.group not in GONE and (flag.dest in ENGINE or flag.dest in SERVER or flag.dest in COMMAND)


def _value(flag: Flag) -> Any:
    if not is_honoured(flag):
        return str
    choices = CHOICES.get(flag.dest, flag.choices if flag.type == "choice" else None)
    read = OWN_VALUES.get(flag.name, VALUES[flag.type])

    def convert(text: str) -> Any:
        if choices is None and text in ("None", "") and flag.type not in ("list", "json") and flag.default is None:
            return None
        try:
            value = read(text)
        except ValueError as e:
            raise argparse.ArgumentTypeError(str(e)) from None
        if (why := REFUSED_VALUES.get(flag.dest, {}).get(text)) is not None:
            raise argparse.ArgumentTypeError(f"{text}: {why}")
        if choices is not None and value not in choices:
            raise argparse.ArgumentTypeError(f"{text!r} is not one of {', '.join(choices)}")
        return value

    return convert


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
        elif self.dest == "middleware" and isinstance(before, list):
            values = before + values
        else:
            _warn_repeat(self, namespace)
        setattr(namespace, self.dest, values)


def _warn_repeat(action: argparse.Action, namespace: Any) -> None:
    if getattr(namespace, action.dest, _UNSET) is not _UNSET:
        print(f"warning: {action.option_strings[0]} is given more than once; the last one counts", file=sys.stderr)


def normalise(argv: list[str], parser: argparse.ArgumentParser) -> list[str]:
    """Underscores in names as dashes, dotted keys as JSON, -O3 as -O 3, and an error for a flag nobody knows."""
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
            out += [base, json.dumps(dotted(path, value))]
        else:
            out.append(base + equals + value)
    return out


def _unknown(parser: argparse.ArgumentParser, name: str, known: set[str]) -> NoReturn:
    near = difflib.get_close_matches(name, known, n=1, cutoff=0.6)
    parser.error(f"unknown flag {name}" + (f"; did you mean {near[0]}?" if near else "; --help=all lists what there is"))


def check_given(namespace: argparse.Namespace) -> None:
    """ConfigError naming every flag that was given and cannot be honoured. A warning for each that lost its effect."""
    problems = []
    for flag in table().values():
        value = getattr(namespace, flag.dest, _UNSET)
        if value is _UNSET or is_honoured(flag) or flag.asks_nothing(value):
            continue
        if flag.group == REMOVED:
            print(f"warning: --{flag.name} has no effect: {flag.refusal}", file=sys.stderr)
        else:
            problems.append(f"--{flag.name}: {flag.refusal}")
    if problems:
        raise ConfigError(*problems)


def given(namespace: argparse.Namespace, dest: str) -> Any:
    """The value of a flag that was given. None if it was not."""
    value = getattr(namespace, dest, _UNSET)
    return None if value is _UNSET else value


def given_names(namespace: argparse.Namespace) -> list[str]:
    """The engine flags that were given, as written on the command line."""
    return [f"--{n.replace('_', '-')}" for n in sorted(_given(namespace, ENGINE))]


def engine_args(namespace: argparse.Namespace) -> EngineArgs:
    """The engine's share of the flags, checked."""
    said = _given(namespace, COMMAND)
    presets = compiling(said.get("compilation_config"), said.get("optimization_level"))
    fields = {**envs.engine_fields(), **presets, **_given(namespace, ENGINE)}
    try:
        args = msgspec.convert(fields, EngineArgs)
    except msgspec.ValidationError as e:
        raise ConfigError(f"engine flags: {e}") from None
    check_args(args)
    return args


def server_settings(namespace: argparse.Namespace) -> dict[str, Any]:
    """The server's share, as fields of ServerSettings."""
    return _given(namespace, SERVER)


def _given(namespace: argparse.Namespace, names: frozenset[str]) -> dict[str, Any]:
    values = {n: getattr(namespace, n, _UNSET) for n in names}
    return {n: v for n, v in values.items() if v is not _UNSET and v is not None}


# ---------------------------------------------------------------- help


def show_help(prog: str, usage: str, own: str, topic: str | None, *, server: bool) -> str:
    """--help: the groups and what is honoured, briefly. --help=all, =Group, =keyword: the flags, each with its fate."""
    flags = [f for f in table().values() if f.group not in GONE and (server or f.group != "Frontend")]
    if topic is None:
        groups: dict[str, list[Flag]] = {}
        for f in flags:
            groups.setdefault(f.group, []).append(f)
        lines = [f"  {g:26} {sum(map(is_honoured, fs)):3} of {len(fs):3} flags supported" for g, fs in sorted(groups.items())]
        main = "\n".join(_line(f) for f in flags if is_honoured(f))
        more = f"{prog} --help=all | --help=<Group> | --help=<keyword>"
        return f"usage: {usage}\n\n{own}\nflags supported:\n{main}\n\ngroups (more: {more}):\n" + "\n".join(lines) + "\n"
    word = topic.lower().replace("_", "-")
    chosen = [f for f in flags if word == "all" or f.group.lower() == word]
    chosen = chosen or [f for f in flags if word.lstrip("-") in f.name or word in f.help.lower()]
    if not chosen:
        return f"no flag or group matches {topic!r}; {prog} --help lists the groups\n"
    return "\n".join(_line(f) + ("" if is_honoured(f) else f"\n      [not supported: {f.refusal}]") for f in chosen) + "\n"


def _line(flag: Flag) -> str:
    name = f"--{'[no-]' if flag.type == 'bool' else ''}{flag.name}"
    kind = "" if flag.type == "bool" else f" {flag.type.upper()}"
    choices = CHOICES.get(flag.dest, flag.choices)
    default = "" if flag.default is None else f" (default: {flag.default if flag.type != 'json' else json.dumps(flag.default)})"
    return f"  {name}{kind}\n      {flag.help}" + (f" [{', '.join(choices)}]" if choices else "") + default
