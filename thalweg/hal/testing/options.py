"""The command line of the conformance kit. A plugin of its own, so that pytest knows the options before it has found
the kit; it defines nothing else, and nothing at all for anybody else's tests."""

from __future__ import annotations

from typing import Any

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
