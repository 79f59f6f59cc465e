"""Optional packages: found and checked when they are wanted, and what is wrong with one told in a sentence."""

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
    """Around the import of an optional package. ImportError, with a reason, if it is not there or does not load. What
    a package raises while it is imported (no device, another torch, a library that is missing) costs its own kernels
    alone."""
    if sys.modules.get(name) is None and find_spec(name) is None:
        raise ImportError(f"{name} is not installed")
    try:
        yield
    except Exception as e:
        raise ImportError(f"{name} does not load: {_first_line(e)}") from e


def function(owner: ModuleType | type, name: str, *arguments: str) -> Callable[..., Any]:
    """A function (or class) of a module, or of a class, that takes arguments of these names. ImportError if there is
    none, or it does not take them. Then the package is older than what is written here, or another one of the same
    name."""
    found: Callable[..., Any] | None = getattr(owner, name, None)
    title = f"{owner.__name__} {getattr(owner, '__version__', '')}".rstrip()
    if found is None:
        raise ImportError(f"{title} has no {name}: it is too old, or another package of that name")
    have = inspect.signature(found).parameters
    missing = [a for a in arguments if a not in have]
    if missing and not any(p.kind is p.VAR_KEYWORD for p in have.values()):
        raise ImportError(f"{title}: {name} takes no {', '.join(missing)}: it is too old")
    return found


def _first_line(e: Exception) -> str:
    text = f"{e}".strip()
    return text.splitlines()[0] if text else type(e).__name__
