"""Kinds of KV group and their policies: the blocks that a sequence needs, holds, may drop, and can be found again by.

A kind is one file and one line of `POLICIES`. Code outside this folder does not depend on the kind of a group
(`ci/group_kinds.py`).
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

from thalweg.engine.control.cache.groups.base import Group
from thalweg.engine.control.cache.groups.chunked import Chunked
from thalweg.engine.control.cache.groups.cross import Cross
from thalweg.engine.control.cache.groups.full import Full
from thalweg.engine.control.cache.groups.state import State
from thalweg.engine.control.cache.groups.window import Window
from thalweg.errors import ConfigError
from thalweg.hal.kv import KVKind, KVSpec

POLICIES: Mapping[KVKind, type[Group]] = MappingProxyType(
    {"full": Full, "latent": Full, "encoder": Full, "window": Window, "chunked": Chunked, "state": State, "cross": Cross}
)
"""By `KVSpec.kind`. Latent groups have other entries per token than full ones, and blocks of an encoder are empty. Both
concern only the device."""


def policy(spec: KVSpec) -> type[Group]:
    """The policy of a group. ConfigError if this version has none for its kind."""
    found = POLICIES.get(spec.kind)
    if found is None:
        raise ConfigError(f"cache: a KV group is of kind {spec.kind!r}; this version keeps {', '.join(POLICIES)}")
    return found


__all__ = ["POLICIES", "Group", "policy"]
