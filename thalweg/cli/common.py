"""Shared parts of commands that start an engine: the parser, the help, the notice about the bundled model."""

from __future__ import annotations

import argparse
import logging
import shutil
import sys
from collections.abc import Callable
from functools import partial

import msgspec

from thalweg.cli import config_file, flags
from thalweg.config import EngineArgs
from thalweg.errors import ConfigError
from thalweg.hal import discovery
from thalweg.host import envs
from thalweg.options.model import BUNDLED, BUNDLED_WORDS


def parse(
    command: str,
    words: list[str],
    own: Callable[[argparse.ArgumentParser], None],
    *,
    about: str,
    server: bool = False,
    skip: frozenset[str] = frozenset(),
) -> argparse.Namespace:
    """The command's own arguments (added by `own`) and the flags of the table, all checked. --help ends the program."""
    parser = parser_of(command, own, about=about, server=server, skip=skip, words=words)
    namespace = parser.parse_args(flags.normalise(words, parser))
    if server:
        config_file.fill(namespace, parser)
    if set_elsewhere := envs.foreign():
        if flags.explicit_value(namespace, "fail_on_environ_validation"):
            raise ConfigError(f"--fail-on-environ-validation: {set_elsewhere}")
        print(f"warning: {set_elsewhere}", file=sys.stderr)
    if (level := flags.explicit_value(namespace, "log_level")) is not None:
        logging.getLogger().setLevel(level.upper())
        envs.set_log_level(level)
    flags.check_given(namespace)
    return namespace


def parser_of(
    command: str, own: Callable[[argparse.ArgumentParser], None], *, about: str = "", server: bool = False,
    skip: frozenset[str] = frozenset(), words: list[str] | None = None,
) -> flags.Parser:  # fmt: skip
    """The parser of a command's arguments and of the table's flags. words: --help among them ends the program."""
    # Left to itself argparse asks for the terminal's width at every flag, of which there are hundreds.
    form = partial(argparse.HelpFormatter, width=shutil.get_terminal_size().columns - 2)
    result = partial(
        flags.Parser, prog=f"thalweg {command}", add_help=False, allow_abbrev=False, description=about, formatter_class=form
    )
    first = result()
    own(first)
    _maybe_help(first, words or [], server)
    taken = frozenset(o for a in first._actions for o in a.option_strings)
    return result(parents=[first, flags.flag_parser(taken, server=server, skip=skip)])


def _maybe_help(parser: argparse.ArgumentParser, words: list[str], server: bool) -> None:
    for word in words:
        if word == "--":
            return
        if word in ("-h", "--help") or word.startswith("--help="):
            topic = word.partition("=")[2] or None
            usage = parser.format_usage().removeprefix("usage: ").strip() + " [flags]"
            own = parser.format_help().split("\n\n", 1)[-1]
            print(flags.show_help(parser.prog, usage, own, topic, server=server), end="")
            raise SystemExit(0)


def engine_args(namespace: argparse.Namespace, positional: str | None = None) -> EngineArgs:
    """EngineArgs of the flags, with the positional model over --model. A named device is checked to exist."""
    args = flags.engine_args(namespace)
    if positional is not None:
        args = msgspec.structs.replace(args, model=positional)
    if not args.model:
        raise ConfigError("--model: must not be empty")
    written_out = ":" in args.device  # package.module:Class, a platform without an entry point
    if args.device != "auto" and not written_out and args.device not in discovery.names():
        raise ConfigError(f"--device: unknown platform {args.device!r}; there are auto, {', '.join(discovery.names())}")
    return args


def base_address(flag: str, url: str) -> str:
    """The base address of a running server, as OpenAI clients take it (http://localhost:8000/v1). No path means /v1."""
    if not url.startswith(("http://", "https://")):
        raise ConfigError(f"{flag}: {url!r} must begin with http:// or https://")
    url = url.rstrip("/")
    return url if "/" in url.partition("://")[2] else url + "/v1"


def say_bundled(args: EngineArgs, how: str = "MODEL") -> None:
    if args.model == BUNDLED:
        print(BUNDLED_WORDS.format(how=how), file=sys.stderr, flush=True)
