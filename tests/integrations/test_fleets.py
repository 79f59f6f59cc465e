"""Serving systems of others in front of this server, those that are installed here. `ci/fleets.py` installs and runs all."""

from __future__ import annotations

import sys
from importlib.util import find_spec
from pathlib import Path

import pytest
from fleets import FLEETS
from fleets.claims import CLAIMS
from fleets.fleet import Environment, Fleet
from fleets.trial import judge

pytestmark = pytest.mark.nightly  # a fleet takes half a minute


@pytest.mark.parametrize("fleet", FLEETS, ids=lambda f: f.name)
def test_a_fleet_answers_as_the_server_does_and_survives_its_engines(fleet: type[Fleet]) -> None:
    if not fleet.modules or any(find_spec(name.partition(".")[0]) is None for name in fleet.modules):
        pytest.skip(f"not installed: {', '.join(fleet.modules) or fleet.name} (pip install 'thalweg[fleet-test]')")
    results = judge(fleet(), tuple(CLAIMS), None, environment=Environment(Path(sys.prefix)))
    assert {claim: why for claim, why in results.items() if why and not why.startswith("-")} == {}
