"""`thalweg as-vllm COMMAND ...`: a program written for vLLM, with thalweg under the name `vllm`."""

from __future__ import annotations

import sys

from thalweg.compat import environment
from thalweg.errors import ConfigError
from thalweg.host import envs, processes

USAGE = """usage: thalweg as-vllm COMMAND [ARGUMENT ...]

Runs COMMAND with a package `vllm` that is thalweg: `thalweg as-vllm python program.py`, or
`thalweg as-vllm lm_eval --model vllm ...`. A command that ends in .py is run by this Python. Refused where the real vllm is
installed. docs/compat.md says which names there are.
"""


def run(words: list[str]) -> int:
    if not words or words[0] in ("-h", "--help"):
        print(USAGE, end="")
        return 0 if words else 2
    command = [sys.executable, *words] if words[0].endswith(".py") else words
    try:
        processes.become(command, environment(envs.everything()))
    except OSError as e:
        raise ConfigError(f"COMMAND: {command[0]!r} cannot be run: {e.strerror or 'it is not there'}") from None
