"""thalweg beside plain transformers, same weights, same machine, same threads, one command, turns taken run by run.

    python benchmarks/vs_transformers.py [--model DIR | --shape qwen3-0.6b] [--device cpu] [--threads N] [--repeats 3]

Two cases: one request alone, and a batch of requests (transformers: one static batch). Every repeat has fresh random prompts,
the same for both, so nothing comes from a prefix cache. Ratios are of medians; above 1 means thalweg is faster.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
import transformers
from tqdm import tqdm

from thalweg import LLM, SamplingParams

SCRIPTS = Path(__file__).resolve().parent.parent / "scripts"
Run = Callable[[list[list[int]], int], list[list[int]]]
"""Prompts and the number of new tokens -> the new tokens."""


def main() -> None:
    args = _arguments()
    transformers.logging.set_verbosity_error()
    transformers.logging.disable_progress_bar()
    with tempfile.TemporaryDirectory() as scratch:
        report = compare(args, args.model or shape_model(args.shape, args.layers, Path(scratch)))
    print(table(report), file=sys.stderr)
    text = json.dumps(report, indent=2)
    print(text)
    if args.json:
        args.json.write_text(text + "\n")


def compare(args: argparse.Namespace, model: Path) -> dict[str, Any]:
    """Load both, warm both, measure in turns."""
    torch.set_num_threads(args.threads)
    ours, plan = _thalweg(model, args)
    theirs, vocab = _transformers(model, args)
    rng = np.random.default_rng(args.seed)
    seconds: dict[tuple[str, str], list[float]] = {}
    same = total = 0
    cases = {"single": 1, "batch": args.batch}
    with tqdm(total=(args.repeats + 1) * len(cases), desc="runs", file=sys.stderr, disable=None) as bar:
        for repeat in range(args.repeats + 1):  # the first is not counted: it warms up
            for case, n in cases.items():
                short, whole = rng.integers(0, vocab, (2, n, args.input)).tolist()
                outputs = []
                for who, run in (("thalweg", ours), ("transformers", theirs)):
                    prefill, _ = _timed(run, short, 1)
                    spent, tokens = _timed(run, whole, args.output)
                    outputs.append(tokens)
                    if repeat:
                        seconds.setdefault((case, f"{who}.prefill"), []).append(prefill)
                        seconds.setdefault((case, f"{who}.total"), []).append(spent)
                same += sum(a == b for x, y in zip(*outputs, strict=True) for a, b in zip(x, y, strict=True))
                total += n * args.output
                bar.update()
    cases_report = {case: _case(seconds, case, n, args) for case, n in cases.items()}
    return {
        "model": str(args.model or args.shape),
        "device": args.device,
        "dtype": args.dtype,
        "input": args.input,
        "output": args.output,
        "repeats": args.repeats,
        "threads": args.threads,
        "machine": f"{platform.processor() or platform.machine()}, {os.cpu_count()} cores",
        "versions": {"torch": torch.__version__, "transformers": transformers.__version__},
        "cases": cases_report,
        "tokens_equal": round(same / total, 4),
        "kernel_plan": plan,
    }


def table(report: dict[str, Any]) -> str:
    """The ratios, for people."""
    lines = [f"{'case':8} {'requests':>8} {'':10} {'thalweg':>10} {'transformers':>13} {'ratio':>7}"]
    for name, case in report["cases"].items():
        for what, unit in (("total_seconds", "s"), ("decode_tokens_per_second", "tok/s")):
            mine, other = case["thalweg"][what], case["transformers"][what]
            ratio = case["ratio"][what]
            lines.append(f"{name:8} {case['requests']:>8} {unit:>10} {mine:>10.3f} {other:>13.3f} {ratio:>6.2f}x")
    return "\n".join(lines)


def _case(seconds: dict[tuple[str, str], list[float]], case: str, n: int, args: argparse.Namespace) -> dict[str, Any]:
    out: dict[str, Any] = {"requests": n}
    for who in ("thalweg", "transformers"):
        whole, first = (seconds[case, f"{who}.{what}"] for what in ("total", "prefill"))
        decode = [n * (args.output - 1) / max(a - b, 1e-9) for a, b in zip(whole, first, strict=True)]
        out[who] = {
            "total_seconds": statistics.median(whole),
            "prefill_seconds": statistics.median(first),
            "decode_tokens_per_second": statistics.median(decode),
            "output_tokens_per_second": n * args.output / statistics.median(whole),
            "runs": whole,
        }
    a, b = out["thalweg"], out["transformers"]
    out["ratio"] = {
        "total_seconds": b["total_seconds"] / a["total_seconds"],
        "prefill_seconds": b["prefill_seconds"] / a["prefill_seconds"],
        "decode_tokens_per_second": a["decode_tokens_per_second"] / b["decode_tokens_per_second"],
    }
    return out


def _timed(run: Run, prompts: list[list[int]], new: int) -> tuple[float, list[list[int]]]:
    start = time.perf_counter()
    tokens = run(prompts, new)
    spent = time.perf_counter() - start
    if any(len(t) != new for t in tokens):
        raise SystemExit(f"a run gave {sorted({len(t) for t in tokens})} tokens, not {new}: nothing was compared")
    return spent, tokens


def _thalweg(model: Path, args: argparse.Namespace) -> tuple[Run, list[str]]:
    length = args.input + args.output
    llm = LLM(
        model=str(model), device=args.device, dtype=args.dtype, threads=args.threads, skip_tokenizer_init=True,
        max_model_len=length, use_tqdm_on_load=False,
    )  # fmt: skip

    threads = torch.get_num_threads()  # what the device chose; the other run changes it

    def run(prompts: list[list[int]], new: int) -> list[list[int]]:
        torch.set_num_threads(threads)
        params = SamplingParams(temperature=0, max_tokens=new, ignore_eos=True, detokenize=False)
        outputs = llm.generate([{"prompt_token_ids": p} for p in prompts], params, use_tqdm=False)
        return [list(o.outputs[0].token_ids) for o in outputs]

    return run, llm.kernel_plan


def _transformers(model: Path, args: argparse.Namespace) -> tuple[Run, int]:
    loaded = transformers.AutoModelForCausalLM.from_pretrained(model, dtype=getattr(torch, args.dtype)).eval()

    def run(prompts: list[list[int]], new: int) -> list[list[int]]:
        torch.set_num_threads(args.threads)
        ids = torch.tensor(prompts)
        with torch.inference_mode():
            out = loaded.generate(
                ids, attention_mask=torch.ones_like(ids), max_new_tokens=new, min_new_tokens=new, do_sample=False,
                pad_token_id=0,
            )  # fmt: skip
        return out[:, ids.shape[1] :].tolist()

    return run, loaded.config.vocab_size


def shape_model(shape: str, layers: int | None, scratch: Path) -> Path:
    sys.path.insert(0, str(SCRIPTS))
    import make_shape_model

    print(f"making random weights of the shape of {shape} ...", file=sys.stderr)
    return make_shape_model.make(shape, scratch / shape, layers=layers)


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", type=Path, help="a local model directory instead of random weights")
    parser.add_argument("--shape", default="qwen3-0.6b", help="see scripts/make_shape_model.py")
    parser.add_argument("--layers", type=int, help="fewer layers than the shape has, for a quick look")
    parser.add_argument("--device", default="cpu", help="thalweg's platform; transformers always runs on the host")
    parser.add_argument("--dtype", default="bfloat16", choices=["bfloat16", "float32"])
    parser.add_argument("--threads", type=int, default=len(os.sched_getaffinity(0)))
    parser.add_argument("--input", type=int, default=128, help="prompt tokens")
    parser.add_argument("--output", type=int, default=128, help="generated tokens")
    parser.add_argument("--batch", type=int, default=16, help="requests of the batch case")
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--json", type=Path, help="also write the report here")
    args = parser.parse_args()
    if min(args.threads, args.input, args.batch, args.repeats) < 1 or args.output < 2:
        parser.error("--threads, --input, --batch and --repeats must be at least 1, --output at least 2")
    return args


if __name__ == "__main__":
    main()
