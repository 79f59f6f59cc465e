"""Open lists: the names in a table of this package, and those that installed packages add by entry points. The object behind
a name is imported on first use. Knows none of the lists (`models.registry`, `quantization.registry`)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from importlib import import_module
from importlib.metadata import EntryPoint
from typing import Any

from thalweg.errors import UnsupportedModelError
from thalweg.hal.discovery import entry_points


@dataclass(frozen=True)
class PluginRegistry:
    """group: of the entry points ("NAME = package.module:attribute"). `here`: name -> "module:attribute"."""

    group: str
    here: Mapping[str, str]

    @cached_property
    def _outside(self) -> Mapping[str, EntryPoint]:
        """Entry points of installed packages. One with a name of `here` is ignored."""
        return {e.name: e for e in entry_points(group=self.group) if e.name not in self.here}

    @cached_property
    def _local(self) -> dict[str, str]:
        return {}

    def add(self, name: str, target: str) -> None:
        """Add a name for this process only, replacing an equal one. target: "module:attribute"."""
        self._local[name] = target

    def __contains__(self, name: str) -> bool:
        return name in self._local or name in self.here or name in self._outside

    def names(self) -> list[str]:
        return sorted({*self._local, *self.here, *self._outside})

    def targets(self) -> dict[str, str]:
        """Name -> "module:attribute"."""
        return {**{name: entry.value for name, entry in self._outside.items()}, **self.here, **self._local}

    def load(self, name: str) -> Any:
        """KeyError for an unknown name, UnsupportedModelError if a package's cannot be imported."""
        if (target := self._local.get(name) or self.here.get(name)) is not None:
            return import_attribute(target)
        entry = self._outside[name]
        try:
            return entry.load()
        except (ImportError, AttributeError) as e:
            raise UnsupportedModelError(f"{name}: {entry.value}, of an installed package, cannot be imported: {e}") from e


def import_attribute(where: str) -> Any:
    """The object at "module:attribute"."""
    module, _, attribute = where.partition(":")
    return getattr(import_module(module), attribute)
