"""`thalweg generate PROMPT`: one completion from an engine started for it."""

from __future__ import annotations

import argparse
import sys

from thalweg.cli import common, sampling
from thalweg.cli.local import Local, to_terminal
from thalweg.errors import ConfigError
from thalweg.params import RequestOutputKind

DEFAULT_TOKENS = 128


def run(words: list[str]) -> int:
    namespace = common.parse("generate", words, _arguments, about="Complete one prompt and print the text.")
    args = common.engine_args(namespace)
    prompt = sys.stdin.read() if namespace.prompt == "-" else namespace.prompt
    if not prompt:
        raise ConfigError("PROMPT: must not be empty")
    if args.skip_tokenizer_init:
        raise ConfigError("--skip-tokenizer-init: generate works with text and needs the tokenizer")
    sampling.params(sampling.read_flags(namespace), {})  # before the model is loaded
    common.say_bundled(args, "--model MODEL")
    with Local(args) as local:
        defaults = {"max_tokens": DEFAULT_TOKENS, **local.engine.default_sampling}
        params = sampling.params(sampling.read_flags(namespace), defaults, output_kind=RequestOutputKind.DELTA)
        if sys.stdout.isatty():
            local.say(prompt, params, to_terminal)
            print()
        else:
            print(local.say(prompt, params, lambda text: None))
    return 0


def _arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("prompt", metavar="PROMPT", help="the text to continue; - reads standard input")
    sampling.add(parser)
