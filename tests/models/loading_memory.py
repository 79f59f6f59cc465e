"""A child process that rounds a checkpoint while it loads it, and prints how much its memory grew: {"held": bytes once loaded,
"most": bytes at the fullest}. Arguments: a model directory to warm up with, the one to load, a method."""

from __future__ import annotations

import gc
import json
import sys
from pathlib import Path

from thalweg.checkpoint.config import read_config
from thalweg.hal.comm import Mesh
from thalweg.hal.discovery import load
from thalweg.hal.op import Binder
from thalweg.hal.platform import Place
from thalweg.models.build import build
from thalweg.models.load import load_params


def status(key: str) -> int:
    line = next(x for x in Path("/proc/self/status").read_text().splitlines() if x.startswith(f"{key}:"))
    return int(line.split()[1]) * 1024


def loaded(path: str, method: str) -> object:
    device = load("reference").open(Place())
    model = build(
        read_config(path), binder=Binder(()), attention=device.attention, mesh=Mesh(device.comm), dtype="bfloat16", max_len=16,
        block_tokens=4, quantization=method,
    )  # fmt: skip
    return load_params(model, path, device, progress=False)


def main() -> None:
    warm, path, method = sys.argv[1:]
    loaded(warm, method)
    gc.collect()
    Path("/proc/self/clear_refs").write_text("5")  # VmHWM counts from here
    before = status("VmRSS")
    params = loaded(path, method)
    gc.collect()
    print(json.dumps({"held": status("VmRSS") - before, "most": status("VmHWM") - before}))
    del params


if __name__ == "__main__":
    main()
