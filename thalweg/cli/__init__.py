"""The command line. `main` picks a command and imports only that one, so that `--help` costs nothing."""

from __future__ import annotations

import logging
import sys
from collections.abc import Sequence
from importlib import import_module

import thalweg
from thalweg.errors import ConfigError, ThalwegError
from thalweg.host import envs, lossy

COMMANDS = {
    "serve": "start the OpenAI-compatible HTTP server",
    "generate": "complete one prompt and print the text",
    "complete": "continue texts typed in the terminal, here or on a running server",
    "run-batch": "answer a file of requests (OpenAI's batch format), without a server",
    "chat": "talk to a model, here or on a running server",
    "backends": "which platforms this machine has, and why not the others",
    "collect-env": "a report on system, libraries and platforms, for bug reports",
    "plan": "resources to serve a model: memory, the sequences that fit, the flag to change",
    "quantize": "write a dense model again with quantised weights: rounded, or calibrated on a text",
    "compile": "a model's kernels for devices that need not be here, so that the first start does not wait for them",
    "models": "supported architectures",
    "flags": "every flag of the server, honoured or refused, and how many of each",
    "as-vllm": "run a program written for vLLM, with thalweg under that name",
    "bench": "measure: latency, throughput, serve, startup, host",
    "eval": "judge: how many held-out answers of the bundled model's tasks are right",
}
MODULES = {"flags": "flag_status"}
"""Commands with another file name."""
NOT_HERE = ("launch", "serve-sla", "sweep", "server", "list", "pull", "run", "embed", "score")
"""Commands of vLLM and others that users may try."""


def main(argv: Sequence[str] | None = None) -> int:
    """Run a command. Returns its exit status: 0 done, 1 failed, 2 wrong usage, 130 interrupted."""
    words = list(sys.argv[1:] if argv is None else argv)
    name = words[0] if words else "--help"
    if name in ("-h", "--help", "help"):
        print(usage(), end="")
        return 0
    if name in ("-v", "-V", "--version", "version"):
        print(thalweg.__version__)
        return 0
    if name not in COMMANDS:
        why = "not in this version" if name in NOT_HERE else "no such command"
        print(f"thalweg: error: {name}: {why}; there are {', '.join(COMMANDS)}", file=sys.stderr)
        return 2
    if name == "serve":
        lossy.install()  # before anything holds the streams
    try:
        logging.basicConfig(
            level=envs.log_level(), format="%(levelname)s %(asctime)s %(name)s: %(message)s", datefmt="%H:%M:%S"
        )
        command = import_module(f"thalweg.cli.{MODULES.get(name, name.replace('-', '_'))}")
        return int(command.run(words[1:]) or 0)
    except ThalwegError as e:
        for problem in e.problems if isinstance(e, ConfigError) else (str(e),):
            print(f"thalweg: error: {problem}", file=sys.stderr)
        return 2 if isinstance(e, ConfigError) else 1
    except KeyboardInterrupt:
        return 130
    except BrokenPipeError:
        sys.stderr.close()  # the reader of our output has gone
        return 0


def usage() -> str:
    lines = [f"  {n:12} {text}" for n, text in COMMANDS.items()]
    return "usage: thalweg COMMAND [...]\n\n" + "\n".join(lines) + "\n\nthalweg COMMAND --help says more.\n"
