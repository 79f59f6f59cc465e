"""The fleets of `ci/fleets.py`."""

from __future__ import annotations

from fleets.dynamo import Dynamo
from fleets.fleet import Fleet
from fleets.routers import ProductionStack, Smg, VllmRouter

FLEETS: tuple[type[Fleet], ...] = (Dynamo, VllmRouter, Smg, ProductionStack)
