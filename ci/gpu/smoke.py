"""The first half minute on a machine: is there a device, how fast is it, does a step run, does a captured one, is the text
right. JSON.

    python ci/gpu/smoke.py --device cuda [--have FILE] [--output-json FILE]

Each figure is written as it is known, with its seconds and what the engine warned of. One that fails leaves the others to run.
Exit status: 0 if all hold.
"""

from __future__ import annotations

import argparse
import json
import logging
import platform as machine_facts
import sys
import time
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

import ceilings
import checks
import numpy as np
import nvidia
import torch

from thalweg.hal import discovery
from thalweg.hal.device import Device
from thalweg.hal.platform import Place
from thalweg.hal.step import StateBox, StepBatch, StepResult, StepShape
from thalweg.hal.testing.cases import empty_batch


class Warned(logging.Handler):
    """Keeps what the engine warns of: a captured step that runs eagerly after all says so there only."""

    def __init__(self) -> None:
        super().__init__(logging.WARNING)
        self.words: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.words.append(record.getMessage())


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", required=True, help="platform to try: a name, or package.module:Class")
    parser.add_argument("--have", type=Path, metavar="FILE", help="an earlier report; figures in it are kept")
    parser.add_argument("--output-json", type=Path)
    args = parser.parse_args()
    warned = Warned()
    for room in ("thalweg.backends", "thalweg.engine", "py.warnings"):
        logging.getLogger(room).addHandler(warned)
    logging.captureWarnings(True)
    found: dict[str, Any] = {} if args.have is None else json.loads(args.have.read_text())["figures"]
    report: dict[str, Any] = {"device": args.device, "holds": True, "figures": found}
    for name, run in list_figures(args.device).items():
        if name in found:
            continue
        start, warned.words = time.perf_counter(), []
        try:
            value = run()
        except Exception:  # the next one may tell why
            value = {"holds": False, "error": traceback.format_exc()[-1500:]}
        value |= {"took_seconds": round(time.perf_counter() - start, 2)} | ({"warned": warned.words} if warned.words else {})
        found[name] = value
        report["holds"] = all(f.get("holds", True) for f in found.values())
        print(f"{name}: {json.dumps(value)}", flush=True)
        if args.output_json:
            args.output_json.write_text(json.dumps(report, indent=1) + "\n")
    return 0 if report["holds"] else 1


def list_figures(device: str) -> dict[str, Callable[[], dict[str, Any]]]:
    """Name -> what runs it and says what it found; "holds": False fails the smoke test."""
    return {
        "probe": lambda: probe(device),
        "ceilings": lambda: measure_rates(device),
        "eager step": lambda: counted(device, None),
        "captured step": lambda: counted(device, StepShape(1, 1, 1, uniform=True)),
        "greedy": lambda: greedy(device),
    }


def probe(device: str) -> dict[str, Any]:
    found = discovery.load(device).probe()
    at = ceilings.torch_device(device)
    facts: dict[str, Any] = {
        "holds": found.score > 0, "reason": found.reason, "name": ceilings.device_name(at), "torch": torch.__version__,
        "python": machine_facts.python_version(), "cuda": torch.version.cuda, "hip": getattr(torch.version, "hip", None),
    }  # fmt: skip
    try:
        import triton

        facts["triton"] = triton.__version__
    except ImportError:
        facts["triton"] = None
    if at.type != "cpu":
        properties = getattr(torch, at.type).get_device_properties(at)
        facts["memory_bytes"] = properties.total_memory
        facts["properties"] = str(properties)
    return facts | ({"board": nvidia.read_board()} if device == "cuda" else {})


def measure_rates(device: str) -> dict[str, Any]:
    at = ceilings.torch_device(device)
    found = ceilings.measure_rates(at, at.type == "cpu")
    ceilings.tidy(at)
    return found


def counted(device: str, shape: StepShape | None) -> dict[str, Any]:
    """A step that counts, four times: where it is captured, the first run is eager, the second recorded and replayed."""
    opened = _opened(device)
    try:
        box = StateBox(opened.alloc((1,), "int32"))

        def step(params: Any, state: Any, batch: StepBatch) -> tuple[Any, StepResult]:
            return state + params, StepResult(state.reshape(1, 1), batch.query)

        batch = empty_batch()
        batch = batch if shape is None else batch.pad(shape)
        run = opened.compile(step, opened.put(torch.ones(1, dtype=torch.int32)), box, shape, None)
        got = [int(np.asarray(run(batch).result().tokens)[0, 0]) for _ in range(4)]
        return {"holds": got == [0, 1, 2, 3], "counted": got, "arch": opened.info.notes.get("arch")}
    finally:
        opened.close()


def _opened(device: str) -> Device:
    return discovery.load(device).open(Place())


def greedy(device: str) -> dict[str, Any]:
    """Three requests of the bundled model, token for token, captured steps among them."""
    want, _ = checks.serve("reference", 3, 8, 0.0)
    got, plan = checks.serve(device, 3, 8, 0.0, **checks.limit_graphs(device))
    return checks.compare(got, want, exact=False) | {"kernel_plan": plan}


if __name__ == "__main__":
    sys.exit(main())
