"""The paths of probes, for load balancers: no key is required, and any host name is accepted."""

from __future__ import annotations

from starlette.types import Scope

READINESS = frozenset(("/ready", "/readyz", "/health", "/ping"))
PROBES = READINESS | {"/livez"}
"""The only paths that never need a key."""


def is_exposition(scope: Scope, root_path: str = "") -> bool:
    """Whether the request reads /metrics."""
    return scope["method"] in ("GET", "HEAD") and scope["path"].removeprefix(root_path) == "/metrics"


def probe_of(path: str) -> str:
    """The probe a path asks for, with or without a slash at its end. "": none."""
    path = path.removesuffix("/")
    return path if path in PROBES else ""
