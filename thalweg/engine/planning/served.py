"""What this version serves, for people: architectures, and a sentence on each."""

from __future__ import annotations

import inspect
from typing import Any

from thalweg.models import registry
from thalweg.plugins import imported


def listing() -> list[dict[str, Any]]:
    """By name: the architecture, the function that reads its configuration, and what its file says of it first."""
    return [
        {"architecture": name, "file": where.partition(":")[0], "family": where.rpartition(":")[2], "what": _said(where)}
        for name, where in sorted(registry.served().items(), key=lambda item: item[0].lower())
    ]


def _said(where: str) -> str:
    """The first sentence of the module that something lies in, on one line."""
    return " ".join((inspect.getdoc(inspect.getmodule(imported(where))) or "").split()).partition(". ")[0].removesuffix(".")
