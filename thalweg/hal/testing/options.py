"""The command line of the conformance kit. A separate plugin, so that pytest knows the options before it has found the kit. It
also writes the file of --evidence, and does nothing for other tests."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

MODES = ("test", "perf", "support")


def pytest_addoption(parser: Any) -> None:
    group = parser.getgroup("thalweg")
    group.addoption(
        "--platform", default="reference", help="platform the kit tests: a name, or module:Class (default: reference)"
    )
    group.addoption("--platform-options", default="", help="its options, as a JSON object (default: its own defaults)")
    group.addoption("--mode", default="test", choices=MODES, help="test, perf (JSON lines) or support (a Markdown matrix)")
    group.addoption("--part", metavar="I/N", default="1/1", help="run the I-th of N parts of the chosen tests (default: 1/1)")
    group.addoption("--evidence", metavar="FILE", help="write there which kernels passed, for the support matrix")
    group.addoption("--evidence-level", default="executed", help="how far the kernels were taken (default: executed)")
    group.addoption("--evidence-for", default="", help="platforms these kernels serve (default: the one tested)")


def pytest_configure(config: Any) -> None:
    """Here, as a process that leaves the tests to xdist's workers does not load the kit's conftest."""
    if config.getoption("--evidence", None) and not hasattr(config, "workerinput"):
        from thalweg.hal.testing.evidence import EvidenceCollector

        config.pluginmanager.register(EvidenceCollector(), _COLLECTOR)


@pytest.hookimpl(tryfirst=True)
def pytest_sessionfinish(session: Any) -> None:
    """Before xdist waits for its workers to end: a run that was interrupted may have little time left."""
    config = session.config
    collector = config.pluginmanager.get_plugin(_COLLECTOR)
    if collector is None:
        return
    from thalweg.hal import discovery
    from thalweg.hal.testing.evidence import write

    who = config.getoption("--evidence-for") or discovery.load(config.getoption("--platform")).name
    write(Path(config.getoption("--evidence")), collector.cells, config.getoption("--evidence-level"), who.split(","))


_COLLECTOR = "thalweg.evidence"
