"""The example platform: what is true before anything is opened. Imports no framework, as `thalweg backends` asks everybody."""

from __future__ import annotations

import os
from dataclasses import dataclass
from importlib.util import find_spec

from thalweg.errors import DeviceError
from thalweg.hal.device import Device, DeviceInfo
from thalweg.hal.platform import Defaults, ModelInfo, Place, Platform, Probe

MEMORY = 4 << 30
"""Bytes this device says it has."""


@dataclass(frozen=True, slots=True)
class ExampleOptions:
    """Knobs of this platform: `--additional-config '{"kernels": false}'`."""

    kernels: bool = True
    """False: every op runs the body that defines it, as on the first day of any backend."""


class ExamplePlatform(Platform):
    name = "example"
    options = ExampleOptions()

    def probe(self) -> Probe:
        """Score 1: here, and never what `--device auto` takes, as anything else is better."""
        if find_spec("torch") is None:
            return Probe(0, "torch is not installed; pip install torch")
        return Probe(1, "a thread that behaves as an accelerator does; runs wherever torch does")

    def describe(self) -> DeviceInfo:
        """What `thalweg plan` computes with."""
        return DeviceInfo("example", self.name, MEMORY, os.cpu_count() or 1, ("float32", "bfloat16"))

    def defaults(self, model: ModelInfo, device: DeviceInfo) -> Defaults:
        """Steps queue up, so two may be under way: while one computes, the host schedules the next."""
        return Defaults(
            dtype="float32", block_tokens=16, max_num_seqs=32, max_num_batched_tokens=512, kv_cache_bytes=256 << 20,
            pipeline_depth=2,
        )  # fmt: skip

    def open(self, place: Place) -> Device:
        if place.world != 1:
            raise DeviceError(f"device: example: there is one of it, not {place.world}; leave parallel sizes at 1")
        from thalweg_example.device import ExampleDevice

        return ExampleDevice(self.describe(), self.options.kernels)
