"""The TPU platform, on JAX: facts, defaults and rules. Importing it imports no framework. Opening the device does.

The step is the one every platform runs. It is written with torch operations, so it is traced through torchax inside
one `jax.jit` per bucket (`program`). Attention and other kernels are JAX and Pallas (`pallas`), bound like any
kernel.

torch-xla would be a second way to run torch code here. It is looked for so that `thalweg backends` can list it. It is never
used: its last release needs a torch older than the models do.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Self

from thalweg.backends.host import ROOT, cores, cpu_name, found, host_memory
from thalweg.backends.tpu.kinds import KINDS, here, on_the_bus
from thalweg.errors import ConfigError, DeviceError
from thalweg.hal.device import Device, DeviceInfo
from thalweg.hal.platform import Defaults, Limits, ModelInfo, Parallel, Place, Platform, Probe, StepSizes, Topology
from thalweg.hal.step import StepShape
from thalweg.hal.weights import DENSE, WeightFormat

NODES = ("dev/accel[0-9]*", "dev/vfio/[0-9]*")
INSTALL = "pip install 'thalweg[tpu]'"
WANTED = {"jax": ((0, 10), (0, 12)), "torchax": ((0, 0, 14), (0, 1)), "torch": ((2, 11), (2, 15))}
"""Versions from .. to before: those of pyproject.toml's extra."""
SPARE = 1
"""Rows a mixed bucket has beyond the sequences of its batch: padding tokens belong to a padding sequence."""
LONGEST_TABLE = 1 << 16
"""Upper bound of the blocks of a sequence. Scalar memory is 1 MiB, and half holds the row of one sequence and of the next."""


@dataclass(frozen=True, slots=True)
class TpuOptions:
    """Knobs of the TPU platform, `--additional-config '{"name": value}'`."""

    jax_platform: str = "tpu"
    """Which of JAX's platforms runs the programs. "cpu": the host, for trying and testing without the hardware."""
    kind: str = ""
    """v4, v5e, v5p, v6e or v7x: the generation to plan for (`thalweg plan`), here or not. "" = the one on this machine."""
    attention: str = "auto"
    """"pallas" (ours), "jax" (the kernel JAX ships, only on hardware) or "xla" insists on that implementation. auto
    prefers them in this order on hardware, and XLA's on the host. With "pallas" the host runs the other Pallas
    kernels too, interpreted."""
    experts: str = "auto"
    """Implementation of mixtures of experts. "pallas" (ours), "jax" (the product of groups JAX ships, for dense
    weights) or "xla" (every expert for every token) insists on it. auto prefers them in this order on hardware, and
    XLA's on the host."""
    precompile: str = "auto"
    """Programs compiled before serving: "all", "first" (of the smallest prompt and decode steps), "none". auto: all on
    hardware, first on the host. The rest are compiled when first met, and every request waits for it."""
    compilation_cache: str = "~/.cache/thalweg/xla"
    """Folder that keeps compiled programs between starts. "" = none."""


class TpuPlatform(Platform):
    name = "tpu"
    options: TpuOptions = TpuOptions()

    def __init__(self, root: Path = ROOT) -> None:
        self.root = root

    def with_options(self, options: Any) -> Self:
        result = super().with_options(options)
        check(result.options)
        return result

    def probe(self) -> Probe:
        """jax_platform cpu asks for no hardware, and is never chosen by itself."""
        problem, (there, seen) = _software(), self._hardware()
        if self.options.jax_platform == "cpu":
            return Probe(0, problem) if problem else Probe(1, f"JAX on the host's {cores()} cores, for trying and testing")
        if problem:
            return Probe(0, f"{seen}; {problem}")
        if not there:
            return Probe(0, f'{seen}; to try it on the host: --additional-config \'{{"jax_platform": "cpu"}}\'')
        if find_spec("libtpu") is None:
            other = " (torch_xla is installed and not used: it needs an older torch)" if find_spec("torch_xla") else ""
            return Probe(0, f"{seen}, but libtpu is not installed: pip install 'jax[tpu]'{other}")
        return Probe(100, seen)

    def _hardware(self) -> tuple[bool, str]:
        """Device nodes, and PCI devices. /dev/vfio nodes belong to any passed-through device, so they need the ids
        too."""
        nodes, cards, kind = found(NODES[:1], self.root), on_the_bus(self.root), here(self.root)
        if cards:
            nodes = nodes or found(NODES[1:], self.root)
        seen = [*nodes, *cards]
        if seen:
            return True, f"Google TPU {f'{kind.name} ' if kind else ''}found ({', '.join(seen[:4])})"
        return False, f"no Google TPU found (no /{NODES[0]}, no PCI device of its kind)"

    def describe(self) -> DeviceInfo | None:
        if self.options.jax_platform == "cpu":
            return on_host()
        kind = KINDS.get(self.options.kind) or here(self.root)
        return kind.info() if kind else None

    def unplannable_reason(self) -> str:
        kinds = ", ".join(KINDS)
        return f'{self._hardware()[1]}; name one to plan for: --additional-config \'{{"kind": "v5e"}}\' (of {kinds})'

    def topology(self, want: Parallel) -> Topology:
        """One process drives every device of the host."""
        return Topology((Place(rank=0, world=1, devices=tuple(range(want.world))),))

    def defaults(self, model: ModelInfo, device: DeviceInfo) -> Defaults:
        """dtype: that of the matrix units. On the host, a small cache."""
        on_host = device.notes.get("jax_platform") == "cpu"
        return Defaults(
            dtype=device.dtypes[0],
            block_tokens=32,
            max_num_seqs=16 if on_host else 128,
            max_num_batched_tokens=256 if on_host else 2048,
            kv_cache_bytes=min(1 << 28, host_memory()[1] // 8) if on_host else None,
            pipeline_depth=2,
        )

    def packs(self, dtype: str, format: WeightFormat = DENSE) -> bool:
        """Products with codes have a separate layout."""
        return format != DENSE

    def buckets(self, defaults: Defaults, limits: Limits) -> tuple[StepShape, ...]:
        """Programs are compiled per shape, so there are few: decode steps of 1, 4, 16 ... sequences, and mixed steps
        of 16, 64, 256 ... tokens with every sequence. ConfigError if a sequence has more blocks than scalar memory
        holds."""
        blocks = -(-limits.max_len // limits.block_tokens)
        if blocks > LONGEST_TABLE:
            least = 1 << (-(-limits.max_len // LONGEST_TABLE) - 1).bit_length()
            raise ConfigError(
                f"block_size: {limits.max_len} tokens in blocks of {limits.block_tokens} are {blocks} blocks, and scalar "
                f"memory holds the table of {LONGEST_TABLE}: use --block-size {least}, or a shorter --max-model-len"
            )
        decode = [StepShape(n, n, blocks, uniform=True) for n in _fours(1, limits.seqs)]
        mixed = [StepShape(n, limits.seqs + SPARE, blocks) for n in _fours(16, limits.tokens)]
        return (*decode, *mixed)

    def workspace(self, s: StepSizes) -> int:
        """The compiler keeps more alive than an eager step does: twice, about."""
        return 2 * super().workspace(s)

    def preload(self) -> None:
        import thalweg.backends.tpu.device  # noqa: F401

    def open(self, place: Place) -> Device:
        probe = self.probe()
        if probe.score <= 0:
            raise DeviceError(f"device: tpu: {probe.reason}")
        try:
            from thalweg.backends.tpu.device import open_device
        except (ImportError, AttributeError, RuntimeError) as e:  # an error of a torchax made for another torch
            raise DeviceError(f"device: tpu: torch, jax and torchax do not load together ({e}): {INSTALL}") from e
        return open_device(place, self.options)


def check(options: TpuOptions) -> None:
    """DeviceError names a knob with an unsupported value."""
    ways = ("auto", "pallas", "jax", "xla")
    choices = {"attention": ways, "experts": ways, "precompile": ("auto", "all", "first", "none"), "kind": ("", *KINDS)}
    for name, values in choices.items():
        if (value := getattr(options, name)) not in values:
            raise DeviceError(f"device: tpu: {name} must be one of {', '.join(filter(None, values))}, not {value!r}")
    if options.kind and options.jax_platform == "cpu":
        raise DeviceError(f"device: tpu: kind {options.kind} is no host: leave out jax_platform cpu, or the kind")


def on_host(ranks: int = 1) -> DeviceInfo:
    """The host as one of `ranks` devices, which share its memory."""
    notes = {"jax_platform": "cpu"}
    return DeviceInfo(f"JAX on {cpu_name()}", "tpu", host_memory()[0] // ranks, cores(), ("float32", "bfloat16"), notes)


def _software() -> str:
    """The missing or wrong version of a package, and the remedy. "" = nothing. Looks, does not import."""
    missing = [name for name in WANTED if find_spec(name) is None]
    if missing:
        return f"not installed: {', '.join(missing)}: {INSTALL}"
    for name, (least, below) in WANTED.items():
        version = _version(name)
        if not least <= tuple(int(n) for n in re.findall(r"\d+", version)[:3]) < below:
            span = f"{'.'.join(map(str, least))} up to before {'.'.join(map(str, below))}"
            return f"{name} {version} is installed, and this needs {span}: {INSTALL}"
    return ""


def _version(name: str) -> str:
    try:
        return version(name)
    except PackageNotFoundError:  # a source tree on the path
        return ".".join(map(str, WANTED[name][0]))


def _fours(least: int, most: int) -> list[int]:
    """least, 4 least, 16 least ... below most, and most."""
    out, n = [], least
    while n < most:
        out.append(n)
        n *= 4
    return [*out, most]
