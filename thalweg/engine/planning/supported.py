"""The architectures of this version, for people, with a sentence on each. Also names that it knows and does not serve, with
the reason."""

from __future__ import annotations

import inspect
from typing import Any

from thalweg.models import names, registry
from thalweg.plugins import import_attribute


def listing() -> list[dict[str, Any]]:
    """By name: the architecture, the function that reads its configuration, and the summary of its file."""
    return [
        {"architecture": name, "file": where.partition(":")[0], "family": where.rpartition(":")[2], "what": _summary(where)}
        for name, where in sorted(registry.architectures().items(), key=lambda item: item[0].lower())
    ]


FATES = ("native", "fallback", "refused")
"""How an architecture is served: by a family, by transformers' own module, not at all."""


def known_architectures() -> list[dict[str, Any]]:
    """By name, every known architecture: as in `listing`, with `served` (of FATES) and `field` (a name that users of vLLM
    know)."""
    table = names.table()
    rows = {r["architecture"]: {**r, "served": "native", "field": False} for r in listing()}
    for name, known in table.items():
        if name in rows:
            rows[name]["field"] = known.field
        elif registry.has(name):
            what = "A decoder of this list, with another tail"
            rows[name] = _row(name, what, "native", known.field)
        else:
            lacks = known.missing
            fate = "fallback" if lacks is not None and lacks.fallback else "refused"
            rows[name] = _row(name, lacks.why[:1].upper() + lacks.why[1:] if lacks else "No family", fate, known.field)
    return [row for _, row in sorted(rows.items(), key=lambda item: item[0].lower())]


def counts() -> dict[str, int]:
    """Of the names that users of vLLM know: how many have each fate."""
    fates = [r["served"] for r in known_architectures() if r["field"]]
    return {fate: fates.count(fate) for fate in FATES}


def _row(name: str, what: str, fate: str, field: bool) -> dict[str, Any]:
    return {"architecture": name, "file": "", "family": "", "what": what, "served": fate, "field": field}


def _summary(where: str) -> str:
    """The first sentence of the module that something lies in, on one line."""
    return (
        " ".join((inspect.getdoc(inspect.getmodule(import_attribute(where))) or "").split())
        .partition(". ")[0]
        .removesuffix(".")
    )
