"""A GPU platform on the host, for tests: the whole device of this package, with `HostRuntime` as the hardware."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from thalweg.backends.torch_gpu.arch import mixed_shapes, verifying
from thalweg.backends.torch_gpu.platform import Prepare
from thalweg.hal.device import Device, DeviceInfo
from thalweg.hal.platform import Defaults, Limits, ModelInfo, Place, Platform, Probe
from thalweg.hal.step import StepShape


@dataclass(frozen=True, slots=True)
class HostGpuOptions:
    graphs: bool = True
    late: bool = True
    prepare: Prepare = "none"
    """A host records for longer than a test with few shapes would wait for them."""
    readers: int = 2
    mixed: bool = False
    """Capture steps with prompts among decodes too, with attention that can be."""


class HostGpuPlatform(Platform):
    """Small buckets, so that tests meet padding, several graphs and shapes no bucket holds."""

    name = "host-gpu"
    supports_ranks = True
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
        more = mixed_shapes(limits.seqs, 128, 16) if self.options.mixed else ()
        verify = verifying(limits.seqs, limits.drafts, 16) if self.options.graphs else ()
        return (*(b for b in defaults.buckets if b.seqs <= limits.seqs), *verify, *more)

    def open(self, place: Place) -> Device:
        from thalweg.backends.torch_comm import TorchCommunicator
        from thalweg.backends.torch_gpu.device import GpuDevice
        from thalweg.backends.torch_gpu.host import HostRuntime
        from thalweg.backends.torch_gpu.library import assemble

        options = self.options
        # A late stream works only while somebody waits for it, and another rank's wait does not count.
        runtime = HostRuntime(late=options.late and place.world == 1)
        info = DeviceInfo("host", self.name, runtime.memory()[0], 1, ("float32", "bfloat16"))
        parts = assemble("interpret", (), _no_triton)
        if options.mixed:
            parts = replace(parts, attention=(_token_by_token(),))
        comm = TorchCommunicator("gloo", place) if place.world > 1 else None
        return GpuDevice(
            info, runtime, parts, graphs=options.graphs, prepare=options.prepare, comm=comm, readers=options.readers
        )


def _no_triton(arch: str) -> Any:
    raise ImportError("this platform tests torch's own operations")


def _token_by_token() -> Any:
    """Attention that treats every token as a decoding sequence, so that nothing depends on which tokens belong together."""
    from thalweg.backends.torch_gpu.attention import GatherAttention

    class TokenByToken(GatherAttention):
        mixed = True

        def metadata(self, *args: Any) -> Any:
            return {}

    return TokenByToken()
