"""Which parts a run has, in the order in which a machine that may go at any time should run them: first what says whether the
numbers are right, then what they cost, then everything else.

`quick` is for a machine of twelve minutes: two commands, each with a budget. `long` is everything.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

from parts import ATTENTION, HOSTED, LINEAR, REST, TESTS, Part, PartFactory
from shapes import Case

BUDGETS: Mapping[str, tuple[float, ...]] = {"quick": (560, 240), "long": (float("inf"),)}
"""Plan -> seconds of each of its commands. The long one gives a part its own limit only with --budget."""
STEPS = ("step 1", "step 8", "step 64", "step 256")
PROMPTS = ("prompt 512", "prompt 2048", "prompt 8192")
DENSE = ("open", "crowd", *STEPS, "idle", *PROMPTS, "kernels of prompt 2048")
EXPERTS = ("open", "crowd", "step 1", "step 64", "prompt 2048")
FEW_STEPS = ("open", "crowd", *STEPS, "prompt 2048")
ROUNDED = ("open", "crowd", "step 1", "step 64", "step 256", "prompt 2048")
THOUSAND = "requests 128 x 1024 + 1024"
HALF_THOUSAND = "requests 64 x 1024 + 512"


def make_parts(plan: str, platform: str, work: Path, processes: int = 0) -> dict[str, Part]:
    """Name -> part, of all commands of a plan, in order. Each runs in its own process, so that one crash does not hide the
    others. work, processes: as of `PartFactory`."""
    result = {"quick": make_quick, "long": make_long}[plan](PartFactory(platform, work, processes))
    if platform == HOSTED:  # more threads make its small operations slower
        result = [replace(p, env={**p.env, "OMP_NUM_THREADS": "1"}) for p in result]
    return {p.name: p for p in result}


def make_quick(f: PartFactory) -> list[Part]:
    """least and most are from a first run on an H200, and from what the budgets leave."""
    small = [] if f.full else ["--quick"]
    eight = Case("llama-8b")
    first = [
        f.make_script("smoke", 15, 60, judges=True, resumes=True),
        *_make_rows(f, 200),
        _make_checks(f, 15, 60, 6, 32),
        f.make_measure("measure 8b", eight, (*DENSE, HALF_THOUSAND), 30, 130, repeats=3),
        f.make_kit("kit exact attention", ATTENTION, 25, 90),
        f.make_kit("kit exact linear", LINEAR, 25, 90),
        f.make_script("attention tiles", 10, 40, *small, "--only=attention", file="sweep", lead=True),
        f.make_measure("measure 8b int4", Case("llama-8b", quantization="int4"), ROUNDED, 20, 60, repeats=3),
        f.make_measure("measure 30b-a3b", Case("qwen3-30b-a3b", 12), EXPERTS, 20, 50, repeats=3),
        f.make_measure("measure 8b fp8", Case("llama-8b", quantization="fp8"), ROUNDED, 20, 60, repeats=3),
    ]  # fmt: skip
    second = [
        *_make_dependent(f),
        f.make_measure("measure 8b joined", replace(eight, joined=True), FEW_STEPS, 15, 50, repeats=3, lead=True),
        f.make_measure(
            "measure 8b fp8 unfused", Case("llama-8b", quantization="fp8", unfused=True), ROUNDED, 20, 60, repeats=3, lead=True
        ),
        f.make_measure(
            "measure 8b int4 scaled", Case("llama-8b", quantization="int4", scaled=True), ROUNDED, 20, 60, repeats=3
        ),
        f.make_measure(
            "measure 8b variant", Case("llama-8b", variant=True), ("open", *STEPS, "prompt 512", "prompt 2048", HALF_THOUSAND),
            25, 75, repeats=3,
        ),
        f.make_script("products", 30, 60, *small, file="sweep", lead=True),
        f.make_script("ncu", 15, 45, lead=True),
        f.make_measure("measure gpt-oss", Case("gpt-oss-20b", 4), EXPERTS, 20, 50, repeats=3),
        f.make_script("sanitizer", 20, 65, "--tools=memcheck", lead=True),
        _make_starts(f, "1b", 15, 75),
    ]  # fmt: skip
    return [*first, *(replace(p, command=2) for p in second)]


def make_long(f: PartFactory) -> list[Part]:
    small, few = ([], []) if f.full else (["--quick"], ["--shape=tiny", "--quick"])
    dense = (*DENSE, THOUSAND)
    variant = tuple(f for f in dense if f != "crowd")
    lent = [f.make_script("tiles", 60, 240, *few),
            f.make_script("load", 30, 150, *([] if f.full else ["--shape=tiny", "--readers=0,2"]))]  # fmt: skip
    return [
        f.make_script("smoke", 10, 180, judges=True, resumes=True),
        *_make_rows(f, 120),
        _make_checks(f, 20, 240, 12, 48),
        f.make_kit("kit exact attention", ATTENTION, 30, 300),
        f.make_kit("kit exact linear", LINEAR, 30, 300),
        *([f.make_unshown()] if f.platform == "cuda" else []),
        f.make_measure("measure 1b", Case("llama-1b"), dense, 30, 150),
        f.make_measure("measure 8b", Case("llama-8b"), dense, 50, 300),
        _make_starts(f, "1b", 15, 120),
        *(lent if f.platform in TESTS else []),
        *(f.make_kit(f"kit rest {i}", REST, 40, 420, (i, 2)) for i in (1, 2)),
        f.make_measure("measure 1b variant", Case("llama-1b", variant=True), variant, 30, 150),
        f.make_measure("measure 8b variant", Case("llama-8b", variant=True), variant, 50, 300),
        _make_starts(f, "8b", 20, 200),
        f.make_script("sweep", 60, 420, *small, lead=True),
        f.make_script("sanitizer", 40, 300, lead=True),
        *(f.make_flash4() if f.platform == "cuda" else []),
        *f.make_others(),
    ]


def _make_rows(f: PartFactory, most: float) -> list[Part]:
    """Only where our own products serve, or may."""
    small = [] if f.full else ["--quick"]
    return [f.make_script("rows", 15, most, *small, judges=True, resumes=True)] if f.platform in TESTS else []


def _make_checks(f: PartFactory, least: float, most: float, requests: int, tokens: int) -> Part:
    sizes = (requests, tokens) if f.full else (2, 12)
    names = ("greedy", "random", "crowd", "schedule", "captured")
    more = [f"--requests={sizes[0]}", f"--tokens={sizes[1]}"]
    return f.make_script("checks", least, most, *more, judges=True, resumes=True, wanted=names)


def _make_dependent(f: PartFactory) -> list[Part]:
    """Pairs with parts that have no `dependent` in their names. Only NVIDIA's GPUs have such launches, and not all of them."""
    if f.platform != "cuda":
        return []
    dense, experts = Case("llama-8b", dependent=True), Case("qwen3-30b-a3b", 12, dependent=True)
    codes = Case("llama-8b", quantization="int4", dependent=True)
    return [
        f.make_measure("measure 8b dependent", dense, FEW_STEPS, 15, 50, repeats=3, lead=True),
        f.make_measure("measure 8b int4 dependent", codes, EXPERTS, 15, 50, repeats=3, lead=True),
        f.make_measure("measure 30b-a3b dependent", experts, EXPERTS, 15, 50, repeats=3, lead=True),
    ]


def _make_starts(f: PartFactory, shape: str, least: float, most: float) -> Part:
    case = Case(f"llama-{shape}" if f.full else "tiny")
    wanted = tuple(case.named(f"start {kind}") for kind in ("cold", "warm"))
    return f.make_script(
        f"starts {shape}", least, most, f"--shape={case.shape}", file="starts", resumes=True, wanted=wanted
    )  # fmt: skip
