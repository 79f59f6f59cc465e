"""Values of a checkpoint's description, of the type that they must have. UnsupportedModelError names the key of any other."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NoReturn

from thalweg.errors import UnsupportedModelError

WHERE = "quantization_config"
MOST = 1 << 31


def names(settings: Mapping[str, Any], *keys: str, default: tuple[str, ...] = ()) -> tuple[str, ...]:
    """A list of names or rules under the first of these keys with a value. null counts as absent."""
    for key in keys:
        value = settings.get(key)
        if value is not None:
            if not isinstance(value, list | tuple) or not all(isinstance(v, str) for v in value):
                _wrong(key, "a list of names", value)
            return tuple(value)
    return default


def table(settings: Mapping[str, Any], key: str) -> Mapping[str, Any]:
    """null counts as empty."""
    value = settings.get(key)
    if value is not None and not isinstance(value, Mapping):
        _wrong(key, "an object", value)
    return value or {}


def tables(settings: Mapping[str, Any], key: str) -> Mapping[str, Mapping[str, Any]]:
    """Name -> settings. null counts as empty, also for the settings of a name."""
    return {name: table(table(settings, key), name) for name in table(settings, key)}


def float8_cache(scheme: Mapping[str, Any]) -> str:
    """`Format.cache` of a `kv_cache_scheme`: float8 with a scale for each layer, stored in the files, or nothing."""
    one = scheme.get("strategy", "tensor") == "tensor" and not scheme.get("dynamic")
    return "fp8_e4m3" if (scheme.get("type"), scheme.get("num_bits")) == ("float", 8) and one else ""


def number(value: object, key: str, least: int = 1) -> int:
    if not isinstance(value, int) or isinstance(value, bool) or not least <= value < MOST:
        _wrong(key, f"a whole number of {least} or more", value)
    return value


def _wrong(key: str, what: str, value: object) -> NoReturn:
    raise UnsupportedModelError(f"{WHERE}: {key}: must be {what}, not {value!r:.60}")
