"""The TPU platform, on JAX: facts, defaults and rules. Importing it imports no framework; opening the device does.

The step is the one every platform runs. It is written with torch operations, so it is traced through torchax inside one
`jax.jit` per bucket (`program`); attention and other kernels are JAX and Pallas (`pallas`), bound like any kernel.

torch-xla would be a second way to run torch code here. It is looked for so that `thalweg backends` can say what is
installed, and never used: its last release needs a torch older than the models do.
"""

from __future__ import annotations

from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from thalweg.backends.host import ROOT, cores, found, has_torch, host_memory, pci_devices
from thalweg.errors import DeviceError
from thalweg.hal.platform import (
    Defaults,
    Device,
    DeviceInfo,
    Limits,
    ModelFacts,
    Parallel,
    Place,
    Platform,
    Probe,
    StepSizes,
    Topology,
)  # fmt: skip
from thalweg.hal.step import StepShape

NODES = ("dev/accel[0-9]*", "dev/vfio/[0-9]*")
PCI = ("0x1ae0", ("0x0027", "0x0056", "0x005e", "0x0062", "0x0063", "0x006f", "0x0076"))
"""Google's vendor id, and the TPUs' device ids (the vendor makes network cards too)."""
INSTALL = "pip install 'thalweg[tpu]'"
SPARE = 1
"""Rows a mixed bucket has beyond the sequences of its batch: padding tokens belong to a padding sequence."""


@dataclass(frozen=True, slots=True)
class TpuOptions:
    """Knobs of the TPU platform, `--additional-config '{"name": value}'`."""

    jax_platform: str = "tpu"
    """Which of JAX's platforms runs the programs. "cpu": the host, for trying and testing without the hardware."""
    attention: str = "auto"
    """"pallas" or "xla" insists on that implementation; auto prefers the first."""
    precompile: str = "auto"
    """Programs compiled before serving: "all" of them, "first" (of the smallest prompt and decode steps), "none". auto: all on
    hardware, first on the host. What is left is compiled when first met, and everybody waits for it."""
    compilation_cache: str = "~/.cache/thalweg/xla"
    """Folder that keeps compiled programs between starts; "" = none."""


class TpuPlatform(Platform):
    name = "tpu"
    options = TpuOptions

    def __init__(self, root: Path = ROOT) -> None:
        self.root = root

    def probe(self) -> Probe:
        return self.probe_with(TpuOptions())

    def probe_with(self, options: Any) -> Probe:
        """jax_platform cpu asks for no hardware, and is never chosen by itself."""
        missing = [m for m in ("jax", "torchax") if find_spec(m) is None]
        if not has_torch() or missing:
            what = ", ".join(missing or ["torch"])
            return Probe(0, f"{self._hardware()[1]}; not installed: {what}: {INSTALL}")
        if isinstance(options, TpuOptions) and options.jax_platform == "cpu":
            return Probe(1, f"JAX on the host's {cores()} cores, for trying and testing")
        there, seen = self._hardware()
        if not there:
            return Probe(0, f'{seen}; to try it on the host: --additional-config \'{{"jax_platform": "cpu"}}\'')
        if find_spec("libtpu") is None:
            other = " (torch_xla is installed and not used: it needs an older torch)" if find_spec("torch_xla") else ""
            return Probe(0, f"{seen}, but libtpu is not installed: pip install 'jax[tpu]'{other}")
        return Probe(100, seen)

    def _hardware(self) -> tuple[bool, str]:
        """Device nodes, and PCI devices; /dev/vfio nodes belong to any passed-through device, so they need the ids too."""
        nodes, cards = found(NODES[:1], self.root), pci_devices(*PCI, self.root)
        if cards:
            nodes = nodes or found(NODES[1:], self.root)
        seen = [*nodes, *cards]
        if seen:
            return True, f"Google TPU found ({', '.join(seen[:4])})"
        return False, f"no Google TPU found (no /{NODES[0]}, no PCI device of its kind)"

    def topology(self, want: Parallel) -> Topology:
        """One process drives every device of the host."""
        return Topology((Place(rank=0, world=1, devices=tuple(range(want.world))),))

    def defaults(self, model: ModelFacts, device: DeviceInfo) -> Defaults:
        """dtype: what the matrix units multiply. On the host, a small cache."""
        on_host = device.notes.get("jax_platform") == "cpu"
        return Defaults(
            dtype=device.dtypes[0],
            block_tokens=32,
            max_num_seqs=16 if on_host else 128,
            max_num_batched_tokens=256 if on_host else 2048,
            kv_cache_bytes=min(1 << 28, host_memory()[1] // 8) if on_host else None,
            pipeline_depth=2,
        )

    def buckets(self, defaults: Defaults, limits: Limits) -> tuple[StepShape, ...]:
        """Programs are compiled per shape, so there are few: decode steps of 1, 4, 16 ... sequences, and mixed steps of 16,
        64, 256 ... tokens with every sequence."""
        blocks = -(-limits.max_len // limits.block_tokens)
        decode = [StepShape(n, n, blocks, uniform=True) for n in _fours(1, limits.seqs)]
        mixed = [StepShape(n, limits.seqs + SPARE, blocks) for n in _fours(16, limits.tokens)]
        return (*decode, *mixed)

    def workspace(self, s: StepSizes) -> int:
        """The compiler keeps more alive than an eager step does: twice, about."""
        return 2 * super().workspace(s)

    def preload(self) -> None:
        import thalweg.backends.tpu.device  # noqa: F401

    def open(self, place: Place, options: Any = None) -> Device:
        options = TpuOptions() if options is None else options
        if not isinstance(options, TpuOptions):
            raise DeviceError(f"device: tpu takes TpuOptions, not {type(options).__name__}")
        for name, choices in (("attention", ("auto", "pallas", "xla")), ("precompile", ("auto", "all", "first", "none"))):
            if (value := getattr(options, name)) not in choices:
                raise DeviceError(f"device: tpu: {name} must be one of {', '.join(choices)}, not {value!r}")
        probe = self.probe_with(options)
        if probe.score <= 0:
            raise DeviceError(f"device: tpu: {probe.reason}")
        from thalweg.backends.tpu.device import open_device

        return open_device(place, options)


def _fours(least: int, most: int) -> list[int]:
    """least, 4 least, 16 least ... below most, and most."""
    out, n = [], least
    while n < most:
        out.append(n)
        n *= 4
    return [*out, most]
