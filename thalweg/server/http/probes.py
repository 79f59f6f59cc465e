"""The paths of probes, for load balancers: no key is required, and any host name is accepted."""

from __future__ import annotations

READINESS = frozenset(("/readyz", "/health", "/ping"))
PROBES = READINESS | {"/livez"}
"""The only paths that never need a key."""


def probe_of(path: str) -> str:
    """The probe a path asks for, with or without a slash at its end. "": none."""
    path = path.removesuffix("/")
    return path if path in PROBES else ""
