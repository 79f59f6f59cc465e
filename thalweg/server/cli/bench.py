"""`thalweg bench latency | throughput | host`: picks the benchmark; thalweg.bench does the measuring."""

from __future__ import annotations

import argparse
import sys
from importlib import import_module

from thalweg.errors import ConfigError
from thalweg.server.cli import common
from thalweg.server.cli.flags import Parser

KINDS = {
    "latency": "one fixed batch, again and again",
    "throughput": "many requests at once",
    "host": "what the control loop costs per step, with no model at all",
}
NOT_HERE = ("serve", "startup", "sweep", "mm-processor")


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
    if kind == "host":
        parser = Parser(prog="thalweg bench host", description=KINDS[kind])
        module.add_arguments(parser)
        module.main(parser.parse_args(words[1:]))
        return 0

    def own(parser: argparse.ArgumentParser) -> None:
        module.add_arguments(parser)
        for name in module.REFUSED:
            parser.add_argument(f"--{name}", dest=f"refused_{name}", nargs="?", const="", help=argparse.SUPPRESS)

    namespace = common.parse(f"bench {kind}", words[1:], own, about=f"Measure: {KINDS[kind]}.")
    refused = [n for n in module.REFUSED if getattr(namespace, f"refused_{n}") is not None]
    if refused:
        raise ConfigError(*(f"--{n} is not supported by this version; see docs/status.md" for n in refused))
    args = common.engine_args(namespace)
    common.say_bundled(args, "--model MODEL")
    module.main(namespace, args)
    return 0
