"""The CPU platform: facts, defaults and rules. Importing it imports no tensor framework. Opening the device does."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Self

from thalweg.backends import lean_torch
from thalweg.backends.cpu.native import NONE, PORTABLE, QUADS, NoLibraryError, begin, expect, levels, of_rows, settle, waiting
from thalweg.backends.host import cores, cpu_flags, cpu_name, has_torch, host_memory
from thalweg.errors import DeviceError
from thalweg.hal.device import Device, DeviceInfo
from thalweg.hal.platform import Defaults, ModelInfo, Place, Platform, Probe, StepSizes
from thalweg.hal.weights import DENSE, WeightFormat

BF16_FLAGS = frozenset({"avx512_bf16", "amx_bf16", "bf16"})
"""Features of a processor with native bfloat16 matrix products (x86's names, then Arm's). One is enough."""
KEPT = 44 << 20
"""Bytes of compiled kernels, their scratch memory and holes in the heap, about. Measured (tests/bench)."""
KEPT_COMPILED = 20 << 20
"""KEPT with compiled kernels, which leave fewer holes, and the arena of recorded steps beyond its logits."""
KEPT_BLOCK = 32 << 20
"""The largest block of memory that glibc's allocator can keep once it is free."""
ROWS_BYTES, ROWS_LEAST = 4 << 20, 256
"""Rows of a linear layer's input that compiled kernels prepare at a time: so many bytes in float32, at least so many
rows."""
EXPECTED_LEAST = 64 << 20
"""Bytes of weights for which memory is made ready beforehand: fewer take no time worth a thread."""
AS_THEY_ARE, COMPRESSED = (NONE, PORTABLE, "amx"), 0.76
"""Instruction sets with kernels that read no compressed weights, and the share of their bytes that such weights need."""
PACKS_BF16 = BF16_FLAGS | {"avx512bw"}
"""Features of a processor on which oneDNN multiplies in bfloat16. One is enough."""


@dataclass(frozen=True, slots=True)
class CpuOptions:
    """Knobs of the CPU platform."""

    threads: int = 0
    """0 = one per physical core this process may use, or fewer where OMP_NUM_THREADS says so."""
    isa: str = ""
    """Instruction set of the compiled kernels: amx, avx512bf16, avx512vnni, avx512, avxvnni, avx2, neonbf16, neondot, neon or
    portable. "" = the best there is. "none" = run torch's kernels instead."""
    graphs: bool = True
    """Record decode steps, and replay them."""
    packed_weights: str = ""
    """Folder where packed weights are kept, so that later starts map them. "" = each start packs them again."""
    compress_weights: bool | None = None
    """Hold bfloat16 weights in about 12 bits each, without loss. The text stays the same. This saves memory, and time for few
    requests at once. None = where kernels read such weights: with all but amx and portable."""


class CpuPlatform(Platform):
    name = "cpu"
    shares_device = True
    supports_ranks = True
    supports_stages = True
    options: CpuOptions = CpuOptions()

    def with_options(self, options: Any) -> Self:
        result = super().with_options(options)
        if result.options.threads < 0:
            raise DeviceError(f"threads: {result.options.threads} is not a number of threads; omit it for one per core")
        return result

    def probe(self) -> Probe:
        if not has_torch():
            return Probe(0, "torch is not installed; pip install 'thalweg[cpu]'")
        native = " with native bfloat16" if cpu_flags() & BF16_FLAGS else ""
        return Probe(10, f"{cpu_name()}, {cores()} cores{native}")

    def defaults(self, model: ModelInfo, device: DeviceInfo) -> Defaults:
        """dtype: the one that the processor multiplies fastest. The cache gets a quarter of the free memory, at most 4 GiB."""
        return Defaults(
            dtype=device.dtypes[0],
            block_tokens=16,
            max_num_seqs=128,
            max_num_batched_tokens=2048,
            kv_cache_bytes=min(4 << 30, (host_memory()[1] + waiting()) // 4),
            pipeline_depth=1,
        )

    def describe(self) -> DeviceInfo:
        flags = cpu_flags()
        dtypes = ("bfloat16", "float32") if flags & BF16_FLAGS else ("float32", "bfloat16")
        return DeviceInfo(cpu_name(), "cpu", host_memory()[0], cores(), dtypes)

    def packs(self, dtype: str, format: WeightFormat = DENSE) -> bool:
        """Compiled kernels embed out of the packed output matrix. Without them oneDNN keeps a copy of each matrix, in bfloat16
        only where the processor lets it run that. Codes of some formats are like dense weights."""
        if format != DENSE:
            return self._has_compiled_kernels() and (self._level() in QUADS or not of_rows(format))
        return not self._has_compiled_kernels() and (dtype == "float32" or bool(cpu_flags() & PACKS_BF16))

    def dense_share(self, dtype: str) -> float:
        less = dtype == "bfloat16" and self._level() not in AS_THEY_ARE and self.options.compress_weights is not False
        return COMPRESSED if less else 1.0

    def quantised_bytes(self, format: WeightFormat, outputs: int, inputs: int) -> int:
        """Compiled kernels hold scales in 16 bits where that is exact: those of 4-bit integers, and of groups with rounded
        inputs, if the weights are rounded here or come from most files. So they hold minimums in sixteenths."""
        result = format.bytes(outputs, inputs)
        if format.code_bits and self._has_compiled_kernels() and self._level() not in QUADS:
            result -= outputs * inputs * (format.bits - format.code_bits) // 8
        halves = (
            format.kind == "int"
            and not format.scale_dtype
            and (format.bits == 4 or format.code_bits or format.act.endswith("_per_group"))
        )
        if not halves or format.group < 0 or not self._has_compiled_kernels():
            return result
        groups = outputs * -(-inputs // (format.group or inputs))
        return result - (4 if format.sixteenths else 2) * groups

    def workspace(self, s: StepSizes) -> int:
        """Compiled kernels keep scratch memory for the most rows they have made ready, and a quarter more. The largest
        block of a step leaves a hole of its size where steps differ in length, and one more where the allocator does not
        keep it. Without compiled kernels attention holds the masks of a step's prompt tokens, and oneDNN keeps kernels
        and scratch for row counts it met."""
        if self._has_compiled_kernels():
            width = max(s.hidden, s.inner)
            rows = min(s.tokens, max(ROWS_BYTES // (4 * width), ROWS_LEAST))
            block = 2 * s.tokens * s.inner * s.dtype_bytes
            holes = block + (KEPT_BLOCK if block > KEPT_BLOCK else 0)
            return super().workspace(s) + holes + rows * (width + 16) * 4 * 5 // 4 + KEPT_COMPILED
        masks = s.tokens * (s.heads // s.kv_heads) * s.max_len * s.dtype_bytes
        return super().workspace(s) + masks + KEPT

    def begin(self) -> None:
        begin()  # first: torch's library is slow to load, and the system loads no other meanwhile
        lean_torch.load_library()

    def expect(self, weights: int) -> None:
        """The system clears memory as it is first touched, which is as slow as packing weights into it. Weights mapped from
        files need none."""
        o = self.options
        if not weights:
            settle()
        elif EXPECTED_LEAST <= weights <= host_memory()[1] * 3 // 4 and o.isa != NONE and not o.packed_weights:
            expect(weights)

    def preload(self) -> None:
        lean_torch.import_torch()
        import thalweg.backends.cpu.device  # noqa: F401

    def open(self, place: Place) -> Device:
        from thalweg.backends.cpu.device import open_device

        o = self.options
        return open_device(o.threads, o.isa, o.graphs, o.packed_weights, o.compress_weights, place)

    def _has_compiled_kernels(self) -> bool:
        """Will its device run compiled kernels?"""
        return NONE not in (self.options.isa, _best())

    def _level(self) -> str:
        return self.options.isa or _best()


def _best() -> str:
    """The best instruction set there are compiled kernels for. Loads the library, as only that tells whether it loads."""
    try:
        return levels()[0]
    except NoLibraryError:
        return NONE
