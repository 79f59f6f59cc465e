"""`thalweg complete`: texts typed in the terminal, continued by a model started for it or, with --url, by a running server."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable

from thalweg.cli import chat, common, sampling
from thalweg.cli.local import Local, to_terminal
from thalweg.cli.talk import read_line
from thalweg.errors import ConfigError, RequestError
from thalweg.params import RequestOutputKind

DEFAULT_TOKENS = 128
Write = Callable[[str], object]


def run(words: list[str]) -> int:
    namespace = common.parse("complete", words, _arguments, about="Continue texts, here or on a running server.")
    given = {"max_tokens": DEFAULT_TOKENS, **sampling.read_flags(namespace)}
    sampling.params(given, {})
    remote = chat.remote_of(namespace)
    if remote is not None:
        remote.sampling = given
        return _answer(remote.complete, namespace.quick)
    args = common.engine_args(namespace, namespace.model_tag)
    if args.skip_tokenizer_init:
        raise ConfigError("--skip-tokenizer-init: complete works with text and needs the tokenizer")
    common.say_bundled(args)
    with Local(args) as local:
        defaults = {"max_tokens": DEFAULT_TOKENS, **local.engine.default_sampling}
        params = sampling.params(sampling.read_flags(namespace), defaults, output_kind=RequestOutputKind.DELTA)
        return _answer(lambda text, write: local.say(text, params, write), namespace.quick)


def _arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("model_tag", nargs="?", metavar="MODEL", help="model to start; left out: thalweg-nano")
    chat.remote_arguments(parser)
    parser.add_argument("-q", "--quick", metavar="TEXT", help="continue one text, print the completion, end")
    sampling.add(parser)


def _answer(complete: Callable[[str, Write], str], quick: str | None) -> int:
    if quick is not None:
        if not quick:
            raise ConfigError("--quick: must not be empty")
        text = complete(quick, to_terminal if sys.stdout.isatty() else lambda piece: None)
        print("" if sys.stdout.isatty() else text)
        return 0
    print("Type a text to continue; Ctrl-C stops an answer, Ctrl-D ends.", file=sys.stderr)
    while True:
        try:
            line = read_line("> ")
        except EOFError:
            return 0
        if not line.strip():
            continue
        try:
            complete(line, to_terminal)
        except KeyboardInterrupt:
            print("\n(stopped)", file=sys.stderr)
            continue
        except RequestError as e:  # too long, say
            print(f"thalweg: error: {e}", file=sys.stderr)
            continue
        print()
