"""How a driver talks to the command that started it: JSON lines, on the streams it was started with. Standard library only, as
it runs under each engine's own Python.

    argv[1]           {"model": path, "form": ..., "threads": n, "kv_bytes": n, "max_len": n, ...}
    driver  ->        {"ready": true, "versions": {...}, "flags": {...}}     once the engine is loaded
    ->      driver    {"prompts": [[ids], ...], "new": n}                    as often as wanted; end of input ends it
    driver  ->        {"seconds": s, "tokens": [[ids], ...]}                 all requests sent at once; until the last is done
    driver  ->        {"error": "..."}                                       and it ends with status 1

What an engine prints to standard output goes to standard error instead.
"""

from __future__ import annotations

import json
import os
import sys
import time
import traceback
from collections.abc import Callable
from typing import Any, NamedTuple

Generate = Callable[[list[list[int]], int], list[list[int]]]
"""Prompts and the number of new tokens -> the new tokens of each."""


class Loaded(NamedTuple):
    generate: Generate
    versions: dict[str, str]
    flags: dict[str, Any]
    """What the engine was told, in its own names."""
    close: Callable[[], None] = lambda: None


def serve(load: Callable[[dict[str, Any]], Loaded]) -> None:
    """Load, say so, answer until the input ends."""
    out = os.fdopen(os.dup(1), "w")  # not inherited by the engine's processes
    os.dup2(2, 1)

    def say(message: dict[str, Any]) -> None:
        out.write(json.dumps(message) + "\n")
        out.flush()

    try:
        loaded = load(json.loads(sys.argv[1]))
        say({"ready": True, "versions": loaded.versions, "flags": loaded.flags})
        try:
            for line in sys.stdin:
                ask = json.loads(line)
                start = time.perf_counter()
                tokens = loaded.generate(ask["prompts"], ask["new"])
                say({"seconds": time.perf_counter() - start, "tokens": tokens})
        finally:
            loaded.close()
    except Exception as e:
        traceback.print_exc()
        say({"error": f"{type(e).__name__}: {e}"})
        sys.exit(1)


def versions(*packages: str) -> dict[str, str]:
    """Of installed distributions; those that are not installed are left out."""
    from importlib import metadata

    found = {}
    for name in packages:
        try:
            found[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            continue
    return found
