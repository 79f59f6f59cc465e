"""The whole server as a Ray Serve deployment: every route of `thalweg serve`, replicas and autoscaling by Serve.

from ray import serve
from thalweg.integrations.ray.serve import build_app

serve.run(build_app({"model": "Qwen/Qwen3-8B"}, num_replicas=2, ray_actor_options={"num_gpus": 1}))
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from starlette.types import ASGIApp

from thalweg.errors import ConfigError
from thalweg.integrations.embedded import EmbeddedServer, split_options

MOST_ONGOING = 256
"""Requests that Serve sends to a replica at once. Serve's default is 5, which would leave a batch almost empty."""

_apps: list[ASGIApp] = []
"""The application of the replica in this process: Serve gives each replica a process, and the builder no replica."""


class ServerReplica:
    """A replica: an engine, and the application that serves it."""

    async def __init__(self, options: Mapping[str, Any]) -> None:  # type: ignore[misc]
        self.server = await EmbeddedServer.start(options)
        _apps.append(self.server.app)

    async def check_health(self) -> None:
        """Serve replaces a replica whose engine is lost. An engine that restarts is not."""
        await self.server.engine.check_health()

    async def __del__(self) -> None:
        if hasattr(self, "server"):
            await self.server.stop()


def get_app() -> ASGIApp:
    """The application of the replica in this process. Serve calls it after the constructor."""
    return _apps[-1]


def build_app(options: Mapping[str, Any], **deployment: Any) -> Any:
    """A Serve application for `serve.run`. options: flags of `thalweg serve` with `_` for `-`, checked here. deployment:
    options of `serve.deployment`. A replica's own processes use its accelerators, so `num_gpus` is their number. ConfigError
    without Ray Serve."""
    split_options(options)
    serve = _import_serve()
    deployment = {"name": "thalweg", "max_ongoing_requests": MOST_ONGOING, **deployment}
    return serve.deployment(serve.ingress(get_app)(ServerReplica), **deployment).bind(dict(options))


def _import_serve() -> Any:
    try:
        from ray import serve
    except ImportError as e:
        raise ConfigError(f"Ray Serve is not installed ({e.name or e} is missing); pip install 'ray[serve]'") from None
    return serve
