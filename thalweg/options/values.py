"""How values are written on the command line: whole numbers with suffixes, JSON objects whole or by dotted keys."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from decimal import Decimal
from typing import Any

_HUMAN = re.compile(r"(-?\d+(?:\.\d+)?)([kmgtKMGT]?)")
_POWER = {"k": 1, "m": 2, "g": 3, "t": 4}


def argument(read: Callable[[str], Any]) -> Callable[[str], Any]:
    """`read` as argparse calls it: the words of a ValueError are shown to the user."""
    from argparse import ArgumentTypeError  # only commands parse arguments, and engine processes import this file

    def convert(word: str) -> Any:
        try:
            return read(word)
        except ValueError as e:
            raise ArgumentTypeError(str(e)) from None

    return convert


def human_int(text: str) -> int:
    """1234, 2k (2000), 1.5k (1500), 2K (2048). ValueError in words otherwise."""
    match = _HUMAN.fullmatch(text.strip())
    if not match:
        raise ValueError(f"{text!r} is not a whole number such as 4096, 25k or 32K")
    number, suffix = Decimal(match[1]), match[2]
    if suffix.isupper() and "." in match[1]:
        raise ValueError(
            f"{text!r}: {suffix} counts in powers of 1024 and requires a whole number; use {suffix.lower()} for decimals"
        )
    power = _POWER.get(suffix.lower(), 0)
    value = number * (1024**power if suffix.isupper() else 1000**power)
    if value != int(value):
        raise ValueError(f"{text!r} is not a whole number")
    return int(value)


def context_length(text: str) -> int:
    """human_int, or auto (-1): as much as fits."""
    return -1 if text.lower() == "auto" else human_int(text)


def integer(text: str) -> int:
    try:
        return int(text)
    except ValueError:
        raise ValueError(f"{text!r} is not a whole number") from None


def number(text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        raise ValueError(f"{text!r} is not a number") from None
    if value != value or value in (float("inf"), float("-inf")):
        raise ValueError(f"{text!r} is not a finite number")
    return value


def json_value(text: str) -> Any:
    """A JSON object or list."""
    try:
        value = json.loads(text)
    except json.JSONDecodeError as e:
        raise ValueError(f"not valid JSON: {e}") from None
    if not isinstance(value, dict | list):
        raise ValueError(f"must be a JSON object or list, not {text}")
    return value


def compilation(text: str) -> Any:
    """A JSON value, or only the mode."""
    return {"mode": int(text)} if text in ("0", "1", "2", "3") else json_value(text)


def parse_dotted(path: str, text: str) -> dict[str, Any]:
    """{"a": {"b": value}} of the key a.b. The value is JSON, or a human integer, or text. A key that ends in + makes
    a list, of the comma-separated values."""
    value: Any = [_loose(v) for v in text.split(",")] if path.endswith("+") else _loose(text)
    first, *deeper = path.removesuffix("+").split(".")
    for key in reversed(deeper):
        value = {key: value}
    return {first: value}


def _loose(text: str) -> Any:
    for read in (json.loads, human_int):
        try:
            return read(text)
        except ValueError:
            continue
    return text


def merge(a: dict[str, Any], b: dict[str, Any]) -> dict[str, Any]:
    """Both. b wins. Objects merge and lists under the same key join."""
    out = dict(a)
    for key, value in b.items():
        old = out.get(key)
        if isinstance(old, dict) and isinstance(value, dict):
            value = merge(old, value)
        elif isinstance(old, list) and isinstance(value, list):
            value = old + value
        out[key] = value
    return out


READERS: dict[str, Callable[[str], Any]] = {
    "bool": str,
    "str": str,
    "choice": str,
    "list": str,
    "int": integer,
    "float": number,
    "json": json_value,
    "human-int": human_int,
}
"""Kind of value -> its reader of one word."""
