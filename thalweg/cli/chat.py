"""`thalweg chat`: a conversation in the terminal, with a model started for it or, with --url, with a running server."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import Any, Protocol

from thalweg.cli import common, flags, sampling
from thalweg.cli.local import Local, to_terminal
from thalweg.cli.remote import Remote
from thalweg.errors import ConfigError, RequestError
from thalweg.host import envs
from thalweg.params import RequestOutputKind

Messages = list[dict[str, str]]


class Partner(Protocol):
    def answer(self, messages: Messages, write: Callable[[str], object]) -> str: ...


def run(words: list[str]) -> int:
    namespace = common.parse("chat", words, _arguments, about="Talk to a model, here or on a running server.")
    sampling.params(namespace, {})
    messages: Messages = [{"role": "system", "content": namespace.system_prompt}] if namespace.system_prompt else []
    with _partner(namespace) as partner:
        if namespace.quick is not None:
            return _quick(partner, messages, namespace.quick)
        return _loop(partner, messages)


def _arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("model_tag", nargs="?", metavar="MODEL", help="model to start; left out: thalweg-nano")
    parser.add_argument("--url", help="talk to the server at this address instead (http://localhost:8000)")
    parser.add_argument("--model-name", help="with --url: which of its models; left out: the first")
    parser.add_argument("--api-key", help="with --url: the key to send; left out: OPENAI_API_KEY")
    parser.add_argument("--system-prompt", help="system message placed first")
    parser.add_argument("-q", "--quick", metavar="MESSAGE", help="send one message, print the answer, end")
    sampling.add(parser)


def _partner(namespace: argparse.Namespace) -> AbstractContextManager[Partner]:
    if namespace.url is not None:
        if namespace.model_tag is not None:
            raise ConfigError("MODEL: with --url the server has the model; use --model-name to choose one of its models")
        if flags.given_names(namespace):
            raise ConfigError(
                *(f"{f}: is for an engine started here, and --url says there is one" for f in flags.given_names(namespace))
            )
        key = namespace.api_key or envs.client_api_key()
        given = {n: v for n in sampling.NAMES if (v := getattr(namespace, n)) is not None}
        if "sampling_seed" in given:
            given["seed"] = given.pop("sampling_seed")
        return nullcontext(Remote(common.base_address("--url", namespace.url), key, namespace.model_name, given))
    for name in ("model_name", "api_key"):
        if getattr(namespace, name) is not None:
            raise ConfigError(f"--{name.replace('_', '-')}: is for --url, and no --url is given")
    args = common.engine_args(namespace, namespace.model_tag)
    if args.skip_tokenizer_init:
        raise ConfigError("--skip-tokenizer-init: chat works with text and needs the tokenizer")
    common.say_bundled(args)
    return _Here(args, namespace)


class _Here(Local):
    """A model started for this conversation."""

    def __enter__(self) -> _Here:
        super().__enter__()
        return self

    def __init__(self, args: Any, namespace: argparse.Namespace) -> None:
        super().__init__(args)
        self._namespace = namespace

    def answer(self, messages: Messages, write: Callable[[str], object]) -> str:
        chat = self.engine.chat
        if chat is None or chat.source is None:
            raise ConfigError("chat: this model has no chat template; use `thalweg generate`")
        params = sampling.params(self._namespace, self.engine.default_sampling, output_kind=RequestOutputKind.DELTA)
        return self.say(chat.prompt(messages), params, write)


def _quick(partner: Partner, messages: Messages, message: str) -> int:
    messages.append({"role": "user", "content": message})
    if sys.stdout.isatty():
        partner.answer(messages, to_terminal)
        print()
    else:
        print(partner.answer(messages, lambda text: None))
    return 0


def _loop(partner: Partner, messages: Messages) -> int:
    print("Type a message; Ctrl-C stops an answer, Ctrl-D ends.", file=sys.stderr)
    while True:
        try:
            line = input("> " if sys.stdin.isatty() else "")
        except EOFError:
            return 0
        if not line.strip():
            continue
        messages.append({"role": "user", "content": line})
        try:
            answer = partner.answer(messages, to_terminal)
        except KeyboardInterrupt:
            messages.pop()
            print("\n(stopped; that message is forgotten)", file=sys.stderr)
            continue
        except RequestError as e:  # too long, say: the conversation so far is still good
            messages.pop()
            print(f"thalweg: error: {e}", file=sys.stderr)
            continue
        print()
        messages.append({"role": "assistant", "content": answer})
