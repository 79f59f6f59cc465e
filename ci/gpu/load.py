"""How fast weights reach a device from files that the machine has in memory, beside a plain read of them: JSON.

    python ci/gpu/load.py --device cuda [--shape llama-1b] [--readers 0,1,4,8,16] [--output-json FILE]

A checkpoint of a known shape is written first, with made-up values. Each way is the best of three. 0 readers is the way without
threads. The plain read is by eight threads into memory that is there already.
"""

from __future__ import annotations

import argparse
import json
import os
import tempfile
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from measure import SHAPES, device_name, tidy, torch_device

from thalweg.checkpoint.safetensors import open_checkpoint
from thalweg.hal import discovery
from thalweg.hal.comm import Mesh
from thalweg.hal.op import Binder
from thalweg.hal.platform import Place
from thalweg.models.build import Model, build
from thalweg.models.load import load_params
from thalweg.models.weights import walk

PIECE, THREADS = 16 << 20, 8


def model_of(config: dict[str, Any], device: Any) -> Model:
    return build(
        config, binder=Binder(device.kernels), attention=device.attention, mesh=Mesh(device.comm), dtype="bfloat16",
        max_len=512, block_tokens=16,
    )  # fmt: skip


def write(folder: Path, config: dict[str, Any], model: Model) -> int:
    """Bytes of the weights written."""
    from safetensors.torch import save_file

    shapes = {s.name: s.checkpoint_shape for _, spec in walk(model.specs) for s in spec.sources}
    tensors = {name: torch.empty(shape, dtype=torch.bfloat16).normal_(0, 0.02) for name, shape in shapes.items()}
    save_file(tensors, folder / "model.safetensors")
    (folder / "config.json").write_text(json.dumps(config))
    return sum(t.nbytes for t in tensors.values())


def best(work: Callable[[], object], rounds: int = 3) -> float:
    took = []
    for _ in range(rounds):
        start = time.perf_counter()
        result = work()
        took.append(time.perf_counter() - start)
        del result
    return min(took)


def plain(folder: Path) -> Callable[[], None]:
    """Reads all tensors' bytes, and keeps none."""
    files = open_checkpoint(folder)
    pieces = [(s, at, min(PIECE, s.count - at)) for s in (files.span(n) for n in files) if s for at in range(0, s.count, PIECE)]
    buffers = [np.ones(PIECE, np.uint8) for _ in range(THREADS)]

    def read() -> None:
        def some(i: int) -> None:
            for span, at, count in pieces[i::THREADS]:
                span.into(at, buffers[i][:count])

        with ThreadPoolExecutor(THREADS) as pool:
            list(pool.map(some, range(THREADS)))

    return read


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", required=True, help="platform: a name, or package.module:Class")
    parser.add_argument("--shape", default="llama-1b", choices=sorted(SHAPES))
    parser.add_argument("--readers", default="0,1,4,8,16", type=lambda s: [int(n) for n in s.split(",")])
    parser.add_argument("--output-json", type=Path)
    args = parser.parse_args()
    config, chip = SHAPES[args.shape], torch_device(args.device)
    report: dict[str, Any] = {"device": args.device, "name": device_name(chip), "shape": args.shape, "readers": {}}
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch)
        for n in args.readers:
            platform = discovery.load(args.device)
            device = platform.with_options(replace(platform.options, readers=n)).open(Place())
            model = model_of(config, device)
            if "bytes" not in report:
                report["bytes"] = write(folder, config, model)
                os.sync()
                report["plain_bytes_per_second"] = report["bytes"] / best(plain(folder))

            def load(model: Any = model, device: Any = device) -> Any:
                params = load_params(model, folder, device, progress=False)
                device.synchronize()
                return params

            report["readers"][str(n)] = report["bytes"] / best(load)
            device.close()
            tidy(chip)
            if args.output_json:
                args.output_json.write_text(json.dumps(report, indent=2) + "\n")
    for n, rate in report["readers"].items():
        ratio = rate / report["plain_bytes_per_second"]
        print(f"{n} readers: {rate / 1e9:.2f} GB/s, {ratio:.2f} of a plain read")
    print(f"plain read: {report['plain_bytes_per_second'] / 1e9:.2f} GB/s of {report['bytes'] / 1e9:.2f} GB")


if __name__ == "__main__":
    main()
