"""The adapter of a name is the folder of that name in a root: `sql` is `ROOT/sql`."""

from __future__ import annotations

import os
from collections.abc import Sequence


def resolve(base: str, name: str, roots: Sequence[str]) -> str | None:
    """The first that exists. The caller checks where links lead. One folder has one name, so clients cannot make more."""
    if os.path.isabs(name) or os.path.normpath(name) != name:
        return None
    return next((path for root in roots if os.path.exists(path := os.path.join(root, name))), None)
