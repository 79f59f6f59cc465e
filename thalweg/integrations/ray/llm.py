"""The `server_cls` of Ray Serve LLM: `LLMConfig(server_cls="thalweg.integrations.ray.llm:LLMServer", ...)`.

Ray imports the types of requests from `vllm`. Without it, start programs with `thalweg as-vllm`.
"""

from __future__ import annotations

import copy
import json
from collections.abc import AsyncIterator
from typing import Any

from starlette.types import ASGIApp

from thalweg.integrations.embedded import EmbeddedServer, InProcessRequest

DROPPED = frozenset({"authorization", "content-length", "content-type", "host"})
"""Headers of the client that end at Ray's ingress."""


class LLMServer:
    """A replica under Ray's `LLMServerProtocol`. Requests go through the routes of `thalweg serve` in this process, so answers
    and errors are those of the server."""

    async def __init__(self, llm_config: Any) -> None:  # type: ignore[misc]
        """llm_config: Ray's LLMConfig. `engine_kwargs` are flags of `thalweg serve` with `_` for `-`."""
        self._config = llm_config
        await self.start()

    async def start(self) -> None:
        """ConfigError names a wrong option. Other errors are those of `AsyncLLM.start`."""
        loading = self._config.model_loading_config
        model = {"model": loading.model_source} if loading.model_source else {}
        # With direct streaming, clients reach the application by the names of their cluster.
        options = {"host": "0.0.0.0", **model, "served_model_name": [self._config.model_id], **self._config.engine_kwargs}
        self._server = await EmbeddedServer.start(options)

    async def llm_config(self) -> Any:
        return self._config

    async def check_health(self) -> None:
        await self._server.engine.check_health()

    async def chat(self, request: Any, raw_request_info: Any = None) -> AsyncIterator[Any]:
        async for part in self._answer("/v1/chat/completions", request, raw_request_info, "ChatCompletionResponse"):
            yield part

    async def completions(self, request: Any, raw_request_info: Any = None) -> AsyncIterator[Any]:
        async for part in self._answer("/v1/completions", request, raw_request_info, "CompletionResponse"):
            yield part

    async def embeddings(self, request: Any, raw_request_info: Any = None) -> AsyncIterator[Any]:
        async for part in self._answer("/v1/embeddings", request, raw_request_info, "EmbeddingResponse"):
            yield part

    async def score(self, request: Any, raw_request_info: Any = None) -> AsyncIterator[Any]:
        async for part in self._answer("/score", request, raw_request_info, "ScoreResponse"):
            yield part

    async def tokenize(self, request: Any, raw_request_info: Any = None) -> AsyncIterator[Any]:
        async for part in self._answer("/tokenize", request, raw_request_info, "TokenizeResponse"):
            yield part

    async def detokenize(self, request: Any, raw_request_info: Any = None) -> AsyncIterator[Any]:
        async for part in self._answer("/detokenize", request, raw_request_info, "DetokenizeResponse"):
            yield part

    async def _answer(self, path: str, request: Any, info: Any, whole: str) -> AsyncIterator[Any]:
        """Lines of a stream as they arrive, or one response object of Ray's type `whole`, or one ErrorResponse."""
        from ray.llm._internal.serve.core.configs import openai_api_models as types  # it needs `vllm`

        body = request.model_dump_json(exclude_unset=True).encode()
        given = {} if info is None else info.headers
        headers = {name: value for name, value in given.items() if name.lower() not in DROPPED}
        async with InProcessRequest(self._server.app, path, body, headers) as answer:
            if answer.status == 200 and answer.headers.get("content-type", "").startswith("text/event-stream"):
                async for chunk in answer.chunks():
                    yield chunk.decode()
                return
            content = json.loads(await answer.read())
            if answer.status == 200:
                yield getattr(types, whole)(**content)
            else:
                yield types.ErrorResponse(**{"error": {**content["error"], "code": answer.status}})

    async def reset_prefix_cache(self) -> None:
        await self._server.engine.reset_prefix_cache()

    async def sleep(self, **options: Any) -> None:
        await self._server.engine.sleep(**options)

    async def wakeup(self, **options: Any) -> None:
        await self._server.engine.wake_up(**options)

    async def is_sleeping(self) -> bool:
        return await self._server.engine.is_sleeping()

    async def pause(self, **options: Any) -> None:
        await self._server.engine.pause_generation(**options)

    async def resume(self, **options: Any) -> None:
        await self._server.engine.resume_generation(**options)

    async def is_paused(self) -> bool:
        return await self._server.engine.is_paused()

    async def start_profile(self) -> None:
        await self._server.engine.start_profile()

    async def stop_profile(self) -> None:
        await self._server.engine.stop_profile()

    async def __serve_build_asgi_app__(self) -> ASGIApp:
        """For direct streaming: the whole server."""
        return self._server.app

    @classmethod
    def get_deployment_options(cls, llm_config: Any) -> dict[str, Any]:
        """The deployment's options as given. `ray_actor_options` has the accelerators of a replica."""
        options: dict[str, Any] = copy.deepcopy(llm_config.deployment_config)
        if llm_config.runtime_env:
            actor = options.setdefault("ray_actor_options", {})
            actor["runtime_env"] = {**llm_config.runtime_env, **actor.get("runtime_env", {})}
        return options

    async def __del__(self) -> None:
        if hasattr(self, "_server"):
            await self._server.stop()
