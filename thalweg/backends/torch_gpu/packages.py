"""Optional packages: found and checked when they are wanted, with a one-sentence reason for a failure."""

from __future__ import annotations

import inspect
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from types import ModuleType
from typing import Any


@contextmanager
def loading(name: str) -> Iterator[None]:
    """Around the import of an optional package. ImportError, with a reason, if it is missing or does not load. An error during
    its import (no device, another torch, a missing library) costs only its own kernels."""
    if sys.modules.get(name) is None and find_spec(name) is None:
        raise ImportError(f"{name} is not installed")
    try:
        yield
    except Exception as e:
        raise ImportError(f"{name} does not load: {_first_line(e)}") from e


def function(owner: ModuleType | type, name: str, *arguments: str) -> Callable[..., Any]:
    """A function (or class) of a module, or of a class, with arguments of these names. ImportError if there is none, or it
    lacks an argument. Then the package is older than this code, or another one of the same name."""
    found: Callable[..., Any] | None = getattr(owner, name, None)
    title = f"{owner.__name__} {getattr(owner, '__version__', '')}".rstrip()
    if found is None:
        raise ImportError(f"{title} has no {name}: it is too old, or another package of that name")
    have = inspect.signature(found).parameters
    missing = [a for a in arguments if a not in have]
    if missing and not any(p.kind is p.VAR_KEYWORD for p in have.values()):
        raise ImportError(f"{title}: {name} has no argument {', '.join(missing)}: it is too old")
    return found


def _first_line(e: Exception) -> str:
    text = f"{e}".strip()
    return text.splitlines()[0] if text else type(e).__name__
