"""The plan of a start, for `thalweg bench startup --predict`: what each phase has to do, counted, times what it costs.

Imports, reading and copying are measured on this machine. An absent device (`--arch`) adds what only it could show:
opening it, loading compiled kernels, capturing graphs, copying weights to it. Those costs are assumed, and the table says so.
`--assume` replaces any cost.

Two processes start. The server imports its code while the engine imports the framework, so the longer of both counts. The
tokenizer is read while the engine builds.
"""

from __future__ import annotations

import contextlib
import math
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields
from pathlib import Path

import msgspec
import numpy as np

from thalweg.config import EngineArgs
from thalweg.engine.planning import checkpoint_config, memory
from thalweg.engine.planning.resolve import configure_platform
from thalweg.errors import ConfigError, ThalwegError
from thalweg.hal import discovery
from thalweg.hal.platform import CrossCompiler, Limits

SERVER = "import thalweg.server.serve"
ENGINE = """
from thalweg.hal import discovery
platform = discovery.load({name!r})
if platform.runs_models:
    platform.preload()
    import thalweg.models.build, thalweg.models.load, thalweg.models.step
import thalweg.engine.main
"""
COMMAND = "import thalweg.cli.serve"
SAMPLE = 64 << 20
"""Bytes read and copied to measure the rates."""
REHEARSED = 2
"""Runs of a captured step before there are requests: as it is written, then captured."""
STEPS = 2
"""Steps of the canary, and until a request's first token."""


@dataclass(frozen=True, slots=True)
class StartWork:
    """The work of a start. stored: bytes of weights in files, 0 without files. held: bytes in the device's memory. tokenizer:
    bytes of its file. kernels: compiled ones that the device loads. graphs: captured steps."""

    stored: int
    held: int
    tokenizer: int
    kernels: int = 0
    graphs: int = 0
    strategy: str = "lazy"
    """How files are read (`safetensors_load_strategy`). prefetch, eager: since the engine's process began."""


@dataclass(frozen=True, slots=True)
class StartCosts:
    """Seconds (command, server, framework, open, kernel, step) and bytes per second (the rest). read: of files. pack: of
    weights, to where kernels read them. memory: of weights that a step reads. step: the host's part of one."""

    command: float
    server: float
    framework: float
    read: float
    pack: float
    memory: float
    tokenizer: float
    open: float = 0.0
    kernel: float = 0.0
    step: float = 0.0


RATES = ("read", "pack", "memory", "tokenizer")
"""Costs in bytes per second."""


ASSUMED = {"tokenizer": 20e6}
"""Not measured here: of a tokenizer.json, bytes per second."""
DISK = 5e9
"""Assumed, if the model's files are absent too: bytes per second of an NVMe disk."""
ABSENT: Mapping[str, float] = {"open": 1.0, "kernel": 4e-3, "pack": 12e9, "memory": 3.0e12}
"""The same of an absent device: its context, a kernel from Triton's cache, a copy over PCIe, and the memory's
rate."""


@dataclass(frozen=True, slots=True)
class StartPhase:
    """A point of the chain. at: seconds from the start. seconds: of the phase alone. why: count and cost. slack: seconds by
    which it may be later without delaying the first byte."""

    point: str
    at: float
    seconds: float
    why: str
    slack: float = 0.0


def predict_start(work: StartWork, cost: StartCosts) -> list[StartPhase]:
    """The points that `bench startup` measures, in order, with when each is reached."""
    command, server = cost.command, cost.command + cost.server
    framework = cost.command + cost.framework
    started = max(server, framework) + cost.open
    read, packed = work.stored / cost.read, work.held / cost.pack
    loaded = started + max(read, packed)  # threads read while others copy
    idle = 0.0  # of the engine, while it waits for reads that do not wait for it
    if work.strategy == "prefetch":
        loaded = max(started + packed, command + read)
        idle = loaded - started - packed
    elif work.strategy == "eager":
        loaded = max(started, command + read) + packed
        idle = loaded - started - packed
    kernels = work.kernels * cost.kernel
    graphs = work.graphs * cost.step * REHEARSED
    built = loaded + kernels + graphs
    tokenizer = server + work.tokenizer / cost.tokenizer
    steps = STEPS * work.held / cost.memory
    canary = max(built, tokenizer) + steps
    megabytes = (
        f"{work.stored / 1e6:.0f} MB read in {read * 1e3:.0f} ms, while {work.held / 1e6:.0f} MB are packed in "
        f"{packed * 1e3:.0f} ms"
    )
    late = max(0.0, tokenizer - built)  # every phase of the engine then has that much slack
    free = max(0.0, built - tokenizer)
    slack = {
        "server": min(max(0.0, framework - server) + idle + late, free),
        "framework": max(0.0, server - framework) + idle + late,
    }
    return [
        StartPhase("command line", command, command, "imports"),
        StartPhase("server imported", server, cost.server, "imports", slack["server"]),
        StartPhase(
            "tokenizer loaded", tokenizer, tokenizer - server, f"{work.tokenizer / 1e6:.1f} MB, while the engine builds", free
        ),
        StartPhase("framework imported", framework, cost.framework, "imports, while the server imports", slack["framework"]),
        StartPhase("engine started", started, cost.open, "the device is opened", idle + late),
        StartPhase("weights loaded", loaded, loaded - started, megabytes, late),
        StartPhase(
            "engine built", built, kernels + graphs, f"{work.kernels} kernels loaded, {work.graphs} graphs captured", late
        ),
        StartPhase("canary answered", canary, steps, f"{STEPS} steps"),
        StartPhase("first byte", canary + steps, steps, f"{STEPS} steps"),
    ]  # fmt: skip


def _count_absent(args: EngineArgs, tokenizer: int, name: str, absent: CrossCompiler) -> tuple[StartWork, float]:
    """Of a model built on arrays without memory, and the seconds of this host for one of its steps."""
    from thalweg.engine.worker.build import build
    from thalweg.engine.worker.cross_compile import make_step, rehearse
    from thalweg.models import registry, sizes
    from thalweg.models.precision import model_scheme

    rehearse(absent, args)
    kernels, path = len(absent.kernels()), Path(args.model)
    worker = build(msgspec.structs.replace(args, load_format="dummy", use_tqdm_on_load=False), absent.platform)
    c = worker.config
    limits = Limits(c.scheduler.token_budget, c.scheduler.max_seqs, c.model.max_len, c.cache.block_tokens)
    batch = make_step(c, (min(1000, c.model.max_len - 1),), (1,))
    step = min(_time(lambda: worker.launch(batch)) for _ in range(5))
    worker.close()
    platform = configure_platform(args, discovery.load(name))
    graphs = len(platform.list_captured(platform.buckets(None, limits)))  # type: ignore[arg-type]
    config = checkpoint_config.read(args, path)
    spec = registry.family(config)(config)
    use = model_scheme(config, args.quantization, spec)
    held = sizes.weight_bytes(spec, c.model.dtype, c.model.max_len, use=use)
    stored = sum(f.stat().st_size for f in path.glob("*.safetensors"))
    stored = stored or sizes.weight_bytes(spec, c.model.dtype, c.model.max_len)  # of a directory with only a configuration
    return StartWork(stored, held, tokenizer, kernels, graphs, args.reading[0]), step


def find_absent(arch: str) -> tuple[str, CrossCompiler]:
    """(a platform, the device of this architecture that it compiles for). ConfigError: there is none."""
    known: dict[str, tuple[str, ...]] = {}
    for name in discovery.names():
        with contextlib.suppress(ThalwegError, ImportError):
            known[name] = discovery.load(name).architectures()
    owner = next((name for name, some in known.items() if arch in some), None)
    if owner is None:
        there = "; ".join(f"{name}: {', '.join(some)}" for name, some in known.items() if some)
        raise ConfigError(f"--arch: {arch!r} is not one that can be planned for; there are {there}")
    return owner, discovery.load(owner).absent(arch, None)


def plan_start(args: EngineArgs, arch: str, assume: Mapping[str, float]) -> tuple[list[StartPhase], dict[str, str]]:
    """(the phases, cost -> where its number is from). arch: of an absent device, "": the device is here."""
    path = Path(args.model)
    file = path / "tokenizer.json"
    tokenizer = file.stat().st_size if file.is_file() else 0
    if arch:
        name, absent = find_absent(arch)
        work, step = _count_absent(args, tokenizer, name, absent)
        measured, assumed = {"step": step}, {**ASSUMED, **ABSENT}
    else:
        name = discovery.resolve_platform(args.device).name
        plan = memory.plan(args)
        work, measured, assumed = (
            StartWork(plan.stored_bytes, plan.weights, tokenizer, strategy=args.reading[0]),
            {},
            dict(ASSUMED),
        )
    measured |= measure_costs(name, path)
    if arch and math.isinf(measured["read"]):
        assumed["read"] = DISK
    costs = assumed | {k: v for k, v in measured.items() if k not in assumed} | dict(assume)
    origin = {k: "given" if k in assume else "assumed" if k in assumed else "measured" for k in costs}
    return predict_start(work, StartCosts(**costs)), {k: f"{costs[k]:.4g} ({origin[k]})" for k in sorted(costs)}


def measure_costs(name: str, path: Path) -> dict[str, float]:
    """Imports of both processes side by side, as at a start; the files' pages as they are."""
    command = _time_imports(COMMAND)[0]
    server, framework = _time_imports(f"{COMMAND}\n{SERVER}", ENGINE.format(name=name))
    block = np.ones(SAMPLE, np.uint8)
    copy = min(_time(block.copy) for _ in range(3))
    total = min(_time(lambda: block.view(np.uint64).sum()) for _ in range(3))
    return {
        "command": command, "server": max(0.0, server - command), "framework": framework, "read": _measure_reading(path),
        "pack": SAMPLE / copy, "memory": SAMPLE / total,
    }  # fmt: skip


def _time_imports(*codes: str) -> list[float]:
    """Seconds of new processes that run at the same time. ThalwegError: one failed."""
    start = time.monotonic()
    with tempfile.TemporaryFile() as log:
        running = [subprocess.Popen([sys.executable, "-c", code], stdout=log, stderr=log) for code in codes]
        out: dict[int, float] = {}
        while len(out) < len(running):
            for i, process in enumerate(running):
                if i not in out and process.poll() is not None:
                    out[i] = time.monotonic() - start
            time.sleep(0.002)
        if any(process.returncode for process in running):
            log.seek(0)
            raise ThalwegError(f"bench startup: an import failed: {log.read().decode(errors='replace')[-300:]}")
    return [out[i] for i in range(len(running))]


def _measure_reading(path: Path) -> float:
    """Bytes per second of the largest file of the model, or infinity where it has none of some size."""
    files = [
        f
        for f in (path.iterdir() if path.is_dir() else [path])
        if f.is_file() and f.suffix in (".safetensors", ".gguf", ".bin")
    ]
    if not files:
        return math.inf
    file = max(files, key=lambda f: f.stat().st_size)
    with file.open("rb", buffering=0) as f:
        start, n = time.monotonic(), len(f.read(SAMPLE))
    return n / max(time.monotonic() - start, 1e-6)


def _time(run: Callable[[], object]) -> float:
    start = time.perf_counter()
    run()
    return time.perf_counter() - start


def read_assumed(words: Sequence[str]) -> dict[str, float]:
    """NAME=NUMBER. ConfigError for another name or number."""
    known, out, problems = {f.name for f in fields(StartCosts)}, {}, []
    for word in words:
        name, _, text = word.partition("=")
        with contextlib.suppress(ValueError):
            out[name] = float(text)
        if name not in known:
            problems.append(f"--assume: {name!r} is no cost of a start; there are {', '.join(sorted(known))}")
        elif not out.get(name, -1.0) >= 0 or (name in RATES and out[name] == 0):
            problems.append(
                f"--assume: {word!r} is not NAME=NUMBER with {'seconds' if name not in RATES else 'bytes per second'}"
            )
    if problems:
        raise ConfigError(*problems)
    return out


def format_plan(phases: Sequence[StartPhase], costs: Mapping[str, str], measured: Mapping[str, float]) -> str:
    """measured: point -> seconds from the start, of real starts. Empty: there were none."""
    lines = [f"{'milliseconds':20}{'phase':>9}{'at':>9}{'slack':>9}{'measured':>10}"]
    for p in phases:
        real = f"{measured[p.point] * 1e3:10.0f}" if p.point in measured else " " * 10
        lines.append(f"{p.point:20}{p.seconds * 1e3:9.0f}{p.at * 1e3:9.0f}{p.slack * 1e3:9.0f}{real}  {p.why}")
    return "\n".join([*lines, "costs: " + ", ".join(f"{k} {v}" for k, v in costs.items())])
