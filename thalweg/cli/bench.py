"""`thalweg bench latency | throughput | serve | sweep | front | startup | roofline | host`: picks the benchmark. thalweg.bench
measures."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from importlib import import_module
from typing import Any

from thalweg.cli import common
from thalweg.cli.flags import Parser, normalise
from thalweg.errors import ConfigError

KINDS = {
    "latency": "one fixed batch, again and again",
    "throughput": "many requests at once",
    "serve": "load on a running server: latencies, throughput, goodput",
    "startup": "from process start to the first token, cold and warm",
    "roofline": "how much of the device's bandwidth and arithmetic a model's steps use",
    "sweep": "serve over a grid of servers and loads, and a plot",
    "front": "processor time of the server's own process, per request and per token",
    "host": "cost of the control loop per step, without a model",
}
NOT_HERE = ("mm-processor",)
WITHOUT_ENGINE = ("front", "host", "serve", "sweep")
"""Kinds that take no engine flags."""


def run(words: list[str]) -> int:
    kind = words[0] if words else "--help"
    if kind in ("-h", "--help"):
        print("usage: thalweg bench KIND [...]\n\n" + "\n".join(f"  {k:12} {v}" for k, v in KINDS.items()))
        return 0
    if kind not in KINDS:
        why = "not in this version" if kind in NOT_HERE else "no such benchmark"
        print(f"thalweg bench: error: {kind}: {why}; there are {', '.join(KINDS)}", file=sys.stderr)
        return 2
    module = import_module(f"thalweg.bench.{kind}")
    if kind in WITHOUT_ENGINE:
        return _without_engine(kind, module, words[1:])

    def own(parser: argparse.ArgumentParser) -> None:
        module.add_arguments(parser)
        _add_refused(parser, module.REFUSED)

    namespace = common.parse(f"bench {kind}", words[1:], own, about=f"Measure: {KINDS[kind]}.")
    _check_refused(namespace, module.REFUSED)
    args = common.engine_args(namespace)
    common.say_bundled(args, "--model MODEL")
    if kind == "startup":
        module.main(namespace, args, _engine_words(words[1:], module))
    else:
        module.main(namespace, args)
    return 0


def _without_engine(kind: str, module: Any, words: list[str]) -> int:
    parser = Parser(prog=f"thalweg bench {kind}", description=f"Measure: {KINDS[kind]}.", allow_abbrev=False)
    module.add_arguments(parser)
    refused = getattr(module, "REFUSED", ())
    _add_refused(parser, refused)
    namespace = parser.parse_args(words if kind == "sweep" else normalise(words, parser))
    _check_refused(namespace, refused)
    module.main(namespace)
    return 0


def _engine_words(words: list[str], module: Any) -> list[str]:
    """Words other than the benchmark's own flags, for the servers it starts."""
    own = argparse.ArgumentParser(add_help=False, allow_abbrev=False)
    module.add_arguments(own)
    return own.parse_known_args(
        [w.replace("_", "-") if w.startswith("--num_") or w.startswith("--output_") else w for w in words]
    )[1]


def _add_refused(parser: argparse.ArgumentParser, names: Sequence[str]) -> None:
    for name in names:
        parser.add_argument(f"--{name}", dest=f"refused_{name}", nargs="*", help=argparse.SUPPRESS)


def _check_refused(namespace: argparse.Namespace, names: Sequence[str]) -> None:
    given = [n for n in names if getattr(namespace, f"refused_{n}") is not None]
    if given:
        raise ConfigError(*(f"--{n} is not supported by this version; remove the flag" for n in given))
