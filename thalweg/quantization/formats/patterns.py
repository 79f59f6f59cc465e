"""Which layers a rule of a quantised checkpoint means. One table of the spellings, shared by the formats that use them."""

from __future__ import annotations

import re
from collections.abc import Iterable
from functools import lru_cache

CLASSES = frozenset({"Linear"})
"""Names of classes, where rules name those: every matrix that a format is asked about is one of a linear layer."""


def matches(layer: str, rules: Iterable[str]) -> bool:
    """Does some rule mean this layer? "re:" begins a regular expression that must match from the start of the name; a class
    means every linear layer; another rule is the layer's whole name, or that of a module it is in."""
    return any(_one(layer, rule) for rule in rules)


def _one(layer: str, rule: str) -> bool:
    if rule.startswith("re:"):
        return _compiled(rule.removeprefix("re:")).match(layer) is not None
    return rule in CLASSES or layer == rule or layer.startswith(f"{rule}.")


@lru_cache(maxsize=1024)
def _compiled(pattern: str) -> re.Pattern[str]:
    return re.compile(pattern)
