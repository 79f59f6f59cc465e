"""Known names of architectures without a family here, with the missing feature. Loads no framework.

The list (`assets/models.json`) groups names by their missing feature. A name with a new family needs no change there: served
architectures are looked up first.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from functools import cache
from importlib.resources import files


@dataclass(frozen=True, slots=True)
class MissingReason:
    """Why a name is not served."""

    why: str
    fallback: bool
    """Does transformers' own module serve it?"""


@dataclass(frozen=True, slots=True)
class ArchitectureName:
    """A known architecture."""

    architecture: str
    field: bool
    """Is it one of the names that users of vLLM know? Others are classes of transformers."""
    missing: MissingReason | None
    """None: it had a family when the list was written."""


@cache
def table() -> dict[str, ArchitectureName]:
    """Every known name, served now or not. A row is [why, does the fallback serve them, tags, more names]."""
    rows = json.loads((files("thalweg") / "assets" / "models.json").read_text(encoding="utf-8"))
    result: dict[str, ArchitectureName] = {}
    for why, fallback, field, more in rows:
        lacks = MissingReason(why, fallback) if why else None
        result |= {name: ArchitectureName(name, name not in more, lacks) for name in (*field, *more)}
    return result


def missing(name: str) -> MissingReason | None:
    """None: the name is unknown."""
    found = table().get(name)
    return None if found is None else found.missing
