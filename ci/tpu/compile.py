"""Compile whole steps and kernels for TPU generations with libtpu, on a host without one, and print what the compiler says
of their memory: `python ci/tpu/compile.py [--chips v5e v6e v7x] [--models 1b 8b]`. One JSON line each.

Needs `pip install 'jax[tpu]'` (700 MB) beside the test environment, which is why it is no test. Nothing is executed.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
from pathlib import Path

os.environ["JAX_PLATFORMS"] = "cpu"
os.environ.setdefault("TPU_SKIP_MDS_QUERY", "1")
sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import jax
import numpy as np
from jax.experimental import topologies
from jax.sharding import Mesh, NamedSharding, PartitionSpec
from tpu_steps import LLAMA_1B, LLAMA_8B, step_of

from thalweg.hal.step import Features, StepShape

CHIPS = {"v4": "v4:2x2x1", "v5e": "v5e:2x2x1", "v5p": "v5p:2x2x1", "v6e": "v6e:2x2x1", "v7x": "tpu7x:2x2x1"}
MODELS = {"1b": LLAMA_1B, "8b": LLAMA_8B}
STEPS = {
    "decode-1": (StepShape(1, 1, 128, uniform=True), Features()),
    "decode-64-sampled": (StepShape(64, 64, 128, uniform=True), Features(random=True, truncate=True)),
    "prefill-1024": (StepShape(1024, 65, 128), Features()),
}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--chips", nargs="+", choices=CHIPS, default=["v5e", "v6e", "v7x"])
    parser.add_argument("--models", nargs="+", choices=MODELS, default=["1b", "8b"])
    parser.add_argument("--steps", nargs="+", choices=STEPS, default=list(STEPS))
    parser.add_argument("--layers", type=int, help="fewer layers than the model has, to compile faster")
    args = parser.parse_args()
    bad = 0
    for chip in args.chips:
        device = topologies.get_topology_desc(CHIPS[chip], "tpu").devices[0]
        for model in args.models:
            config = MODELS[model] | ({"num_hidden_layers": args.layers} if args.layers else {})
            for name in args.steps:
                record = {"chip": chip, "model": model, "layers": config["num_hidden_layers"], "step": name}
                try:
                    record |= compiled(config, *STEPS[name], device)
                except Exception as e:  # every combination is tried, and each failure told
                    record["error"] = f"{type(e).__name__}: {str(e)[:500]}"
                    bad += 1
                print(json.dumps(record), flush=True)
    return bool(bad)


def compiled(config: dict[str, object], shape: StepShape, features: Features, device: object) -> dict[str, object]:
    """Bytes of arguments, temporaries and what is shared with the (donated) arguments; seconds."""
    start = time.monotonic()
    step, shapes = step_of(config, shape, features=features)
    there = NamedSharding(Mesh(np.array([device]), ("rank",)), PartitionSpec())
    placed = jax.tree.map(lambda s: jax.ShapeDtypeStruct(s.shape, s.dtype, sharding=there), shapes)
    made = step.lower(*placed).compile()
    memory = made.memory_analysis()
    text = made.as_text()
    return {
        "arguments": memory.argument_size_in_bytes, "temporaries": memory.temp_size_in_bytes,
        "aliased": memory.alias_size_in_bytes, "program": memory.generated_code_size_in_bytes,
        "kernels": text.count("tpu_custom_call"), "seconds": round(time.monotonic() - start, 1),
    }  # fmt: skip


if __name__ == "__main__":
    sys.exit(main())
