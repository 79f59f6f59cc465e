"""Names of architectures that are known and have no family here, with what is missing. Loads no framework.

The list (`assets/models.json`) groups names by what they lack. A name that gets a family needs no change there: what is served
is asked first.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from functools import cache
from importlib.resources import files


@dataclass(frozen=True, slots=True)
class Missing:
    """Why a name is not served."""

    why: str
    fallback: bool
    """Does transformers' own module serve it?"""


@cache
def table() -> dict[str, Missing]:
    """Every known name without regard to what is served."""
    rows = json.loads((files("thalweg") / "assets" / "models.json").read_text(encoding="utf-8"))
    return {name: Missing(why, fallback) for why, fallback, known in rows for name in known}


def missing(name: str) -> Missing | None:
    """None: nobody has said anything of this name."""
    return table().get(name)
