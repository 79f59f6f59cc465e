"""How fast a device serves, as fractions of what it can do: JSON.

    python ci/gpu/measure.py --device cuda [--shapes llama-1b,llama-8b] [--output-json FILE]
    python ci/gpu/measure.py --device cpu --shapes tiny --quick        # a try-out of this script

First the machine: the rate at which it reads memory and multiplies bfloat16 matrices, by torch, best of several. Then models
of known shapes with made-up weights: a decode step of one sequence as a fraction of reading the weights once, and of many; how
much of a decode the device idles between steps and inside them, and its kernels; a prompt as a fraction of its products at the
matrix rate; requests of 1,024 + 1,024 tokens; and the seconds from a new process to its first token, with and without kernels
that an earlier process compiled. Each figure is written as it is known.
"""

from __future__ import annotations

import argparse
import gc
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import profiles
import torch
from report import shape_lines

from thalweg import LLM, SamplingParams
from thalweg.checkpoint.config import DTYPES
from thalweg.models import registry, sizes
from thalweg.models.spec import ModelSpec

LLAMA: dict[str, Any] = {
    "architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_act": "silu", "rms_norm_eps": 1e-5,
    "rope_theta": 500000.0, "vocab_size": 128256, "max_position_embeddings": 131072, "torch_dtype": "bfloat16",
    "bos_token_id": 128000, "eos_token_id": 128001,
}  # fmt: skip
SHAPES: dict[str, dict[str, Any]] = {
    "tiny": {
        **LLAMA, "vocab_size": 1024, "hidden_size": 64, "intermediate_size": 192, "num_hidden_layers": 2,
        "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 16, "tie_word_embeddings": True, "eos_token_id": 1,
        "bos_token_id": 0,
    },
    "llama-1b": {
        **LLAMA, "hidden_size": 2048, "intermediate_size": 8192, "num_hidden_layers": 16, "num_attention_heads": 32,
        "num_key_value_heads": 8, "head_dim": 64, "tie_word_embeddings": True,
    },
    "llama-8b": {
        **LLAMA, "hidden_size": 4096, "intermediate_size": 14336, "num_hidden_layers": 32, "num_attention_heads": 32,
        "num_key_value_heads": 8, "head_dim": 128, "tie_word_embeddings": False,
    },
}  # fmt: skip
"""Llama 3.2 1B and Llama 3.1 8B."""


def main() -> None:
    args = _arguments()
    device = torch_device(args.device)
    report: dict[str, Any] = {
        "device": args.device,
        "name": device_name(device),
        "torch": torch.__version__,
        "dtype": args.dtype,
        "machine": machine(device, args.quick),
        "shapes": {},
    }
    tidy(device)
    with tempfile.TemporaryDirectory() as scratch:
        for shape in args.shapes:
            path = Path(scratch) / shape
            path.mkdir()
            (path / "config.json").write_text(json.dumps(SHAPES[shape]))
            found: dict[str, Any] = {}
            report["shapes"][shape] = found
            try:
                for name, figure in model(path, args, report["machine"]):
                    found[name] = figure
                    print(f"{shape} {name}: {json.dumps(figure)[:600]}", flush=True)
                    _write(args.output_json, report)
            except Exception as e:  # one shape that fails leaves the others' figures
                found["error"] = f"{type(e).__name__}: {e}"
                _write(args.output_json, report)
            say(shape, found)
    if any("error" in s for s in report["shapes"].values()):
        sys.exit(1)


def torch_device(platform: str) -> torch.device:
    """torch's name of the device that a platform drives; the host for platforms that run there."""
    kind = {"cuda": "cuda", "rocm": "cuda", "xpu": "xpu"}.get(platform, "cpu")
    return torch.device(kind, 0) if kind != "cpu" else torch.device("cpu")


def device_name(device: torch.device) -> str:
    if device.type == "cpu":
        return "host"
    return str(getattr(torch, device.type).get_device_name(device))


def wait(device: torch.device) -> None:
    if device.type != "cpu":
        torch.accelerator.synchronize()


def tidy(device: torch.device) -> None:
    """Give back what nobody uses, as what is measured next counts free memory."""
    gc.collect()
    if device.type != "cpu":
        torch.accelerator.empty_cache()


def best(run: Callable[[], Any], device: torch.device, times: int, inner: int) -> float:
    """Seconds of one run: the best of `times` rounds of `inner` each."""
    run()
    seconds = []
    for _ in range(times):
        wait(device)
        start = time.perf_counter()
        for _ in range(inner):
            run()
        wait(device)
        seconds.append((time.perf_counter() - start) / inner)
    return min(seconds)


def machine(device: torch.device, quick: bool) -> dict[str, float]:
    """Bytes per second read (a sum over memory far beyond any cache), and copied (read + write); matrix products per
    second, of random numbers, as those draw the power that real ones do."""
    size, n = (1 << 26, 512) if quick else (1 << 32, 8192)
    x = torch.ones(size // 4, dtype=torch.float32, device=device)
    y = torch.empty_like(x)
    a, b = (torch.randn(n, n, dtype=torch.float32, device=device).to(torch.bfloat16) for _ in range(2))
    c = torch.empty_like(a)
    rounds = 3 if quick else 10
    read = best(lambda: torch.sum(x), device, rounds, 5)
    copy = best(lambda: y.copy_(x), device, rounds, 5)
    product = best(lambda: torch.mm(a, b, out=c), device, rounds, 5)
    return {
        "read_bytes_per_second": size / read,
        "copy_bytes_per_second": 2 * size / copy,
        "bandwidth": max(size / read, 2 * size / copy),
        "matrix_flops_per_second": 2 * n**3 / product,
    }


def model(path: Path, args: argparse.Namespace, limits: dict[str, float]) -> Iterator[tuple[str, Any]]:
    """(name, figure), one after the other: what a run that is ended has already said is known."""
    config = json.loads((path / "config.json").read_text())
    spec, vocab = registry.family(config)(config), config["vocab_size"]
    read = sum(sizes.held_bytes(w, args.dtype, sizes.DENSE_FORMATS) for w in sizes.parameters(spec) if w.role != "embedding")
    start = time.perf_counter()
    llm = open_model(path, args)
    yield "open_seconds", time.perf_counter() - start
    yield "weight_bytes_per_token", read
    try:
        yield "kernel_plan", llm.kernel_plan
        yield "decode", decode(llm, vocab, args, read, limits["bandwidth"])
        yield "idle", idle(llm, vocab, args)
        yield "prefill", prefill(llm, vocab, args, spec, limits["matrix_flops_per_second"])
        yield "prefill_kernels", profiles.top(_profiled(llm, vocab, args, [16 if args.quick else 2048], 1))
        yield "steps", {str(n): steps(llm, vocab, args, n) for n in ((1, 2) if args.quick else (1, 8, 64, 256))}
        yield "thousand", thousand(llm, vocab, args)
    finally:
        llm.shutdown()
    del llm
    tidy(torch_device(args.device))
    yield from (("start_" + name, seconds) for name, seconds in startups(path, args))


def open_model(path: Path, args: argparse.Namespace, **more: Any) -> LLM:
    return LLM(
        str(path), device=args.device, dtype=args.dtype, load_format="dummy", skip_tokenizer_init=True,
        max_model_len=args.length, enable_prefix_caching=False, batch_invariant=not args.variant, use_tqdm_on_load=False,
        **more,
    )  # fmt: skip


def generate(llm: LLM, vocab: int, lengths: Sequence[int], tokens: int, seed: int = 0) -> float:
    """Seconds for one prompt of each length, all at once, and `tokens` greedy tokens each."""
    rng = np.random.default_rng(seed)
    prompts = [{"prompt_token_ids": rng.integers(2, vocab, n).tolist()} for n in lengths]
    params = SamplingParams(temperature=0, max_tokens=tokens, ignore_eos=True, detokenize=False)
    start = time.perf_counter()
    done = llm.generate(prompts, params, use_tqdm=False)
    seconds = time.perf_counter() - start
    assert all(len(r.outputs[0].token_ids) == tokens for r in done)
    return seconds


def decode(llm: LLM, vocab: int, args: argparse.Namespace, read: int, bandwidth: float) -> dict[str, float]:
    """Of one sequence, as a fraction of reading the weights once."""
    token = steps(llm, vocab, args, 1, 20 if args.quick else 272)["seconds"]
    return {"seconds_per_token": token, "tokens_per_second": 1 / token, "bandwidth_fraction": read / token / bandwidth}


def steps(llm: LLM, vocab: int, args: argparse.Namespace, n: int, long: int = 0) -> dict[str, float]:
    """Seconds of one decode step of n sequences, by the difference of a long and a short run, after one of each."""
    short, long = (4, long or 12) if args.quick else (16, long or 80)
    prompts = [8 if args.quick else 128] * n
    for tokens in (short, long):
        generate(llm, vocab, prompts, tokens)
    repeats = args.repeats if n == 1 else min(args.repeats, 3)
    runs = [generate(llm, vocab, prompts, long) - generate(llm, vocab, prompts, short) for _ in range(repeats)]
    step = statistics.median(runs) / (long - short)
    return {"seconds": step, "tokens_per_second": n / step}


def _profiled(llm: LLM, vocab: int, args: argparse.Namespace, lengths: Sequence[int], tokens: int) -> list[profiles.Span]:
    generate(llm, vocab, lengths, tokens)
    return profiles.recorded(lambda: generate(llm, vocab, lengths, tokens), torch_device(args.device))


def idle(llm: LLM, vocab: int, args: argparse.Namespace) -> dict[str, Any]:
    """The share of a decode in which nothing runs on the device, between steps and inside them, and one step's kernels."""
    spans = _profiled(llm, vocab, args, [8 if args.quick else 128], 8 if args.quick else 64)
    middle = spans[len(spans) // 2 :]  # the prompt is over by then
    of, step = profiles.one_step(middle)
    host = {"host": True} if torch_device(args.device).type == "cpu" else {}
    return {**host, **profiles.idle(middle), "kernels_of": of, "kernels": profiles.top(step)}


def prefill(llm: LLM, vocab: int, args: argparse.Namespace, spec: ModelSpec, rate: float) -> dict[str, dict[str, float]]:
    """Per prompt length: seconds to the first token, and the products of the step as a fraction of the matrix rate."""
    out = {}
    for n in (16, 48) if args.quick else (512, 2048, 8192):
        generate(llm, vocab, [n], 1)
        seconds = statistics.median(generate(llm, vocab, [n], 1, seed=i) for i in range(args.repeats))
        work = sizes.step_work(spec, args.dtype, sizes.DENSE_FORMATS, 1, n, 0).flops
        out[str(n)] = {"seconds": seconds, "tokens_per_second": n / seconds, "matrix_rate_fraction": work / seconds / rate}
    return out


def thousand(llm: LLM, vocab: int, args: argparse.Namespace) -> dict[str, float]:
    """128 requests at once, 1,024 tokens in and 1,024 out: nearly every step mixes prompts and decodes."""
    n, tokens = (3, 8) if args.quick else (128, 1024)
    seconds = generate(llm, vocab, [tokens] * n, tokens)
    return {
        "requests": n, "prompt_tokens": tokens, "output_tokens": tokens, "seconds": seconds,
        "output_tokens_per_second": n * tokens / seconds, "tokens_per_second": 2 * n * tokens / seconds,
    }  # fmt: skip


FIRST = """
import sys, json
sys.argv = json.loads(sys.argv[1])
sys.path.insert(0, sys.argv.pop(0))
import measure
args = measure._arguments()
llm = measure.open_model(measure.Path(args.first), args)
measure.generate(llm, args.vocab, [8], 1)
print("first token", flush=True)
"""


def startups(path: Path, args: argparse.Namespace) -> Iterator[tuple[str, float]]:
    """Seconds from starting a process to its first token, made-up weights included. cold: no kernel was ever compiled; warm:
    by the process before; carried: with the kernels that this machine was given, if it was."""
    given = os.environ.get("TRITON_CACHE_DIR")
    with tempfile.TemporaryDirectory() as cache:
        yield "cold_seconds", startup(path, args, cache)
        yield "warm_seconds", startup(path, args, cache)
    if given:
        yield "carried_seconds", startup(path, args, given)


def startup(path: Path, args: argparse.Namespace, cache: str) -> float:
    vocab = json.loads((path / "config.json").read_text())["vocab_size"]
    words = [str(Path(__file__).parent), "measure", *sys.argv[1:], "--first", str(path), "--vocab", str(vocab)]
    start = time.perf_counter()
    done = subprocess.run(
        [sys.executable, "-c", FIRST, json.dumps(words)], capture_output=True, text=True, check=False,
        env={**os.environ, "TRITON_CACHE_DIR": cache},
    )  # fmt: skip
    if "first token" not in done.stdout:
        raise RuntimeError(f"a fresh process made no token: {done.stderr[-500:]}")
    return time.perf_counter() - start


def say(shape: str, figures: dict[str, Any]) -> None:
    """A few lines, once all of it is known."""
    print("\n".join(f"{shape}: {line}" for line in shape_lines(figures)), flush=True)


def _write(path: Path | None, report: dict[str, Any]) -> None:
    if path is not None:
        path.write_text(json.dumps(report, indent=2) + "\n")


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", required=True, help="platform to measure")
    parser.add_argument("--shapes", default="llama-1b,llama-8b", type=lambda s: s.split(","), help=f"of {', '.join(SHAPES)}")
    parser.add_argument("--dtype", default="bfloat16", choices=sorted(set(DTYPES.values())))
    parser.add_argument("--length", type=int, default=16384, help="longest sequence served")
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--variant", action="store_true", help="kernels that are not batch-invariant too")
    parser.add_argument("--quick", action="store_true", help="small sizes, to see that everything runs")
    parser.add_argument("--output-json", type=Path)
    parser.add_argument("--first", help=argparse.SUPPRESS)
    parser.add_argument("--vocab", type=int, help=argparse.SUPPRESS)
    args = parser.parse_args()
    wrong = [s for s in args.shapes if s not in SHAPES]
    if wrong:
        parser.error(f"--shapes: {', '.join(wrong)}: choose from {', '.join(SHAPES)}")
    return args


if __name__ == "__main__":
    main()
