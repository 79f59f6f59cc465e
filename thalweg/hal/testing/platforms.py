"""Which platform the kit tests. Imports no framework."""

from __future__ import annotations

from importlib import import_module

from thalweg.errors import DeviceError
from thalweg.hal import discovery
from thalweg.hal.platform import Platform


def find(name: str) -> Platform:
    """An installed platform by its name, or `module:Class`, which needs no entry point. DeviceError says what is missing."""
    module, colon, attribute = name.partition(":")
    if not colon:
        return discovery.load(name)
    try:
        made: Platform = getattr(import_module(module), attribute)()
    except (ImportError, AttributeError) as e:
        raise DeviceError(f"device: {name!r} names no platform: {e}") from e
    return made
