"""What adapters cost: steps with them and without, of two engines of one process, turn by turn.

    python benchmarks/adapters.py [--shape qwen3-0.6b] [--layers N] [--only nano] [--threads N] [--steps 200]

First the bundled model, then random weights of a shape. Adapters are random, of rank 16, for all linear layers. A step has one
token of each stream. "ratio" is the median time of steps without adapters over that of steps with them. "of_minima" is the
same of the least times, which other work on the machine changes less. 1.00 means that adapters cost nothing. "allowed" is what
the bytes allow where reading memory takes all the time: the weights, over the weights and the adapters that a step reads.
"usable" is the time from the call that names a new adapter to its first token, less that of a request without an adapter. Its
files are in the page cache.
"""

from __future__ import annotations

import argparse
import itertools
import json
import statistics
import sys
import tempfile
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors import safe_open
from safetensors.torch import save_file
from vs_transformers import shape_model

import thalweg
from thalweg import LLM, LoRARequest, SamplingParams
from thalweg.engine.planning.memory import plan
from thalweg.hal.parts.adapters import Adapters
from thalweg.hal.step import SamplingArrays, StepBatch, features_of
from thalweg.options.engine import EngineArgs

RANK, SLOTS, ROWS, CONTEXT = 16, 8, 32, 64
ATTENTION, ALL = ("q_proj", "v_proj"), ("q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj")
NANO = Path(thalweg.__file__).parent / "nano" / "weights"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--shape", default="qwen3-0.6b", help="see scripts/make_shape_model.py")
    parser.add_argument("--layers", type=int, help="fewer layers than the shape has")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--dtype", default="bfloat16")
    parser.add_argument("--threads", type=int)
    parser.add_argument("--steps", type=int, default=200)
    parser.add_argument("--repeats", type=int, default=7, help="adapters loaded to find when they are usable")
    parser.add_argument("--only", choices=["nano", "shape"], help="of the two models, one")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as scratch:
        at = Path(scratch)
        report = {}
        if args.only != "shape":
            report["thalweg-nano"] = measure(NANO, at / "nano", args)
        if args.only != "nano":
            report[args.shape] = measure(shape_model(args.shape, args.layers, at), at / "shape", args)
    print(json.dumps(report, indent=2))


def measure(model: Path, folder: Path, args: argparse.Namespace) -> dict[str, Any]:
    sizes: dict[str, Any] = {
        "model": str(model), "device": args.device, "dtype": args.dtype,
        "max_model_len": 256, "max_num_seqs": ROWS, "enable_prefix_caching": False, "use_tqdm_on_load": False,
        "skip_tokenizer_init": True, "threads": args.threads,
    }  # fmt: skip
    off, on = LLM(**sizes), LLM(**sizes, enable_lora=True, max_loras=SLOTS, max_lora_rank=RANK, max_cpu_loras=2 * SLOTS)
    weights = plan(EngineArgs(**sizes)).weights
    numbers = itertools.count(1)

    def adapter(modules: tuple[str, ...]) -> LoRARequest:
        number = next(numbers)
        write_adapter(model, folder / str(number), number, modules)
        return LoRARequest(str(number), number, str(folder / str(number)))

    every = [adapter(ALL) for _ in range(SLOTS)]
    cases = {
        "base rows, 1 stream": (1, []),
        f"base rows, {ROWS} streams": (ROWS, []),
        "one adapter, 1 stream": (1, every[:1]),
        "q and v only, 1 stream": (1, [adapter(ATTENTION)]),
        f"{SLOTS} adapters, {ROWS} streams": (ROWS, every),
    }
    report: dict[str, Any] = {}
    for name, (rows, loras) in cases.items():
        with_them, without = adapted_step(on, rows, loras), decode_step(off, rows)
        times = [(timed(off, without), timed(on, with_them)) for _ in range(args.steps)][3:]
        columns = list(zip(*times, strict=True))
        (median, least), (median_with, least_with) = ((statistics.median(c), min(c)) for c in columns)
        read = sum(file.stat().st_size for lora in loras for file in Path(lora.lora_path).glob("*.safetensors"))
        report[name] = {
            "without_ms": 1e3 * median, "with_ms": 1e3 * median_with, "ratio": median / median_with,
            "of_minima": least / least_with, "allowed": weights / (weights + read),
        }  # fmt: skip
        print(f"{name:24}", *(f"{key} {value:.3f}" for key, value in report[name].items()), file=sys.stderr)
    report["usable_ms"] = statistics.median(usable(on, adapter(ALL)) for _ in range(args.repeats))
    print(f"usable after {report['usable_ms']:.1f} ms", file=sys.stderr)
    off.shutdown()
    on.shutdown()
    return report


def write_adapter(model: Path, folder: Path, seed: int, modules: tuple[str, ...]) -> None:
    """A random adapter of bfloat16 in peft's form, for the linear layers of these names."""
    rng, tensors = torch.Generator().manual_seed(seed), {}
    for file in sorted(model.glob("*.safetensors")):
        with safe_open(file, "pt") as opened:
            for name in opened.keys():  # noqa: SIM118
                module = name.removesuffix(".weight")
                if module.endswith(modules):
                    rows, inputs = opened.get_slice(name).get_shape()
                    a, b = torch.randn(RANK, inputs, generator=rng) / inputs**0.5, torch.randn(rows, RANK, generator=rng) * 0.01
                    tensors |= {
                        f"base_model.model.{module}.lora_{key}.weight": value.bfloat16()
                        for key, value in zip("AB", (a, b), strict=True)
                    }
    folder.mkdir(parents=True)
    (folder / "adapter_config.json").write_text(
        json.dumps({"peft_type": "LORA", "r": RANK, "lora_alpha": RANK, "target_modules": list(modules)})
    )
    save_file(tensors, folder / "adapter_model.safetensors")


def decode_step(llm: LLM, rows: int) -> StepBatch:
    """A step of so many sequences in the middle of their text, one token of each."""
    i32, cache = np.int32, llm.config.cache
    columns, one = -(-(CONTEXT + 1) // cache.block_tokens), np.ones(rows, np.int32)
    return StepBatch(
        tokens=np.random.default_rng(0).integers(10, llm.config.model.vocab, rows, i32), token_seq=np.arange(rows, dtype=i32),
        positions=CONTEXT * one, slots=np.arange(1, rows + 1, dtype=i32), context=CONTEXT * one, query=one,
        last_row=np.arange(rows, dtype=i32), emit=np.ones(rows, bool),
        block_tables=(1 + np.arange(rows * columns, dtype=i32).reshape(rows, columns),) * len(cache.groups),
        sampling=SamplingArrays.greedy(rows), uniform=1,
    )  # fmt: skip


def adapted_step(llm: LLM, rows: int, loras: list[LoRARequest]) -> StepBatch:
    """The same, the adapters among its sequences in turn. They are read, and written into the slots from 1 on."""
    worker = llm.llm_engine.worker
    for slot, lora in enumerate(loras, 1):
        digest = worker.operations["read_adapter"](lora.lora_path)
        worker.operations["keep_adapter"](digest)
        worker.operations["write_adapter"](slot, digest)
    if not loras:
        return decode_step(llm, rows)
    part = Adapters((1 + np.arange(rows) % len(loras)).astype(np.int32))
    return replace(decode_step(llm, rows), parts=(part,), features=features_of((part,)))


def timed(llm: LLM, batch: StepBatch) -> float:
    begin = time.perf_counter()
    llm.llm_engine.worker.launch(batch).result()
    return time.perf_counter() - begin


def usable(llm: LLM, lora: LoRARequest) -> float:
    """Milliseconds that a request waits for an adapter that was never named before."""
    plain = min(seconds_to_token(llm, None) for _ in range(3))
    return 1e3 * (seconds_to_token(llm, lora) - plain)


def seconds_to_token(llm: LLM, lora: LoRARequest | None) -> float:
    begin = time.perf_counter()
    one = SamplingParams(max_tokens=1, temperature=0)
    llm.generate([{"prompt_token_ids": [11, 12, 13]}], one, use_tqdm=False, lora_request=lora)
    return time.perf_counter() - begin


if __name__ == "__main__":
    main()
