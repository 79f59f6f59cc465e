"""Compile whole steps for TPU generations with libtpu, on a host without one, and print what the compiler says of their memory.

    python ci/tpu/compile.py [--chips v5e v6e v7x] [--models 1b 8b] [--ranks 1 4] [--json FILE]

Needs libtpu (`pip install 'jax[tpu]'`, 700 MB) beside the test environment, which is why it is no test. Nothing is executed.
One line per step as it is compiled; exit status 1 if one is refused. `planned` is what the engine sets aside for temporaries
(Platform.workspace): the compiler's own figure must not be above it.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

os.environ["JAX_PLATFORMS"] = "cpu"
os.environ.setdefault("TPU_SKIP_MDS_QUERY", "1")

import jax
from jax.experimental import topologies
from tpu_steps import LLAMA_1B, LLAMA_8B, TOPOLOGIES, step_of

from thalweg.backends.tpu import TpuPlatform
from thalweg.backends.tpu.kinds import KINDS
from thalweg.backends.tpu.mesh import Ranks
from thalweg.config import SchedulerConfig
from thalweg.engine.worker.plan import step_sizes
from thalweg.hal.step import Features, StepShape
from thalweg.models.registry import family

MODELS = {"1b": LLAMA_1B, "8b": LLAMA_8B}
SEQS, LENGTH = 64, 4096
STEPS = {
    "decode-1": (StepShape(1, 1, 128, uniform=True), Features(random=True)),
    "decode-64": (StepShape(SEQS, SEQS, 128, uniform=True), Features(random=True)),
    "decode-64-top-p": (StepShape(SEQS, SEQS, 128, uniform=True), Features(random=True, truncate=True, logprobs=20)),
    "prefill-1024": (StepShape(1024, SEQS + 1, 128), Features(random=True)),
}
COLUMNS = ("chip", "model", "ranks", "step", "arguments", "temporaries", "planned", "of HBM", "kernels", "seconds")
ROW = "{:5} {:5} {:>5} {:16} {:>11} {:>11} {:>9} {:>6} {:>7} {:>7}"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--chips", nargs="+", choices=TOPOLOGIES, default=["v5e", "v6e", "v7x"])
    parser.add_argument("--models", nargs="+", choices=MODELS, default=["1b", "8b"])
    parser.add_argument("--steps", nargs="+", choices=STEPS, default=list(STEPS))
    parser.add_argument("--ranks", nargs="+", type=int, default=[1, 4], help="devices that share the model")
    parser.add_argument("--layers", type=int, help="fewer layers than the model has, to compile faster")
    parser.add_argument("--json", type=Path, help="write the records there")
    args = parser.parse_args()
    print(ROW.format(*COLUMNS), flush=True)
    records = []
    for chip in args.chips:
        devices = topologies.get_topology_desc(TOPOLOGIES[chip], "tpu").devices
        for model in args.models:
            config = MODELS[model] | ({"num_hidden_layers": args.layers} if args.layers else {})
            for ranks in args.ranks:
                for name in args.steps:
                    record = {"chip": chip, "model": model, "ranks": ranks, "step": name, "layers": config["num_hidden_layers"]}
                    try:
                        record |= compiled(config, *STEPS[name], Ranks(devices[:ranks]))
                    except Exception as e:  # every combination is tried, and each refusal told
                        record["error"] = f"{type(e).__name__}: {str(e)[:500]}"
                    print(shown(record), flush=True)
                    records.append(record)
    if args.json:
        args.json.write_text(json.dumps(records, indent=1) + "\n")
    return int(any("error" in r for r in records))


def compiled(config: Mapping[str, Any], shape: StepShape, features: Features, ranks: Ranks) -> dict[str, Any]:
    """Per device, in bytes: parameters and state (donated ones once), temporaries beside them, the program."""
    start = time.monotonic()
    step, shapes = step_of(config, shape, features=features, max_len=LENGTH, ranks=ranks)
    made = step.lower(*shapes).compile()
    memory, text = made.memory_analysis(), made.as_text()
    schedule = SchedulerConfig(max_seqs=shape.seqs, max_tokens=shape.tokens)
    sizes = step_sizes(family(config)(config), schedule, LENGTH, "bfloat16", ranks.size, batch_invariant=False)
    return {
        "arguments": memory.argument_size_in_bytes, "temporaries": memory.temp_size_in_bytes,
        "planned": TpuPlatform().workspace(sizes), "program": memory.generated_code_size_in_bytes,
        "aliased": memory.alias_size_in_bytes, "kernels": text.count("tpu_custom_call"),
        "all_reduces": text.count(" all-reduce("), "seconds": round(time.monotonic() - start, 1),
    }  # fmt: skip


def shown(r: Mapping[str, Any]) -> str:
    if "error" in r:
        return f"{r['chip']:5} {r['model']:5} {r['ranks']:>5} {r['step']:16} REFUSED {r['error']}"
    mib = [f"{r[k] / (1 << 20):.0f} MiB" for k in ("arguments", "temporaries", "planned")]
    share = (r["arguments"] + r["temporaries"]) / KINDS[r["chip"]].memory_bytes
    cells = [r["chip"], r["model"], r["ranks"], r["step"], *mib, f"{share:.0%}", r["kernels"], r["seconds"]]
    return ROW.format(*cells)


if __name__ == "__main__":
    jax.config.update("jax_enable_compilation_cache", False)
    sys.exit(main())
