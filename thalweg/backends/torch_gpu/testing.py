"""A GPU platform on the host, for tests: the whole device of this package, with `HostRuntime` in place of hardware."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from thalweg.backends.torch_gpu.platform import Prepare
from thalweg.hal.device import Device, DeviceInfo
from thalweg.hal.platform import Defaults, Limits, ModelInfo, Place, Platform, Probe
from thalweg.hal.step import StepShape


@dataclass(frozen=True, slots=True)
class HostGpuOptions:
    graphs: bool = True
    late: bool = True
    prepare: Prepare = "none"
    """Recording takes longer on a host than a test that meets few shapes would wait for them."""


class HostGpuPlatform(Platform):
    """Small buckets, so that tests meet padding, several graphs and shapes no bucket holds."""

    name = "host-gpu"
    options: HostGpuOptions = HostGpuOptions()

    def probe(self) -> Probe:
        return Probe(1, "a GPU's device, run on the host")

    def defaults(self, model: ModelInfo, device: DeviceInfo) -> Defaults:
        buckets = tuple(StepShape(n, n, blocks, True) for n in (1, 2, 4, 8, 16) for blocks in (2, 4, 16))
        return Defaults(
            dtype="float32", block_tokens=16, max_num_seqs=64, max_num_batched_tokens=256, kv_cache_bytes=64 << 20,
            pipeline_depth=2, buckets=buckets, unpadded=True,
        )  # fmt: skip

    def buckets(self, defaults: Defaults, limits: Limits) -> tuple[StepShape, ...]:
        return tuple(b for b in defaults.buckets if b.seqs <= limits.seqs)

    def open(self, place: Place) -> Device:
        from thalweg.backends.torch_gpu.device import GpuDevice
        from thalweg.backends.torch_gpu.host import HostRuntime
        from thalweg.backends.torch_gpu.library import assemble

        options = self.options
        runtime = HostRuntime(late=options.late)
        info = DeviceInfo("host", self.name, runtime.memory()[0], 1, ("float32", "bfloat16"))
        return GpuDevice(info, runtime, assemble("interpret", (), _no_triton), graphs=options.graphs, prepare=options.prepare)


def _no_triton(arch: str) -> Any:
    raise ImportError("this platform tests torch's own operations")
