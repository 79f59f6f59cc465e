"""Shared by every test: the zoo of tiny models is importable as `zoo`, torch stays on one thread, chance is seeded."""

import gc
import logging
import os
import random
import sys
import zlib
from pathlib import Path

import amounts
import hypothesis
import pytest

os.environ.setdefault("OMP_NUM_THREADS", "1")
# No test meets a certificate of the system's. An HTTP client reads all of them when it is made, unless they lie in a folder.
os.environ.pop("SSL_CERT_FILE", None)
os.environ["SSL_CERT_DIR"] = str(Path(__file__).parent)
sys.path.insert(0, str(Path(__file__).parent / "models"))

# A failure must come back when it is looked for: the same examples in every run; THALWEG_TEST_SEED draws others.
EXTRA_SEED = int(os.environ.get("THALWEG_TEST_SEED", "0"))

# Collection imports a million objects that live to the end: the garbage collector need not look for them, then or later.
gc.disable()


SLOW_SECONDS = 1200
"""What stops a slow test that hangs. A busy machine takes several times as long as a quiet one, and that is no failure."""


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--nightly", action="store_true", help="run the tests marked nightly too")


def pytest_configure(config: pytest.Config) -> None:
    amounts.whole = config.option.markexpr != "not slow"
    hypothesis.settings.register_profile(
        "same-each-time", derandomize=not EXTRA_SEED, deadline=None, max_examples=amounts.some(30, 100)
    )
    hypothesis.settings.load_profile("same-each-time")


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    _sample(items)
    later = [] if config.option.nightly else [i for i in items if i.get_closest_marker("nightly")]
    if later:
        config.hook.pytest_deselected(items=later)
        items[:] = [i for i in items if not i.get_closest_marker("nightly")]
    for item in items:
        if any(map(item.get_closest_marker, ("slow", "nightly"))) and not item.get_closest_marker("timeout"):
            item.add_marker(pytest.mark.timeout(SLOW_SECONDS))


def _sample(items: list[pytest.Item]) -> None:
    """Marks slow the cases of a test beyond the first number of its marker `sampled`, and nightly those beyond the second. The
    kept ones are evenly spaced."""
    cases: dict[str, list[pytest.Item]] = {}
    for item in items:
        if item.get_closest_marker("sampled"):
            cases.setdefault(item.nodeid.partition("[")[0], []).append(item)
    for of_test in cases.values():
        for wanted, mark in zip(of_test[0].get_closest_marker("sampled").args, ("slow", "nightly"), strict=False):
            kept = {round(i * len(of_test) / wanted) for i in range(wanted)}
            for i, item in enumerate(of_test):
                if i not in kept:
                    item.add_marker(getattr(pytest.mark, mark))


def pytest_collection_finish() -> None:
    for known in list(logging.root.manager.loggerDict.values()):
        if isinstance(known, logging.Logger):
            known.propagate = True  # else pytest adds handlers to each before every test: torch makes dozens
    gc.freeze()
    gc.enable()


@pytest.fixture(autouse=True)
def _seeded(request: pytest.FixtureRequest) -> None:
    """Each test draws the numbers of its own name, whichever tests ran before it."""
    seed = zlib.crc32(request.node.nodeid.encode()) + EXTRA_SEED
    random.seed(seed)
    if numpy := sys.modules.get("numpy"):
        numpy.random.seed(seed % 2**32)
    if torch := sys.modules.get("torch"):
        torch.default_generator.manual_seed(seed)  # tests draw on the host; asking every device's takes 20 times as long
