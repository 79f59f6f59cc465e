"""/page/state: the page's data about the server. Constant facts, and current gauges."""

from __future__ import annotations

from typing import Any

from starlette.requests import Request
from starlette.responses import Response

import thalweg
from thalweg.server.core.serving import Serving
from thalweg.server.http.answer import respond
from thalweg.server.page.suggestions import suggest


async def state(serving: Serving, http: Request) -> Response:
    engine, why = serving.engine, serving.lifecycle.why_not_ready()
    generates = "generate" in engine.config.model.tasks
    chats = bool(engine.chat and engine.chat.source) or bool(serving.settings.chat_template)
    body = {
        "models": engine.model_names,
        "generates": generates,
        "chat": chats,
        "suggestions": suggest(engine.config.model.path, generates, chats),
        "facts": facts(serving),
        "sampling": engine.default_sampling,
        "state": "draining" if serving.lifecycle.draining else engine.state,
        "reason": why,
        "gauges": gauges(serving),
    }
    response = respond(body)
    response.headers["cache-control"] = "no-store"
    return response


def facts(serving: Serving) -> dict[str, str]:
    """In the order shown."""
    config = serving.engine.config
    model, device = config.model, config.device
    weights = f"{model.quantization} ({model.dtype})" if model.quantization else model.dtype
    return {
        "Device": f"{device.platform}, {device.name}" if device.name else device.platform,
        "Weights": weights,
        "Context": f"{model.max_len:,} tokens",
        "Version": thalweg.__version__,
    }


def gauges(serving: Serving) -> dict[str, Any] | None:
    """None: the engine has sent no stats yet, or is not to (--disable-log-stats)."""
    stats = serving.engine.stats()
    if stats is None:
        return None
    return {
        "running": stats.running,
        "waiting": stats.waiting + serving.admission.waiting + serving.engine.paused_requests,
        "cache": stats.blocks_used / max(1, stats.blocks_total),
        "generated": stats.generated_tokens,
        "prefix_queries": stats.prefix_queries,
        "prefix_hits": stats.prefix_hits,
    }
