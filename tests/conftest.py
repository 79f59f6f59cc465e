"""Shared by every test: the zoo of tiny models is importable as `zoo`, torch stays on one thread, chance is seeded."""

import os
import random
import sys
import zlib
from pathlib import Path

import hypothesis
import pytest

os.environ.setdefault("OMP_NUM_THREADS", "1")
sys.path.insert(0, str(Path(__file__).parent / "models"))

# A failure must come back when it is looked for: the same examples in every run; THALWEG_TEST_SEED draws others.
EXTRA_SEED = int(os.environ.get("THALWEG_TEST_SEED", "0"))
hypothesis.settings.register_profile("same-each-time", derandomize=not EXTRA_SEED, deadline=None)
hypothesis.settings.load_profile("same-each-time")


@pytest.fixture(autouse=True)
def _seeded(request: pytest.FixtureRequest) -> None:
    """Each test draws the numbers of its own name, whichever tests ran before it."""
    seed = zlib.crc32(request.node.nodeid.encode()) + EXTRA_SEED
    random.seed(seed)
    for name in ("numpy", "torch"):
        if module := sys.modules.get(name):
            module.manual_seed(seed) if name == "torch" else module.random.seed(seed % 2**32)
