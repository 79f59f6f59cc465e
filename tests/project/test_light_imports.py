"""What must start fast starts without a tensor framework: seen in a fresh interpreter, not in the import graph."""

from __future__ import annotations

import configparser
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
HEAVY = ("torch", "transformers", "jax", "triton")
SHOW = f"import sys; print([m for m in {HEAVY} if m in sys.modules])"


def loaded(code: str) -> str:
    done = subprocess.run([sys.executable, "-c", f"{code}\n{SHOW}"], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout.strip().splitlines()[-1]


def test_importing_the_package_loads_nothing_heavy() -> None:
    assert loaded("import thalweg; thalweg.SamplingParams; thalweg.EngineArgs; thalweg.AsyncLLM; dir(thalweg)") == "[]"


@pytest.mark.slow
def test_every_module_under_the_framework_rule_loads_without_one() -> None:
    """Also what the rule cannot see: imports made by name, and by third-party packages."""
    rules = configparser.ConfigParser()
    rules.read(ROOT / ".importlinter")
    rooms = rules["importlinter:contract:no-framework"]["source_modules"].split()
    rooms.remove("thalweg.__main__")  # runs the command line when imported
    code = f"""
import importlib, pkgutil
for room in {rooms}:
    module = importlib.import_module(room)
    for found in pkgutil.walk_packages(getattr(module, '__path__', []), room + '.'):
        if not found.name.endswith(('__main__', 'integrations.dynamo.worker')):  # the latter needs Dynamo
            importlib.import_module(found.name)
"""
    assert loaded(code) == "[]"


def test_planning_loads_no_framework() -> None:
    assert loaded("import thalweg.engine.planning.memory, thalweg.engine.planning.resolve") == "[]"


def test_listing_platforms_loads_no_framework() -> None:
    assert loaded("from thalweg.hal import discovery; assert discovery.probe_all()") == "[]"


def test_help_loads_no_framework() -> None:
    code = "from thalweg.cli import main\ntry:\n    main(['serve', '--help'])\nexcept SystemExit:\n    pass"
    assert loaded(code) == "[]"


LATER = ("pooling", "responses", "batches", "anthropic", "cohere", "inference", "operators")


@pytest.mark.slow
def test_a_server_loads_dialects_for_models_that_have_them() -> None:
    """The bodies of one are a fifth of what the server imports."""
    found = "[m for m in sys.modules if m.split('.')[:2] == ['thalweg', 'server'] and m.split('.')[2:3] in "
    code = f"import sys, thalweg.server.app\nassert not {found}{[[name] for name in LATER]}]"
    assert loaded(code) == "[]"
