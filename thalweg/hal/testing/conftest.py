"""Fixtures of the conformance kit: the platform under test, its device, and the cases it must pass."""

from __future__ import annotations

import dataclasses
import json
import re
from collections.abc import Iterator
from typing import Any

import pytest

from thalweg.errors import DeviceError
from thalweg.hal import discovery
from thalweg.hal.device import Device
from thalweg.hal.platform import Place, Platform
from thalweg.hal.testing.evidence import PROPERTY, kernel_of
from thalweg.hal.testing.options import MODES


def pytest_configure(config: pytest.Config) -> None:
    for mode in MODES:
        config.addinivalue_line("markers", f"{mode}_mode: runs with --mode {mode}")


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Items without a mode marker run in mode test. --part counts the items left by -k and -m, in pytest's order."""
    want = config.getoption("--mode", "test")
    keep: list[pytest.Item] = []
    drop: list[pytest.Item] = []
    for item in items:
        mode = next((m for m in MODES if item.get_closest_marker(f"{m}_mode")), "test")
        (keep if mode == want else drop).append(item)
    part, parts = _part(config)
    mine = keep[part - 1 :: parts]
    drop += [item for i, item in enumerate(keep) if i % parts != part - 1]
    config.hook.pytest_deselected(items=drop)
    items[:] = mine


def _part(config: pytest.Config) -> tuple[int, int]:
    share = config.getoption("--part", "1/1")
    numbers = re.fullmatch(r"(\d+)/(\d+)", share)
    part, parts = map(int, numbers.groups()) if numbers else (0, 0)
    if not 1 <= part <= parts:
        raise pytest.UsageError(f"--part: {share!r} is not the I-th of N parts, as in 2/5")
    return part, parts


@pytest.hookimpl(hookwrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Iterator[None]:
    """Every report says which kernel it is about, for --evidence: it may be counted in another process."""
    done: Any = yield
    if what := kernel_of(getattr(getattr(item, "callspec", None), "params", {})):
        done.get_result().user_properties.append((PROPERTY, list(what)))


def _open(config: pytest.Config) -> tuple[Platform, Device | None, str]:
    """(platform, device or None, why not), once per run."""
    result = config.stash.get(_KEY, None)
    if result is None:
        platform = discovery.load(config.getoption("--platform", "reference"))
        try:
            platform = _apply_options(platform, config.getoption("--platform-options", ""))
            result = (platform, platform.open(Place()), "")
        except DeviceError as e:
            result = (platform, None, str(e))
        config.stash[_KEY] = result
    return result


def _apply_options(platform: Platform, share: str) -> Platform:
    """The platform with the options of --platform-options, a JSON object."""
    given = json.loads(share) if share else {}
    if platform.options is None:
        if given:
            raise pytest.UsageError(f"--platform-options: platform {platform.name} has no options")
        return platform
    known = {f.name for f in dataclasses.fields(platform.options)}
    if unknown := sorted(given.keys() - known):
        raise pytest.UsageError(f"--platform-options: platform {platform.name} has {sorted(known)}, not {unknown}")
    return platform.with_options(dataclasses.replace(platform.options, **given))


_KEY: pytest.StashKey[tuple[Platform, Device | None, str]] = pytest.StashKey()


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """`case`: every op x sample x dtype x kernel of the device. `attention`: every attention backend."""
    if not {"case", "attention"} & set(metafunc.fixturenames):
        return
    platform, device, why = _open(metafunc.config)
    if device is None or not platform.runs_models:
        reason = why or f"platform {platform.name} runs no models: it has no ops to test"
        for name in {"case", "attention"} & set(metafunc.fixturenames):
            metafunc.parametrize(name, [pytest.param(None, marks=pytest.mark.skip(reason=reason))], ids=[platform.name])
        return
    from thalweg.hal.testing.cases import case_id, every_case

    if "case" in metafunc.fixturenames:
        cases = every_case(device)
        metafunc.parametrize("case", cases, ids=[case_id(c) for c in cases])
    if "attention" in metafunc.fixturenames:
        metafunc.parametrize("attention", device.attention, ids=[a.name for a in device.attention])


@pytest.fixture(scope="session")
def platform(request: pytest.FixtureRequest) -> Platform:
    return _open(request.config)[0]


@pytest.fixture(scope="session")
def device(request: pytest.FixtureRequest) -> Iterator[Device]:
    _, device, why = _open(request.config)
    if device is None:
        pytest.skip(why)
    yield device
    device.synchronize()
