"""The living definition: every op runs its reference body, state is functional, attention is written as the formula.

Slow on purpose, and right: any other backend is compared with this one. Importing this module imports no tensor
framework. Opening the device does.
"""

from __future__ import annotations

from thalweg.backends.host import cores, cpu_name, has_torch, host_memory
from thalweg.hal.device import Device, DeviceInfo
from thalweg.hal.platform import Defaults, ModelInfo, Place, Platform, Probe


class ReferencePlatform(Platform):
    name = "reference"
    shares_device = True

    def probe(self) -> Probe:
        if not has_torch():
            return Probe(0, "torch is not installed; pip install 'thalweg[cpu]'")
        return Probe(2, "runs wherever torch does; slow: it is the definition, not an engine")

    def defaults(self, model: ModelInfo, device: DeviceInfo) -> Defaults:
        return Defaults(
            dtype="float32",
            block_tokens=16,
            max_num_seqs=64,
            max_num_batched_tokens=1024,
            kv_cache_bytes=min(1 << 30, host_memory()[1] // 4),
            pipeline_depth=1,
        )

    def describe(self) -> DeviceInfo:
        return DeviceInfo(cpu_name(), "reference", host_memory()[0], cores(), ("float32", "bfloat16"))

    def open(self, place: Place) -> Device:
        from thalweg.backends.reference.device import open_device

        return open_device()
