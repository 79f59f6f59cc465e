"""What ranks of one machine cost: one process with two threads, and two ranks (also with --tp-invariant) or two pipeline stages
with a thread each.

    python benchmarks/ranks.py [--model DIR | --shape qwen3-0.6b] [--layers N] [--repeats 5] [--dtype bfloat16]

Every turn runs each engine once, one after another, so that a busy machine slows all alike. Seconds are medians, and ratios
are those of one process to the others: above 1, ranks are faster. Bytes are those of the checkpoint that a rank reads at load,
counted.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import tempfile
from pathlib import Path
from typing import Any

import numpy as np

sys.path.insert(0, str(Path(__file__).parent))
from batch_invariance import seconds
from vs_transformers import shape_model

from thalweg import LLM
from thalweg.checkpoint.config import read_config
from thalweg.checkpoint.safetensors import Checkpoint
from thalweg.hal.comm import SOLO, Communicator, Mesh, StageLinks
from thalweg.hal.discovery import load
from thalweg.hal.op import Binder
from thalweg.hal.platform import Place
from thalweg.models.build import build
from thalweg.models.load import load_params
from thalweg.models.registry import declare

ENGINES: dict[str, dict[str, Any]] = {
    "2 threads": {"threads": 2},
    "2 ranks": {"tensor_parallel_size": 2, "threads": 1},
    "2 ranks, invariant": {"tensor_parallel_size": 2, "threads": 1, "tp_invariant": True},
    "2 stages": {"pipeline_parallel_size": 2, "threads": 1},
}
CASES = {"1 x 64 + 64": (1, 64, 64), "8 x 64 + 32": (8, 64, 32), "1 x 1024 + 1": (1, 1024, 1)}
"""Requests x tokens of a prompt + new tokens."""


class Counted(Communicator):
    """The ranks of a model that is only loaded."""

    def __init__(self, size: int) -> None:
        self.size = size

    def all_reduce(self, x: Any) -> Any:
        return x

    all_gather = part = all_reduce  # type: ignore[assignment]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", type=Path)
    parser.add_argument("--shape", default="qwen3-0.6b")
    parser.add_argument("--layers", type=int)
    parser.add_argument("--dtype", default="bfloat16")
    parser.add_argument("--repeats", type=int, default=5)
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as scratch:
        model = args.model or shape_model(args.shape, args.layers, Path(scratch))
        report: dict[str, Any] = {"bytes": count_bytes(model, args.dtype), "seconds": time_engines(model, args)}
    print(json.dumps(report, indent=2))


def time_engines(model: Path, args: argparse.Namespace) -> dict[str, dict[str, float]]:
    engines = {
        name: LLM(
            str(model), device="cpu", dtype=args.dtype, skip_tokenizer_init=True, max_model_len=2048, max_num_seqs=8,
            enable_prefix_caching=False, use_tqdm_on_load=False, kv_cache_memory_bytes=1 << 30, **more,
        )
        for name, more in ENGINES.items()
    }  # fmt: skip
    for llm in engines.values():
        seconds(llm, 2, 64, 4, 0)  # warm
    report = {}
    for case, work in CASES.items():
        times: dict[str, list[float]] = {name: [] for name in engines}
        for repeat in range(args.repeats):
            for name, llm in engines.items():
                times[name].append(seconds(llm, *work, 1 + repeat))
        found = report[case] = {name: statistics.median(each) for name, each in times.items()}
        first = next(iter(found.values()))
        print(f"{case:14}" + "".join(f"  {name} {s:.3f} s ({first / s:.2f})" for name, s in found.items()), file=sys.stderr)
    for llm in engines.values():
        llm.llm_engine.shutdown()
    return report


def count_bytes(model: Path, dtype: str) -> dict[str, list[int]]:
    """Bytes that each rank reads."""
    device, read = load("cpu").open(Place()), Checkpoint.read
    counted = [0]

    def note(self: Checkpoint, *which: Any) -> np.ndarray:
        values = read(self, *which)
        counted[0] += values.nbytes
        return values

    def load_rank(mesh: Mesh, rank: int) -> int:
        counted[0] = 0
        result = build(
            declare(read_config(model), model)[0], binder=Binder(device.kernels), attention=device.attention, mesh=mesh,
            dtype=dtype, max_len=64, block_tokens=16,
        )  # fmt: skip
        load_params(result, model, device, progress=False, ranks=(rank,))
        return counted[0]

    Checkpoint.read = note  # type: ignore[method-assign,assignment]
    found = {
        "2 threads": [load_rank(Mesh(SOLO), 0)],
        "2 ranks": [load_rank(Mesh(Counted(2)), rank) for rank in range(2)],
        "2 stages": [load_rank(Mesh(stage=StageLinks(stage, 2)), 0) for stage in range(2)],
    }
    Checkpoint.read = read  # type: ignore[method-assign]
    whole = found["2 threads"][0]
    for name, each in found.items():
        print(f"{name:14}" + "".join(f"  {n:,} bytes read ({n / whole:.3f})" for n in each), file=sys.stderr)
    return found


if __name__ == "__main__":
    main()
