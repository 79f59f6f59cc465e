"""The whole server as a Ray Serve deployment: every route of `thalweg serve`, replicas and autoscaling by Serve.

from ray import serve
from thalweg.integrations.ray.serve import build_app

serve.run(build_app({"model": "Qwen/Qwen3-8B"}, num_replicas=2, ray_actor_options={"num_gpus": 1}))

A config file of Serve, and KubeRay's RayService, name `thalweg.integrations.ray.serve:build_from_config`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from starlette.types import ASGIApp

from thalweg.errors import ConfigError
from thalweg.host import envs
from thalweg.integrations.embedded import EmbeddedServer, split_options

MOST_ONGOING = 256
"""Requests that Serve sends to a replica at once. Serve's default is 5, which would leave a batch almost empty."""

_apps: list[ASGIApp] = []
"""The application of the replica in this process: Serve gives each replica a process, and the builder no replica."""


class ServerReplica:
    """A replica: an engine, and the application that serves it."""

    async def __init__(self, options: Mapping[str, Any]) -> None:  # type: ignore[misc]
        self.server = await EmbeddedServer.start({**find_defaults(), **options})
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


def find_defaults() -> dict[str, Any]:
    """Options of a replica that were not given: keys from its environment, and any name of the host, as Serve is reached by the
    names of its cluster."""
    return {"api_key": envs.api_keys(), "host": "0.0.0.0"}


def build_app(options: Mapping[str, Any], **deployment: Any) -> Any:
    """A Serve application for `serve.run`. options: flags of `thalweg serve` with `_` for `-`, checked here. deployment:
    options of `serve.deployment`. A replica's own processes use its accelerators, so `num_gpus` is their number. ConfigError
    without Ray Serve."""
    split_options(options)
    serve = _import_serve()
    deployment = {"name": "thalweg", "max_ongoing_requests": MOST_ONGOING, **deployment}
    return serve.deployment(serve.ingress(get_app)(ServerReplica), **deployment).bind(dict(options))


def build_from_config(config: Mapping[str, Any]) -> Any:
    """The application for `import_path` in a config file of Serve. config: its `args`, with `options` and `deployment` as those
    of `build_app`. ConfigError names other fields."""
    if unknown := sorted(set(config) - {"options", "deployment"}):
        raise ConfigError(f"args: unknown fields: {', '.join(unknown)}; there are options and deployment")
    for name, value in config.items():
        if not isinstance(value, Mapping):
            raise ConfigError(f"args: {name}: must be a mapping, not {type(value).__name__}")
    return build_app(config.get("options", {}), **config.get("deployment", {}))


def _import_serve() -> Any:
    try:
        from ray import serve
    except ImportError as e:
        raise ConfigError(f"Ray Serve is not installed ({e.name or e} is missing); pip install 'ray[serve]'") from None
    return serve
