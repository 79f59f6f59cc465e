"""What a step launches, and what the processor spends on launching it, counted where there is no GPU.

    python ci/gpu/launches.py [--arch sm_90] [--shapes llama-1b,llama-8b] [--variant] [--dependent] [--joined]
    python ci/gpu/launches.py [--quantization fp8] [--unfused]
    python ci/gpu/launches.py --sampling [--arch sm_90]      what sampling launches, and how often it passes over the logits

Models of known shapes run on tensors without memory, with the kernels of that architecture, none of which runs. All else of a
launch happens: the model, the choice of tiles, Triton's way to a compiled kernel. Layers are told from the rest by models of
two and ten layers. A step that a bucket holds is captured, and then costs one launch.

Times are those of this thread on this processor, and only good for a ratio. They leave out the driver's share of a launch.
"""

from __future__ import annotations

import argparse
import json
import logging
import os
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from shapes import QUANTIZATIONS, SHAPES, Case
from torch.utils._python_dispatch import TorchDispatchMode

from thalweg.config import EngineArgs
from thalweg.engine.worker.build import build
from thalweg.engine.worker.cross_compile import make_step
from thalweg.hal import discovery
from thalweg.hal.platform import Limits
from thalweg.hal.step import StepBatch

STEPS: dict[str, tuple[tuple[int, ...], tuple[int, ...]]] = {
    "decode 1": ((1000,), (1,)),
    "decode 64": ((1000,) * 64, (1,) * 64),
    "mixed 16 + 240": ((0, *(1000,) * 16), (240, *(1,) * 16)),
    "prompt 2048": ((0,), (2048,)),
}
"""Name -> tokens in the cache and new tokens of each sequence."""
QUIET = ("empty", "alias", "detach", "lift_fresh", "_unsafe_view", "_reshape_alias", "sym_")
"""Beginnings of torch's operations that launch nothing, beside views."""
LAYERS = (2, 10)


class Operations(TorchDispatchMode):
    """Counts torch's operations that launch something."""

    def __init__(self) -> None:
        super().__init__()
        self.seen: Counter[str] = Counter()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name = func.name().removeprefix("aten::")
        out = func(*args, **(kwargs or {}))
        if is_copy(args, out) if func.is_view else not name.startswith(QUIET):
            self.seen[f"torch {name.partition('.')[0]}"] += 1
        return out


def is_copy(args: Any, out: Any) -> bool:
    """Did an operation whose result may be a view (`to`, `contiguous`, `reshape`) copy its argument?"""
    if not isinstance(out, torch.Tensor) or not args or not isinstance(args[0], torch.Tensor):
        return False
    return bool(out.untyped_storage()._cdata != args[0].untyped_storage()._cdata)


@contextmanager
def counted() -> Iterator[Counter[str]]:
    """What is launched within, by name."""
    from triton.runtime.jit import JITFunction

    run, seen = JITFunction.run, Counter[str]()

    def count(self: Any, *args: Any, **given: Any) -> Any:
        name = f"triton {self.__name__.strip('_')}"
        seen[f"{name} (dependent)" if given.get("launch_pdl") else name] += 1
        return run(self, *args, **given)

    JITFunction.run = count
    operations = Operations()
    try:
        with operations:
            yield seen
    finally:
        JITFunction.run = run
        seen.update(operations.seen)


def measured(launch: Callable[[StepBatch], Any], batch: StepBatch, rounds: int) -> tuple[Counter[str], float]:
    """(what one step launches, best seconds of this thread that launching it took)."""
    launch(batch)  # kernels met for the first time are noted
    with counted() as seen:
        launch(batch)
    seconds = []
    for _ in range(rounds):
        start = time.thread_time()
        launch(batch)
        seconds.append(time.thread_time() - start)
    return seen, min(seconds)


def model(absent: Any, shape: Mapping[str, Any], layers: int, args: argparse.Namespace) -> dict[str, Any]:
    """Step -> (launches, seconds) of a model of so many layers, and whether a graph holds it."""
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / "config.json").write_text(json.dumps({**shape, "num_hidden_layers": layers}))
        worker = build(
            EngineArgs(
                model=folder, load_format="dummy", use_tqdm_on_load=False, batch_invariant=not args.variant,
                skip_tokenizer_init=True, max_model_len=8192, quantization=args.quantization,
                additional_config=Case("", dependent=args.dependent, joined=args.joined, unfused=args.unfused).options,
            ),
            absent.platform,
        )  # fmt: skip
        config = worker.config
        sizes = Limits(
            config.scheduler.token_budget, config.scheduler.max_seqs, config.model.max_len, config.cache.block_tokens
        )
        held = discovery.load("cuda").buckets(None, sizes)
        out = {}
        for name, (context, query) in STEPS.items():
            batch = make_step(config, context, query)
            seen, seconds = measured(worker.launch, batch, args.rounds)
            out[name] = (seen, seconds, any(s.fits(batch) for s in held))
        worker.close()
    return out


def report(few: Mapping[str, Any], more: Mapping[str, Any], layers: int) -> dict[str, dict[str, Any]]:
    """Of each step: launches of one layer, and of what is around all layers, in all, and milliseconds of Python. From models of
    LAYERS layers to one of `layers`."""
    out = {}
    for name, (seen, seconds, graph) in few.items():
        layer = Counter({k: (n - seen[k]) // (LAYERS[1] - LAYERS[0]) for k, n in more[name][0].items()})
        around = Counter({k: n - layer[k] * LAYERS[0] for k, n in seen.items()})
        each = max(0.0, more[name][1] - seconds) / (LAYERS[1] - LAYERS[0])
        out[name] = {
            "layer": sum(layer.values()), "around": sum(around.values()), "graph": graph,
            "launches": 1 if graph else sum(layer.values()) * layers + sum(around.values()),
            "eager_launches": sum(layer.values()) * layers + sum(around.values()),
            "eager_ms": round((max(0.0, seconds - each * LAYERS[0]) + each * layers) * 1e3, 2),
            "of_layer": dict(+layer), "of_around": dict(+around),
        }  # fmt: skip
    return out


def say(shape: str, found: Mapping[str, Mapping[str, Any]]) -> None:
    print(f"\n{shape:18} {'a layer':>8} {'around':>7} {'eager':>6} {'Python ms':>10} {'graph':>6} {'launches':>9}")
    for name, f in found.items():
        print(f"{name:18} {f['layer']:8} {f['around']:7} {f['eager_launches']:6} {f['eager_ms']:10.2f} "
              f"{'yes' if f['graph'] else 'no':>6} {f['launches']:9}")  # fmt: skip
    for name, f in found.items():
        print(f"  around {name}: {', '.join(f'{n} {k}' for k, n in sorted(f['of_around'].items()))}")
        print(f"  layer of {name}: {', '.join(f'{n} {k}' for k, n in sorted(f['of_layer'].items()))}")


def main(words: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--arch", default="sm_90", help="architecture whose kernels are launched (default %(default)s)")
    parser.add_argument("--shapes", default="llama-1b,llama-8b", help=f"of {', '.join(SHAPES)}, with commas between")
    parser.add_argument("--variant", action="store_true", help="kernels that need not be batch-invariant")
    parser.add_argument("--dependent", action="store_true", help="with dependent_launch")
    parser.add_argument("--joined", action="store_true", help="with joined_attention")
    parser.add_argument("--quantization", choices=QUANTIZATIONS, help="round the weights")
    parser.add_argument("--unfused", action="store_true", help="without fused_rounding")
    parser.add_argument("--rounds", type=int, default=20, help="rounds of which the best is told (default %(default)s)")
    parser.add_argument("--output-json", type=Path)
    parser.add_argument("--sampling", action="store_true", help="of the step's tail alone: launches and bytes (sampled.py)")
    args = parser.parse_args(words)
    if args.sampling:  # whether kernels are interpreted is settled when Triton is imported
        interpret = {**os.environ, "TRITON_INTERPRET": "1"}
        return subprocess.run(
            [sys.executable, Path(__file__).with_name("sampled.py"), "--arch", args.arch], env=interpret
        ).returncode
    logging.getLogger("thalweg").setLevel(logging.WARNING)
    absent = discovery.load("cuda" if args.arch.startswith("sm_") else "rocm").absent(args.arch, None)
    found = {}
    print(f"{args.arch}, {'as it comes' if args.variant else 'batch-invariant'}, torch {torch.__version__}")
    for shape in args.shapes.split(","):
        few, more = (model(absent, SHAPES[shape], n, args) for n in LAYERS)
        found[shape] = report(few, more, SHAPES[shape]["num_hidden_layers"])
        say(shape, found[shape])
    if args.output_json:
        args.output_json.write_text(json.dumps({"arch": args.arch, "variant": args.variant, "shapes": found}) + "\n")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
