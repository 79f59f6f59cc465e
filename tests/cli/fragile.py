"""A platform whose compiler refuses one kernel and dies of another. For tests/cli/test_compile_command.py."""

from __future__ import annotations

import os
from pathlib import Path

from thalweg.backends.cuda import CudaPlatform
from thalweg.backends.torch_gpu.cross_compile import GpuCrossCompiler
from thalweg.hal.platform import CompiledKernel, CrossCompiler


class Fragile(GpuCrossCompiler):
    def kernels(self) -> list[tuple[str, str]]:
        return [(name, name) for name in ("good", "dies", "refused", "there", "last")]

    def compile(self, key: str) -> CompiledKernel:
        if key == "dies":
            os._exit(9)
        if key == "refused":
            raise ValueError("too many registers")
        return CompiledKernel(0.0, key == "there")


class FragilePlatform(CudaPlatform):
    def absent(self, arch: str, cache: Path | None) -> CrossCompiler:
        return Fragile(self, arch, cache)
