"""The fleets of `ci/fleets.py`."""

from __future__ import annotations

from fleets.dynamo import Dynamo, DynamoHandover
from fleets.fleet import Fleet
from fleets.ray_serve import RayServeConfig, RayServeLlm, RayServeLlmDirect
from fleets.routers import ProductionStack, Smg, VllmRouter, VllmRouterHandover

FLEETS: tuple[type[Fleet], ...] = (
    Dynamo, DynamoHandover, RayServeConfig, RayServeLlm, RayServeLlmDirect, VllmRouter, VllmRouterHandover, Smg,
    ProductionStack,
)  # fmt: skip
