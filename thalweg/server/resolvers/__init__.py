"""Resolvers find the adapter of a model name that the server does not serve yet.

A resolver is a function `(base, name, roots) -> path or None`: the base model's name, the name that a request gave as
`model`, and the folders of `--lora-root`, in one of which the path must lie. It runs on a thread. A resolver is a file here and
a line of `RESOLVERS`. Packages add theirs by entry points of the group `thalweg.adapter_resolvers`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from thalweg.plugins import PluginRegistry

Resolver = Callable[[str, str, Sequence[str]], str | None]
RESOLVERS = PluginRegistry("thalweg.adapter_resolvers", {"folder": "thalweg.server.resolvers.folder:resolve"})
"""Name, for `--lora-resolver` -> a `Resolver`."""
