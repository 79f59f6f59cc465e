"""Prompts and parameters as lists: one of each per request."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from thalweg.errors import RequestError

Prompt = str | Mapping[str, Any] | list[int]
"""Text, {"prompt": text}, {"prompt_token_ids": ids}, or ids. Mappings may add "cache_salt"."""


def as_list(prompts: Any) -> list[Any]:
    """One prompt or many. A list of ints is one prompt."""
    if isinstance(prompts, str | Mapping) or (isinstance(prompts, list) and prompts and isinstance(prompts[0], int)):
        return [prompts]
    return list(prompts)


def per_prompt(name: str, given: Any, n: int, default: Callable[[], Any]) -> list[Any]:
    """`given`, one for each of n prompts. None: `default()` for each. RequestError for a list of another length."""
    if given is None:
        return [default() for _ in range(n)]
    if not isinstance(given, Sequence):
        return [given] * n
    if len(given) != n:
        raise RequestError(f"{name}: {len(given)} given for {n} prompts", name)
    return list(given)
