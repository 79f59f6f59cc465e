"""`thalweg chat`: a conversation in the terminal, with a model started for it or, with --url, with a running server."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Any

from thalweg.cli import common, flags, sampling
from thalweg.cli.local import Local
from thalweg.cli.remote import Remote
from thalweg.cli.talk import ChatBackend, Messages, Screen, Session, read_line
from thalweg.config import USES, EngineArgs
from thalweg.errors import ConfigError
from thalweg.host import envs
from thalweg.params import RequestOutputKind
from thalweg.template.select import Templates
from thalweg.turns.events import Event, Message

OWN = frozenset({"tool-call-parser", "reasoning-parser"})
"""Flags of the server that this command has itself."""


def run(words: list[str]) -> int:
    about = "Talk to a model, here or on a running server."
    namespace = common.parse("chat", words, _arguments, about=about, skip=OWN)
    tools = _tools(namespace.tools)
    sampling.params(sampling.read_flags(namespace), {})
    messages: Messages = [{"role": "system", "content": namespace.system_prompt}] if namespace.system_prompt else []
    with _partner(namespace, tools) as partner:
        if namespace.quick is not None:
            return _quick(partner, messages, namespace.quick)
        print("Type a message. /help lists commands. Ctrl-C stops an answer, Ctrl-D ends.", file=sys.stderr)
        Session(partner, messages, read_line, _check).run()
        return 0


def _check(values: dict[str, Any]) -> None:
    sampling.params(values, {})


def _arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("model_tag", nargs="?", metavar="MODEL", help="model to start; left out: thalweg-nano")
    remote_arguments(parser)
    parser.add_argument("--system-prompt", help="system message placed first")
    parser.add_argument("-q", "--quick", metavar="MESSAGE", help="send one message, print the answer, end")
    parser.add_argument("--tools", metavar="FILE", help="JSON list of functions the model may call; results are typed")
    parser.add_argument("--tool-call-parser", metavar="NAME", help="with MODEL: how calls are read; left out: by the template")
    parser.add_argument("--reasoning-parser", metavar="NAME", help="with MODEL: how reasoning is read")
    sampling.add(parser)


def remote_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--url", help="talk to the server at this address instead (http://localhost:8000)")
    parser.add_argument("--model-name", help="with --url: which of its models; left out: the first")
    parser.add_argument("--api-key", help="with --url: the key to send; left out: OPENAI_API_KEY")


def _tools(file: str | None) -> list[dict[str, Any]] | None:
    """The functions of --tools, in OpenAI's form. ConfigError."""
    if file is None:
        return None
    try:
        found = json.loads(Path(file).read_text(encoding="utf-8"))
        if not isinstance(found, list) or not all(isinstance(t, dict) for t in found):
            raise ValueError("it must hold a JSON list of objects")
    except (OSError, ValueError) as e:
        raise ConfigError(f"--tools: {file!r}: {e}") from None
    return [t if "function" in t else {"type": "function", "function": t} for t in found]


def remote_of(namespace: argparse.Namespace) -> Remote | None:
    """The server that --url names. None without it. ConfigError for flags that belong to the other case."""
    if namespace.url is None:
        for name in ("model_name", "api_key"):
            if getattr(namespace, name) is not None:
                raise ConfigError(f"--{name.replace('_', '-')}: is for --url, and no --url is given")
        return None
    if namespace.model_tag is not None:
        raise ConfigError("MODEL: with --url the server has the model; use --model-name to choose one of its models")
    if flags.given_names(namespace):
        raise ConfigError(
            *(f"{f}: is for an engine started here, and --url says there is one" for f in flags.given_names(namespace))
        )
    key = namespace.api_key or envs.client_api_key()
    return Remote(common.base_address("--url", namespace.url), key, namespace.model_name, sampling.read_flags(namespace))


def _partner(namespace: argparse.Namespace, tools: list[dict[str, Any]] | None) -> AbstractContextManager[ChatBackend]:
    if namespace.url is not None:
        for name in ("tool_call_parser", "reasoning_parser"):
            if getattr(namespace, name) is not None:
                raise ConfigError(f"--{name.replace('_', '-')}: is for an engine started here, and --url says there is one")
    remote = remote_of(namespace)
    if remote is not None:
        remote.tools = tools
        return nullcontext(remote)
    args = common.engine_args(namespace, namespace.model_tag)
    if args.skip_tokenizer_init:
        raise ConfigError("--skip-tokenizer-init: chat works with text and needs the tokenizer")
    common.say_bundled(args)
    return _LocalChat(args, sampling.read_flags(namespace), tools, namespace.tool_call_parser, namespace.reasoning_parser)


class _LocalChat(Local):
    """A model started for this conversation."""

    def __init__(
        self,
        args: EngineArgs,
        given: dict[str, Any],
        tools: list[dict[str, Any]] | None,
        calls: str | None,
        thoughts: str | None,
    ) -> None:
        super().__init__(args)
        self.sampling = given
        self._tools, self._parsers = tools, (calls, thoughts)

    def __enter__(self) -> _LocalChat:
        super().__enter__()
        return self

    def answer(self, messages: Messages, show: Callable[[Iterable[Event]], None]) -> Message:
        from thalweg.turns.bind import bind
        from thalweg.turns.choose import choose
        from thalweg.turns.reader import Reader

        chat, tokenizer, tasks = self.engine.chat, self.engine.tokenizer, self.engine.config.model.tasks
        if "generate" not in tasks:
            raise ConfigError(f"MODEL: it does not generate text: use {USES[tasks[0]]}")
        source = None if chat is None else chat.templates.pick(bool(self._tools))
        if chat is None or tokenizer is None or source is None:
            missing = Templates() if chat is None else chat.templates
            other = "`thalweg serve --chat-template NAME`, " if missing.named else ""
            raise ConfigError(f"chat: {missing.say_missing()}; use {other}`thalweg generate` or `thalweg complete`")
        turn = choose(*self._parsers, source, tokenizer.response_template, chat.writer(source))
        bound = bind(turn if self._tools else turn.without_calls(), tokenizer)
        prompt = chat.prompt(messages, self._tools)
        schemas = {t["function"]["name"]: t["function"].get("parameters") or {} for t in self._tools or ()}
        reader, values = Reader(bound, prompt["prompt"], schemas), Message()

        def take(events: list[Event]) -> None:
            values.add(events)
            show(events)

        marked = {"marked_token_ids": list(bound.marked)} if bound.marked else {}
        params = sampling.params(self.sampling, self.engine.default_sampling, output_kind=RequestOutputKind.DELTA, **marked)
        self.say(prompt, params, lambda text: take(reader.push(text)))
        take(reader.finish())
        return values


def _quick(partner: ChatBackend, messages: Messages, message: str) -> int:
    messages.append({"role": "user", "content": message})
    screen = Screen()
    if sys.stdout.isatty():
        partner.answer(messages, screen.show)
        screen.end()
        return 0
    values = partner.answer(messages, lambda events: None)
    calls = [f"-> {c.name}{c.arguments}" for c in values.calls]
    print("\n".join(filter(None, [values.content, *calls])))
    return 0
