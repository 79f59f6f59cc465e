"""Modes perf and support of the kit: they print, and fail only if something does not run."""

from __future__ import annotations

import json

import pytest

from thalweg.hal.device import Device
from thalweg.hal.platform import Platform
from thalweg.hal.testing import measure


def _needs_ops(platform: Platform) -> None:
    if not platform.runs_models:
        pytest.skip(f"platform {platform.name} runs no models: it has no ops")


@pytest.mark.perf_mode
def test_perf(platform: Platform, device: Device, capsys: pytest.CaptureFixture[str]) -> None:
    _needs_ops(platform)
    for work in measure.workloads():
        dtype = device.info.dtypes[0] if "bfloat16" in work.op.tolerances else "float32"
        for record in measure.perf(device, work, dtype):
            with capsys.disabled():
                print(json.dumps(record), flush=True)


@pytest.mark.support_mode
def test_support(platform: Platform, device: Device, capsys: pytest.CaptureFixture[str]) -> None:
    _needs_ops(platform)
    with capsys.disabled():
        print(measure.support(device))
