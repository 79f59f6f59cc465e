"""Kinds of KV group and their policies: which blocks a sequence needs, holds, may drop, and can be found again by.

A kind is one file and one line of `POLICIES`. Nothing outside this folder asks what kind a group is (`ci/group_kinds.py`).
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
"""By `KVSpec.kind`. A latent group differs from a full one in what a token's entry is, and an encoder's blocks hold nothing:
both are the device's business."""


def policy(spec: KVSpec) -> type[Group]:
    """The policy of a group. ConfigError if this version has none for its kind."""
    found = POLICIES.get(spec.kind)
    if found is None:
        raise ConfigError(f"cache: a KV group is of kind {spec.kind!r}; this version keeps {', '.join(POLICIES)}")
    return found


__all__ = ["POLICIES", "Group", "policy"]
