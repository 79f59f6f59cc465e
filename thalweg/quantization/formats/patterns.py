"""Matching of layers by the rules of a quantised checkpoint. One table of the spellings, shared by the formats that use them:

| function | rule | written by |
|---|---|---|
| `matches` | the layer's whole name, a module it is in, a class, or "re:" and a regular expression | compressed-tensors, fp8 |
| `contains` | a part of the name | AWQ, bitsandbytes, GPTQ's blocks |
| `ends` | the end of the name, whole words | AutoRound |
| `globs` | a pattern of `fnmatch` | ModelOpt, Quark |
| `searched` | a regular expression that may begin anywhere | AutoRound |
| `signed` | "+:" or "-:" and a regular expression: separate settings, or dense | GPTQ's `dynamic` |

A rule may use the name of a fused product (qkv_proj), or that of a multimodal model's text part. Every rule is therefore
matched with all `spellings` of a layer. A rule for up_proj must not match gate_proj as gate_up_proj: only rules with a fused
name in them are matched with one.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from fnmatch import fnmatchcase
from functools import lru_cache
from typing import Any

from thalweg.errors import UnsupportedModelError

CLASSES = frozenset({"Linear"})
"""Names of classes, where rules name those: every matrix that a format is asked about is one of a linear layer."""
FUSED = {"qkv_proj": ("q_proj", "k_proj", "v_proj"), "gate_up_proj": ("gate_proj", "up_proj")}
"""Names of products that engines compute at once -> those of their parts."""
_IN_FUSED = {part: whole for whole, parts in FUSED.items() for part in parts}
_WORDS = ("qkv", "gate_up")
"""Parts of a rule for a fused name."""
SPECIAL = frozenset("*+?^$()[]{}|\\")
"""A name with one of these is a regular expression, where formats do not say which of the two it is."""


def spellings(layer: str, rule: str = "") -> tuple[str, ...]:
    """The names that this rule may have for this layer, its own first."""
    return _spellings(layer, any(word in rule for word in _WORDS))


@lru_cache(maxsize=8192)
def _spellings(layer: str, fused: bool) -> tuple[str, ...]:
    head, _, last = layer.rpartition(".")
    names = [layer, *([f"{head}.{_IN_FUSED[last]}"] if fused and last in _IN_FUSED else [])]
    for name in tuple(names):
        names.append(f"language_model.{name}")
        if name.startswith("model."):
            names.append(name.replace("model.", "model.language_model.", 1))
    return tuple(names)


def matches(layer: str, rules: Iterable[str]) -> bool:
    """Does some rule mean this layer? "re:" begins a regular expression that must match from the start of the name; a class
    means every linear layer; another rule is the layer's whole name, or that of a module it is in."""
    return any(_matches(spellings(layer, rule), rule) for rule in rules)


def contains(layer: str, rules: Iterable[str]) -> bool:
    """Does the layer's name contain some rule?"""
    return any(rule in name for rule in rules for name in spellings(layer, rule))


def ends(layer: str, rules: Iterable[str]) -> bool:
    """Is some rule the last words of the layer's name, which dots divide?"""
    return any(f".{name}".endswith(f".{rule}") for rule in rules for name in spellings(layer, rule))


def globs(layer: str, rules: Iterable[str]) -> bool:
    """Does some pattern ("*", "?", "[...]", upper case is not lower case) mean the layer, or a module that it is in?"""
    return any(fnmatchcase(name, rule) or fnmatchcase(name, f"{rule}.*") for rule in rules for name in spellings(layer, rule))


def searches(layer: str, rules: Iterable[str]) -> bool:
    """Does some regular expression match a part of the name?"""
    return any(compile_pattern(rule).search(name) for rule in rules for name in spellings(layer, rule))


def dynamic_override(layer: str, rules: Mapping[str, Any]) -> Mapping[str, Any] | None:
    """The first rule that means this layer decides: its settings, or None where the layer is dense ("-:"). An empty mapping:
    no rule means it. Without a sign a rule counts as "+:"."""
    for rule, settings in rules.items():
        pattern = compile_pattern(rule[2:] if rule[:2] in ("+:", "-:") else rule)
        if any(pattern.match(name) for name in spellings(layer, rule)):
            return None if rule.startswith("-:") else settings
    return {}


def _matches(names: Iterable[str], rule: str) -> bool:
    if rule.startswith("re:"):
        return any(compile_pattern(rule.removeprefix("re:")).match(name) for name in names)
    return rule in CLASSES or any(name == rule or name.startswith(f"{rule}.") for name in names)


@lru_cache(maxsize=1 << 14)
def compile_pattern(pattern: str) -> re.Pattern[str]:
    """UnsupportedModelError if it is no regular expression."""
    try:
        return re.compile(pattern)
    except re.error as e:
        raise UnsupportedModelError(f"quantization_config: {pattern!r:.80} is no regular expression: {e}") from e
