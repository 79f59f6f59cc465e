"""Seconds, and processor seconds, from a checkpoint's files to packed weights, beside a plain read of as many bytes as those
have: what a cache of them on disk would cost at the least. Files are in the page cache. Prints medians and ratios.

    python benchmarks/loading.py MODEL [--quantization int4] [--dtype bfloat16] [--runs 3] [--device cpu]
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np

from thalweg.checkpoint.config import read_config
from thalweg.checkpoint.hub import resolve_model
from thalweg.hal.comm import Mesh
from thalweg.hal.discovery import load
from thalweg.hal.op import Binder
from thalweg.hal.platform import Place
from thalweg.models import registry as families
from thalweg.models import sizes
from thalweg.models.build import build
from thalweg.models.load import load_params
from thalweg.models.precision import model_scheme
from thalweg.quantization import registry

LENGTH = 512


def timed(work: Callable[[], object], runs: int) -> tuple[float, float]:
    """Medians: seconds, processor seconds. The first run, which reads the disk, does not count."""
    took = []
    for _ in range(runs + 1):
        wall, cpu = time.monotonic(), time.process_time()
        result = work()
        took.append((time.monotonic() - wall, time.process_time() - cpu))
        del result
    return statistics.median(t[0] for t in took[1:]), statistics.median(t[1] for t in took[1:])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model")
    parser.add_argument("--quantization")
    parser.add_argument("--dtype", default="bfloat16")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--runs", type=int, default=3)
    a = parser.parse_args()
    path, device = resolve_model(a.model), load(a.device).open(Place())
    config = read_config(path, None, registry.check)
    model = build(
        config, binder=Binder(device.kernels), attention=device.attention, mesh=Mesh(device.comm), dtype=a.dtype,
        max_len=LENGTH, block_tokens=16, quantization=a.quantization,
    )  # fmt: skip
    spec = families.family(config)(config)
    held = sizes.weight_bytes(spec, a.dtype, LENGTH, use=model_scheme(config, a.quantization, spec))
    loaded = timed(lambda: load_params(model, path, device, progress=False), a.runs)
    with tempfile.TemporaryDirectory(dir=Path(path).parent) as folder:
        file = Path(folder) / "bytes"
        with file.open("wb") as out:
            for _ in range(held >> 20):
                out.write(bytes(1 << 20))
        read = timed(lambda: np.fromfile(file, np.uint8), a.runs)
    print(f"{held / 1e6:.0f} MB of weights in memory")
    print(f"{'':24} {'seconds':>9} {'processor':>9}")
    for name, (wall, cpu) in (("loaded and packed", loaded), ("read, as many bytes", read)):
        print(f"{name:24} {wall:9.2f} {cpu:9.2f}")
    print(f"{'ratio':24} {loaded[0] / read[0]:9.1f} {loaded[1] / read[1]:9.1f}")


if __name__ == "__main__":
    main()
