"""Linear layers by weight form, beside dense bfloat16 in one run: `python benchmarks/weight_forms_cpu.py [--isa X]`.

Each form takes its turn over so many layers of 6,144 outputs and 1,024 inputs that a row reads them from memory. With many
rows two layers do. A line is a form, a column a number of rows: the time of dense bfloat16 divided by that of the form, by
medians of calls that take turns. Quote ratios: times drift with what else the machine does.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from thalweg.backends.cpu import CpuOptions, CpuPlatform
from thalweg.hal import ops as bodies
from thalweg.hal.device import Device
from thalweg.hal.op import Binder
from thalweg.hal.ops.quantise import quantise
from thalweg.hal.platform import Place
from thalweg.hal.weights import DENSE, QTensor, WeightFormat
from thalweg.quantization.online import linear_spec

OUT, IN = 6144, 1024
LAYERS, FEW_LAYERS, MANY_ROWS = 24, 2, 16
ROWS = (1, 16, 64, 512)
BASE = "bfloat16"


def _plain(format: WeightFormat) -> Callable[[torch.Tensor], QTensor]:
    return lambda weight: quantise(weight, format)


def _super(bits: int, group: int, mins: bool) -> Callable[[torch.Tensor], QTensor]:
    """As GGUF's K-quants hold them: scales and minima of 256 inputs are whole multiples of one 16-bit float."""

    def whole(values: torch.Tensor) -> torch.Tensor:
        parts = values.reshape(len(values), -1, 256 // group)
        unit = (parts.abs().amax(-1, keepdim=True) / 63).half().float().clamp(min=2**-24)
        return ((parts / unit).round() * unit).reshape(values.shape)

    def make(weight: torch.Tensor) -> QTensor:
        result = quantise(weight, WeightFormat("int", 8 if bits > 4 else 4, group, symmetric=not mins, mins=mins))
        data = dict(result.data)
        data["scales"] = whole(data["scales"])
        if mins:
            data["mins"] = whole(data["mins"])
        most = 1 << (bits - 1)
        if bits == 6:
            data["codes"] = (data["codes"] // 4).clamp(-most, most - 1)
        return QTensor(result.format, result.shape, data)

    return make


@dataclass(frozen=True)
class Case:
    name: str
    make: Callable[[torch.Tensor], QTensor]


def _half(format: WeightFormat) -> Callable[[torch.Tensor], QTensor]:
    """With scales that a 16-bit float holds, as files have them."""

    def make(weight: torch.Tensor) -> QTensor:
        result = quantise(weight, format)
        return QTensor(result.format, result.shape, {**result.data, "scales": result.data["scales"].half().float()})

    return make


LEVELS = (-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113)
"""Of IQ4_NL."""
SIXTEENTHS = WeightFormat("int", 4, 32, symmetric=False, mins=True, sixteenths=True, act="int8_per_group")
CASES = (
    Case("Q4_K (int4, groups of 32, minima)", _super(4, 32, mins=True)),
    Case("Q6_K (6 of 8 bits, groups of 16)", _super(6, 16, mins=False)),
    Case("Q4_0 (int4, groups of 32)", _half(WeightFormat("int", 4, 32))),
    Case("Q8_0 (int8, groups of 32)", _half(WeightFormat("int", 8, 32))),
    Case("GPTQ, AWQ (int4, groups of 128, zeros)", _half(WeightFormat("int", 4, 128, symmetric=False))),
    Case("w4a16 (int4, groups of 64, zeros)", _plain(WeightFormat("int", 4, 64, symmetric=False))),
    Case("w4a8 (int4, groups of 64, zeros)", _plain(WeightFormat("int", 4, 64, symmetric=False, act="int8_per_group"))),
    Case("w4a8 (int4, groups of 32, sixteenths)", _plain(SIXTEENTHS)),
    Case("int8 (rows)", _plain(WeightFormat("int", 8))),
    Case("fp8 (rows)", _plain(WeightFormat("float", 8))),
    Case("fp8 (groups of 128, rounded inputs)", _plain(WeightFormat("float", 8, 128, act="float8_e4m3fn_per_group"))),
    Case("MXFP4 (groups of 32)", _plain(WeightFormat("float", 4, 32))),
    Case("NVFP4 (groups of 16, float8 scales)", _plain(WeightFormat("float", 4, 16, scale_dtype="float8_e4m3fn"))),
    Case("IQ4_NL, nf4 (16 levels, groups of 32)", _half(WeightFormat("table", 4, 32, levels=LEVELS))),
    Case("w8a8 (rows)", _plain(WeightFormat("int", 8, act="int8"))),
    Case("w8a8 (rows, four inputs kept)", _plain(WeightFormat("int", 8, act="int8_keep4"))),
    Case("w8a8 (groups of 64)", _plain(WeightFormat("int", 8, 64, act="int8_per_group"))),
)


def layers(device: Device, case: Case | None, weights: Sequence[torch.Tensor]) -> tuple[str, list[Callable[..., Any]]]:
    """The kernel's name, and the layers as functions of rows."""
    form, calls, name = DENSE, [], ""
    for weight in weights:
        result = QTensor(DENSE, (OUT, IN), {"weight": weight}) if case is None else case.make(weight)
        form = result.format
        binder = Binder(device.kernels)
        bound = binder.bind(bodies.linear, dtype=BASE, in_features=IN, out_features=OUT, **linear_spec(form))
        packed, name = bound.pack(result), bound.choice.kernel
        calls.append(lambda x, bound=bound, packed=packed: bound(x, packed))
    return name, calls


def seconds(sets: Sequence[Sequence[Callable[..., Any]]], rows: int, repeats: int, clock: Callable[[], float]) -> list[float]:
    """Of each set of layers the median of calls that take turns, per layer."""
    x, times = torch.randn(rows, IN).bfloat16(), [[] for _ in sets]  # type: ignore[var-annotated]
    for turn in range(repeats + 1):
        for calls, got in zip(sets, times, strict=True):
            some = calls[:FEW_LAYERS] if rows > MANY_ROWS else calls
            start = clock()
            for call in some:
                call(x)
            if turn:
                got.append((clock() - start) / len(some))
    return [statistics.median(t) for t in times]


def run(device: Device, wanted: str, repeats: int, clock: Callable[[], float]) -> dict[str, Any]:
    weights = [torch.randn(OUT, IN, generator=torch.Generator().manual_seed(i)).mul_(0.03).bfloat16() for i in range(4)]
    many = [weights[i % 4] for i in range(LAYERS)]
    _, dense = layers(device, None, many)
    report: dict[str, Any] = {
        "machine": device.info.name, "threads": device.info.cores, "notes": dict(device.info.notes),
        "outputs": OUT, "inputs": IN, "layers": LAYERS, "rows": ROWS, "dense_ms": [], "forms": [],
    }  # fmt: skip
    print(f"{'form':40} {'kernel':18}" + "".join(f"{r:>7} row{'s' if r > 1 else ' '}" for r in ROWS), flush=True)
    for case in (c for c in CASES if wanted in c.name):
        name, coded = layers(device, case, many)
        got = [seconds((dense, coded), rows, repeats if rows < 512 else max(3, repeats // 3), clock) for rows in ROWS]
        ratios, ms = [round(a / b, 3) for a, b in got], [round(b * 1e3, 4) for _, b in got]
        report["dense_ms"].append([round(a * 1e3, 4) for a, _ in got])
        report["forms"].append({"form": case.name, "kernel": name, "of_dense": ratios, "ms": ms})
        print(f"{case.name:40} {name:18}" + "".join(f"{r:10.2f}x" for r in ratios) + f"   {ms}", flush=True)
    return report


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--threads", type=int, default=0)
    parser.add_argument("--isa", default="", help="instruction set of the compiled kernels (default: the best)")
    parser.add_argument("--only", default="", help="forms whose name has this in it")
    parser.add_argument("--repeats", type=int, default=15)
    parser.add_argument(
        "--processor-time", action="store_true",
        help="one thread, and the time it had a core: says more where others use the machine",
    )  # fmt: skip
    parser.add_argument("--output-json", type=Path)
    requested = parser.parse_args()
    device = (
        CpuPlatform()
        .with_options(CpuOptions(1 if requested.processor_time else requested.threads, requested.isa))
        .open(Place())
    )
    load = os.getloadavg()[0]
    report = (
        {"clock": "processor time" if requested.processor_time else "wall"}
        | run(device, requested.only, requested.repeats, time.thread_time if requested.processor_time else time.perf_counter)
        | {"load_before": load, "load_after": os.getloadavg()[0]}
    )
    if requested.output_json:
        requested.output_json.write_text(json.dumps(report, indent=1) + "\n")
