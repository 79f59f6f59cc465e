"""`thalweg eval nano`: how many held-out answers of the bundled model's tasks are right, of a model here or of a
server."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from thalweg.cli import common, flags
from thalweg.config import EngineArgs
from thalweg.errors import ConfigError
from thalweg.host import envs

if TYPE_CHECKING:
    from thalweg.nano.example import Example

KINDS = {"nano": "the tasks of thalweg-nano, the bundled model: exact match per task"}


def run(words: list[str]) -> int:
    kind = words[0] if words else "--help"
    if kind in ("-h", "--help"):
        print("usage: thalweg eval KIND [...]\n\n" + "\n".join(f"  {k:12} {v}" for k, v in KINDS.items()))
        return 0
    if kind not in KINDS:
        raise ConfigError(f"eval: there is no {kind}; there are {', '.join(KINDS)}")
    namespace = common.parse(
        "eval nano", words[1:], _arguments, about=f"Judge a model: {KINDS[kind]}.", skip=frozenset({"seed"})
    )
    return _nano(namespace)


def _arguments(parser: argparse.ArgumentParser) -> None:
    from thalweg.nano.score import N

    parser.add_argument("model_tag", nargs="?", metavar="MODEL", help="model to judge; left out: the bundled one")
    parser.add_argument("--base-url", help="judge the server at this address instead (http://localhost:8000)")
    parser.add_argument("--model-name", help="with --base-url: which of its models; left out: the first")
    parser.add_argument("--api-key", help="with --base-url: the key to send; left out: OPENAI_API_KEY")
    parser.add_argument("--tasks", nargs="+", default=[], metavar="TASK", help="only these")
    parser.add_argument("--n", type=_positive, default=N, help=f"held-out prompts per task (default: {N})")
    parser.add_argument("--seed", dest="prompts_seed", type=int, default=0, help="of the prompts (default: 0)")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write everything, wrong answers too, to this file")


def _nano(namespace: argparse.Namespace) -> int:
    from thalweg.nano import score

    tasks = score.check_tasks([t for given in namespace.tasks for t in given.split(",") if t])
    if namespace.json and not namespace.json.parent.is_dir():
        raise ConfigError(f"--json: there is no directory {namespace.json.parent}")
    with _answerer(namespace) as (model, answer):
        found = []
        for s in score.scores(answer, tasks, namespace.n, namespace.prompts_seed):
            found.append(s)
            print(f"{s.task}: {100 * s.accuracy:.1f} %", file=sys.stderr, flush=True)
    print(score.table(found))
    if namespace.json:
        result = score.as_json(found, model=model, n=namespace.n, seed=namespace.prompts_seed)
        namespace.json.write_text(json.dumps(result, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
    return 0


@contextmanager
def _answerer(namespace: argparse.Namespace) -> Iterator[tuple[str, Callable[[Sequence[Example]], list[str]]]]:
    """The model's name, and whoever answers: a server, or an engine made for it."""
    from thalweg.nano.score import MAX_TOKENS

    if namespace.base_url is not None:
        if namespace.model_tag is not None:
            raise ConfigError("MODEL: with --base-url the server has the model; use --model-name to choose one of its models")
        if given := flags.given_names(namespace):
            raise ConfigError(*(f"{f}: is for an engine started here, and --base-url says there is one" for f in given))
        from thalweg.nano.remote import RemoteModel

        url, key = common.base_address("--base-url", namespace.base_url), namespace.api_key or envs.client_api_key()
        remote = RemoteModel(url, key, namespace.model_name, MAX_TOKENS)
        yield remote.model, remote.answer
        return
    for name in ("model_name", "api_key"):
        if getattr(namespace, name) is not None:
            raise ConfigError(f"--{name.replace('_', '-')}: is for --base-url, and no --base-url is given")
    args = common.engine_args(namespace, namespace.model_tag)
    if args.skip_tokenizer_init:
        raise ConfigError("--skip-tokenizer-init: the tasks are text and need the tokenizer")
    common.say_bundled(args)
    with engine(args) as answer:
        yield args.model, answer


@contextmanager
def engine(args: EngineArgs) -> Iterator[Callable[[Sequence[Example]], list[str]]]:
    from thalweg.llm import LLM
    from thalweg.nano.score import MAX_TOKENS
    from thalweg.params import SamplingParams

    llm = LLM.from_engine_args(args)
    greedy = SamplingParams(temperature=0.0, max_tokens=MAX_TOKENS)

    def answer(examples: Sequence[Example]) -> list[str]:
        prompts = [p for e in examples for p in llm.preprocess_chat(list(e.messages), tools=list(e.tools) or None)]
        return [o.outputs[0].text for o in llm.generate(prompts, greedy, use_tqdm=False)]

    try:
        yield answer
    finally:
        llm.shutdown()


def _positive(text: str) -> int:
    if not text.isdigit() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"{text!r} is not a number above 0")
    return int(text)
