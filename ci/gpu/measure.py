"""How fast a device serves models of known shapes with made-up weights: JSON, a figure at a time.

    python ci/gpu/measure.py --device cuda [--shapes llama-1b,llama-8b] [--figures "step 1,prompt 2048"] [--output-json FILE]
    python ci/gpu/measure.py --device cpu --shapes tiny --quick        # a try-out of this script

One engine per shape, from which all its figures come. They are written as they are known, under names:

    open                  seconds to open the engine, bytes of its weights, the kernel plan
    step N                seconds of a decode step of N sequences
    prompt N              seconds to the first token of a prompt of N tokens
    idle                  how much of a decode the device idles, between steps and inside them, and one step's kernels
    kernels of prompt N   a prompt's kernels
    crowd                 whether 6 requests have the same tokens and bits as among 24
    requests N x P + O    seconds of N requests at once, P tokens in and O out each
    ceilings              the machine's own rates

Exit status: 0 if everything was measured and the crowd's bits hold.
"""

from __future__ import annotations

import argparse
import json
import re
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import ceilings
import checks
import numpy as np
import profiles
import torch
from ceilings import best, device_name, tidy, torch_device
from report import shape_lines
from shapes import QUANTIZATIONS, SETTINGS, SHAPES, Case, group_by_case

from thalweg import LLM, SamplingParams
from thalweg.checkpoint.config import DTYPES
from thalweg.models import registry, sizes
from thalweg.models.precision import model_scheme
from thalweg.models.spec import ModelSpec

__all__ = ["SHAPES", "best", "device_name", "tidy", "torch_device"]  # what scripts beside this one find here

FIGURES = (
    "ceilings", "open", "step 1", "idle", "prompt 512", "prompt 2048", "prompt 8192", "kernels of prompt 2048", "step 8",
    "step 64", "step 256", "crowd", "requests 128 x 1024 + 1024",
)  # fmt: skip
FEW = (
    "ceilings", "open", "step 1", "idle", "prompt 16", "prompt 48", "kernels of prompt 16", "step 2", "crowd",
    "requests 3 x 8 + 8",
)  # fmt: skip
"""FIGURES of a try-out."""
STEP_PROMPT = 128
"""Tokens of the prompts of "step N"."""
STEPS: dict[bool, tuple[int, int, int]] = {False: (16, 144, 48), True: (4, 12, 12)}
"""Is it a try-out -> tokens of the short run of "step N", and of the long one for up to 8 sequences and for more."""
CROWD, ALONE = 24, 6


def main() -> int:
    args = _arguments()
    device, found = torch_device(args.device), read_have(args.have)
    report: dict[str, Any] = {
        "device": args.device, "name": device_name(device), "torch": torch.__version__, "dtype": args.dtype, "figures": found,
    }  # fmt: skip

    def keep(name: str, figure: Any) -> None:
        found[name] = figure
        print(f"{name}: {json.dumps(figure)[:600]}", flush=True)
        _write(args.output_json, report)

    _write(args.output_json, report)
    good = True
    if "ceilings" in args.figures and "ceilings" not in found:
        keep("ceilings", ceilings.measure_rates(device, args.quick))
        tidy(device)
    with tempfile.TemporaryDirectory() as scratch:
        for shape in args.shapes:
            case = read_case(args, shape)
            path = Path(scratch) / shape
            path.mkdir()
            (path / "config.json").write_text(json.dumps(case.config()))
            good &= measure(case, path, args, found, keep)
            lines = shape_lines(case.label, group_by_case(found).get(case.label, {}), found.get("ceilings"))
            print("\n".join(f"{case.label}: {line}" for line in lines), flush=True)
    return 0 if good else 1


def read_case(args: argparse.Namespace, shape: str) -> Case:
    """The case of these options. Other scripts that open models need not have all."""
    given = {name: getattr(args, name, False) for name in SETTINGS}
    return Case(shape, getattr(args, "layers", 0), getattr(args, "quantization", "") or "", **given)


def read_have(file: Path | None) -> dict[str, Any]:
    """Figures of an earlier report of a script of this folder, but for those that are errors."""
    figures: dict[str, Any] = {} if file is None else json.loads(file.read_text())["figures"]
    return {name: f for name, f in figures.items() if not (isinstance(f, dict) and "error" in f)}


def measure(
    case: Case, path: Path, args: argparse.Namespace, found: dict[str, Any], keep: Callable[[str, Any], None]
) -> bool:  # fmt: skip
    """Every figure of a case that is not `found`, in the order asked for. False: one failed, or a check does not hold."""
    names = [n for n in args.figures if n != "ceilings"]
    held = [found[case.named(n)] for n in names if case.named(n) in found]
    good = all(f.get("holds", True) is not False for f in held)
    todo = [n for n in names if case.named(n) not in found]
    if not todo:
        return good
    llm, shape, figure = None, None, "open"
    try:
        start = time.perf_counter()
        llm = open_model(path, args)
        shape = OpenShape(llm, path, args)
        if "open" in todo:
            keep(case.named("open"), shape.describe(time.perf_counter() - start))
        for figure in (n for n in todo if n != "open"):
            value = shape.measure(figure)
            keep(case.named(figure), value)
            good &= value.get("holds", True) is not False
    except Exception as e:  # one shape that fails leaves the others' figures
        keep(case.named(figure), {"error": f"{type(e).__name__}: {e}"})
        good = False
    finally:
        if llm is not None:
            llm.shutdown()
    llm = shape = None  # which hold the device's memory
    tidy(torch_device(args.device))
    return good


def open_model(path: Path, args: argparse.Namespace, **more: Any) -> LLM:
    case = read_case(args, "tiny")  # of which only the settings count
    if case.options:
        more = {"additional_config": case.options, **more}
    return LLM(
        str(path), device=args.device, dtype=args.dtype, load_format="dummy", skip_tokenizer_init=True,
        max_model_len=args.length, enable_prefix_caching=False, batch_invariant=not args.variant, use_tqdm_on_load=False,
        quantization=getattr(args, "quantization", None), **more,
    )  # fmt: skip


class OpenShape:
    """An open engine of one shape, and what is measured of it."""

    def __init__(self, llm: LLM, path: Path, args: argparse.Namespace) -> None:
        self.llm, self.args, self.device = llm, args, torch_device(args.device)
        self.config: dict[str, Any] = json.loads((path / "config.json").read_text())
        self.spec: ModelSpec = registry.family(self.config)(self.config)
        self.vocab: int = self.config["vocab_size"]
        self.use = model_scheme(self.config, args.quantization, self.spec)

    def measure(self, name: str) -> dict[str, Any]:
        for pattern, run in FIGURE_KINDS.items():
            if found := re.fullmatch(pattern, name):
                return run(self, *map(int, found.groups()))
        raise ValueError(f"no figure is called {name!r}")

    def describe(self, seconds: float) -> dict[str, Any]:
        """token_bytes: that a token of one sequence reads, so of a mixture only the experts that it chooses."""
        held = sum(sizes.held_bytes(w, self.args.dtype, self.use) for w in sizes.parameters(self.spec) if w.role != "embedding")
        read = sizes.step_work(self.spec, self.args.dtype, self.use, 1, 1, 0).bytes
        sized = {"layers": self.config["num_hidden_layers"], "weight_bytes": held, "token_bytes": read}
        return {"seconds": seconds, **sized, "kernel_plan": self.llm.kernel_plan}

    def measure_step(self, n: int) -> dict[str, Any]:
        """Seconds of one decode step of n sequences, by the difference of a long and a short run, after one of each. context:
        tokens before a sequence's new one, on average over the steps that make the difference."""
        seconds, context = _step(self.llm, self.vocab, self.args, n)
        return {"seconds": seconds, "tokens_per_second": n / seconds, "context": context}

    def measure_prompt(self, n: int) -> dict[str, Any]:
        """Seconds to the first token, and what its products and scores count."""
        generate(self.llm, self.vocab, [n], 1)
        seconds = statistics.median(generate(self.llm, self.vocab, [n], 1, seed=i) for i in range(self.args.repeats))
        flops = sizes.step_work(self.spec, self.args.dtype, self.use, 1, n, 0).flops
        return {"seconds": seconds, "tokens_per_second": n / seconds, "flops": flops}

    def measure_idle(self) -> dict[str, Any]:
        """The share of a decode in which nothing runs on the device, between steps and inside them, and one step's kernels."""
        spans = self._profile([8 if self.args.quick else 128], 8 if self.args.quick else 64)
        middle = spans[len(spans) // 2 :]  # the prompt is over by then
        of, step = profiles.one_step(middle)
        host = {"host": True} if self.device.type == "cpu" else {}
        return {**host, **profiles.idle(middle), "kernels_of": of, "kernels": profiles.top(step)}

    def list_kernels(self, n: int) -> dict[str, Any]:
        """A prompt's kernels, and the seconds in which none of them ran: before the first, between, and after the last."""
        generate(self.llm, self.vocab, [n], 1)
        times: list[int] = []

        def run() -> None:
            times.append(time.time_ns())
            generate(self.llm, self.vocab, [n], 1, seed=1)
            times.append(time.time_ns())

        spans = profiles.recorded(run, self.device)
        return {**profiles.waits(spans, *times), "kernels": profiles.top(spans)}

    def _profile(self, lengths: Sequence[int], tokens: int) -> list[profiles.Span]:
        generate(self.llm, self.vocab, lengths, tokens)
        return profiles.recorded(lambda: generate(self.llm, self.vocab, lengths, tokens), self.device)

    def compare_crowd(self) -> dict[str, Any]:
        """Tokens and bits of log probabilities of ALONE requests, each alone and all among CROWD."""
        longest, tokens = (40, 4) if self.args.quick else (700, 24)
        rng = np.random.default_rng(1)
        prompts = [rng.integers(2, self.vocab, int(n)).tolist() for n in rng.integers(3, longest, CROWD)]
        among = checks.collect_stories(self.llm, prompts, tokens)[:ALONE]
        alone = [checks.collect_stories(self.llm, [p], tokens)[0] for p in prompts[:ALONE]]
        found = checks.compare(among, alone)
        return found if not self.args.variant else {**found, "holds": None, "why": "kernels need not be batch-invariant here"}

    def measure_requests(self, n: int, prompt: int, tokens: int) -> dict[str, Any]:
        """Nearly every step mixes prompts and decodes."""
        seconds = generate(self.llm, self.vocab, [prompt] * n, tokens)
        return {
            "requests": n, "prompt_tokens": prompt, "output_tokens": tokens, "seconds": seconds,
            "output_tokens_per_second": n * tokens / seconds, "tokens_per_second": n * (prompt + tokens) / seconds,
        }  # fmt: skip


FIGURE_KINDS: dict[str, Callable[..., dict[str, Any]]] = {
    r"step (\d+)": OpenShape.measure_step, r"prompt (\d+)": OpenShape.measure_prompt, "idle": OpenShape.measure_idle,
    r"kernels of prompt (\d+)": OpenShape.list_kernels, "crowd": OpenShape.compare_crowd,
    r"requests (\d+) x (\d+) \+ (\d+)": OpenShape.measure_requests,
}  # fmt: skip
"""What a name looks like -> what measures it, given its numbers. "open" and "ceilings" are met before."""


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


def steps(llm: LLM, vocab: int, args: argparse.Namespace, n: int) -> dict[str, float]:
    """Seconds of one decode step of n sequences, as "step N" has them."""
    seconds, _ = _step(llm, vocab, args, n)
    return {"seconds": seconds, "tokens_per_second": n / seconds}


def _step(llm: LLM, vocab: int, args: argparse.Namespace, n: int) -> tuple[float, float]:
    short, long, less = STEPS[args.quick]
    long = long if n <= 8 else less
    prompts = [8 if args.quick else STEP_PROMPT] * n
    for tokens in (short, long):
        generate(llm, vocab, prompts, tokens)
    rounds = args.repeats if n <= 8 else max(1, args.repeats // 2)
    runs = [generate(llm, vocab, prompts, long) - generate(llm, vocab, prompts, short) for _ in range(rounds)]
    return statistics.median(runs) / (long - short), prompts[0] + (short + long) / 2


def _write(path: Path | None, report: dict[str, Any]) -> None:
    if path is not None:
        path.write_text(json.dumps(report, indent=1) + "\n")


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", required=True, help="platform to measure")
    parser.add_argument("--shapes", default="llama-1b,llama-8b", type=_listed, help=f"of {', '.join(SHAPES)}")
    parser.add_argument("--layers", type=int, default=0, metavar="N", help="only so many layers; figures say so")
    parser.add_argument("--quantization", choices=QUANTIZATIONS, help="round the weights; figures say so")
    parser.add_argument("--figures", type=_listed, help="names, in order (default: all of those above)")
    parser.add_argument("--have", type=Path, metavar="FILE", help="an earlier report; figures in it are not measured again")
    parser.add_argument("--dtype", default="bfloat16", choices=sorted(set(DTYPES.values())))
    parser.add_argument("--length", type=int, default=16384, help="longest sequence served")
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--variant", action="store_true", help="kernels that are not batch-invariant too; figures say so")
    parser.add_argument("--scaled", action="store_true", help="int4 with scaled_codes; figures say so")
    parser.add_argument("--dependent", action="store_true", help="with dependent_launch; figures say so")
    parser.add_argument("--joined", action="store_true", help="with joined_attention; figures say so")
    parser.add_argument("--unfused", action="store_true", help="without fused_rounding; figures say so")
    parser.add_argument("--flash4", action="store_true", help="with flash_attn_4, and --variant; figures say so")
    parser.add_argument("--quick", action="store_true", help="small sizes, to see that everything runs")
    parser.add_argument("--output-json", type=Path)
    args = parser.parse_args()
    if wrong := [s for s in args.shapes if s not in SHAPES]:
        parser.error(f"--shapes: {', '.join(wrong)}: choose from {', '.join(SHAPES)}")
    args.figures = args.figures or list(FEW if args.quick else FIGURES)
    known = ("open", "ceilings")
    if wrong := [n for n in args.figures if n not in known and not any(re.fullmatch(p, n) for p in FIGURE_KINDS)]:
        parser.error(f"--figures: {', '.join(wrong)}: names are as in open, step 1, prompt 512, idle, kernels of prompt 2048, "
                     "crowd, requests 64 x 1024 + 512, ceilings")  # fmt: skip
    if args.flash4 and not args.variant:
        parser.error("--flash4: FlashAttention-4 serves only with --variant; add it")
    for shape in args.shapes:
        try:
            Case(shape, args.layers).config()
        except ValueError as e:
            parser.error(f"--layers: {e}")
    return args


def _listed(words: str) -> list[str]:
    return [w.strip() for w in words.split(",") if w.strip()]


if __name__ == "__main__":
    sys.exit(main())
