"""/v1/load_lora_adapter and /v1/unload_lora_adapter."""

from __future__ import annotations

import logging
from typing import Annotated

from pydantic import Field
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response

from thalweg.server.core.schema import Flag, Int32, WireModel
from thalweg.server.core.serving import Serving
from thalweg.server.operators.query import check_query

log = logging.getLogger(__name__)
Name = Annotated[str, Field(min_length=1, max_length=255)]


class LoadRequest(WireModel):
    """An adapter to serve under a name."""

    lora_name: Name
    lora_path: Annotated[str, Field(min_length=1, max_length=4096)]
    load_inplace: Flag = False
    is_3d_lora_weight: Flag = False


class UnloadRequest(WireModel):
    """An adapter to forget."""

    lora_name: Name
    lora_int_id: Int32 | None = None


async def load(serving: Serving, http: Request) -> Response:
    """Answered when the adapter is read, checked and loaded."""
    check_query(http, ())
    requested = await serving.bodies.parse(http, lambda body: serving.fields.parse(LoadRequest, body))
    await serving.adapters.load(requested.lora_name, requested.lora_path, requested.load_inplace, requested.is_3d_lora_weight)
    log.info("adapter %r is loaded from %r", requested.lora_name, requested.lora_path)
    return PlainTextResponse(f"Success: LoRA adapter '{requested.lora_name}' added successfully.")


async def unload(serving: Serving, http: Request) -> Response:
    """Answered when new requests do not find the adapter. Running ones finish with it."""
    check_query(http, ())
    requested = await serving.bodies.parse(http, lambda body: serving.fields.parse(UnloadRequest, body))
    await serving.adapters.unload(requested.lora_name, requested.lora_int_id)
    log.info("adapter %r is unloaded", requested.lora_name)
    return PlainTextResponse(f"Success: LoRA adapter '{requested.lora_name}' removed successfully.")
