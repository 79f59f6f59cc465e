"""Compiles every kernel launch of the Triton library for GPUs that are not here, and reads what came out.

    python ci/gpu/compile.py [--quick] [--each] [--arch sm_90 ...] [--only attend] [--part 1/2] [--seconds 120] [--json FILE]

The launches are those that the library makes for real layers (`launches`), recorded instead of run, so a tile size, a type
or an argument is never written down twice. They are compiled in a process of their own, which another follows where a compiler
aborts it or takes longer than the limit. It fails if one does not compile, lacks the matrix instruction its target should
use, wants more shared memory than the device has, or spills more than SPILLED.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import re
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

import torch
import triton
from launch_calls import attention_call, calls
from machine_code import INSTRUCTION, find_early_access, read_reductions, read_usage
from triton.compiler import ASTSource
from triton.runtime.jit import JITFunction

from thalweg.backends.triton_kernels import TritonLibrary, elementwise, library, linear, lora, quantised, rounding
from thalweg.backends.triton_kernels.cross_compile import target
from thalweg.backends.triton_kernels.tiles import refuse_dependent_launch, tiles
from thalweg.hal.attention import AttnSpec, QKPrologue

ARCHS = ("sm_80", "sm_90", "sm_100", "sm_120", "gfx90a", "gfx942", "gfx950", "gfx1201")
"""sm_90, sm_100 and sm_120 compile for their feature-complete variants, sm_90a and so on."""
QUICK = ("sm_80", "sm_90", "gfx942")
MATRIX = {
    "sm_80": "mma.sync", "sm_89": "mma.sync", "sm_90": "wgmma", "sm_100": "tcgen05.mma", "sm_120": "mma.sync",
    "gfx90a": "v_mfma", "gfx942": "v_mfma", "gfx950": "v_mfma", "gfx1100": "v_wmma", "gfx1201": "v_wmma",
}  # fmt: skip
SPILLED = 160
"""Bytes (or registers) per thread that may lie in memory."""
QUICKLY = ("attend[8b decode", "attend[8b mixed", "attend[8b exact", "attend[8b int8 exact mixed", "random True",
           "product[6144x4096 int4-g128", "norm_round[6144x4096 float8", "norm[4096]")  # fmt: skip
"""Launches of --quick, by what their names contain."""
OPTIONS = (
    "num_warps",
    "num_stages",
    "enable_fp_fusion",
    "num_ctas",
    "waves_per_eu",
    "matrix_instr_nonkdim",
    "maxnreg",
    "launch_pdl",
)


@dataclass(frozen=True, slots=True)
class Launch:
    """One recorded launch: the kernel, its arguments by name, and its options."""

    name: str
    kernel: Any
    arguments: dict[str, Any]
    options: dict[str, Any]

    def key(self) -> str:
        """What the compiler would see; equal keys compile to the same."""
        return f"{self.kernel.__name__} {signature(self)} {sorted(self.options.items())}"


@dataclass(slots=True)
class Outcome:
    """What one compilation gave. problems: why it fails."""

    launch: str
    arch: str
    seconds: float = 0.0
    matrix: str = ""
    instructions: list[str] = field(default_factory=list)
    """Kinds of matrix instructions, without what says how many columns one makes: rows and terms decide the order of a sum."""
    shared: int = 0
    registers: int = 0
    spilled: int = 0
    ahead: int = 0
    """Groups of asynchronous copies that may be on their way while a tile is multiplied (NVIDIA)."""
    reductions: list[str] = field(default_factory=list)
    """Elements of each thread, warp and program in a reduction, which decide the order of a sum."""
    problems: list[str] = field(default_factory=list)


def record(run: Callable[[], Any], name: str) -> list[Launch]:
    """The launches `run` makes, none of which happens."""
    seen: list[Launch] = []

    def note(self: Any, *args: Any, grid: Any, warmup: bool, **given: Any) -> None:
        options = {k: given.pop(k) for k in OPTIONS if k in given}
        values = dict(zip(self.arg_names, args, strict=False)) | given
        if set(values) != set(self.arg_names):
            raise TypeError(f"{self.__name__}: launched with {sorted(values)}, it takes {sorted(self.arg_names)}")
        seen.append(Launch(f"{self.__name__.strip('_')}[{name}]", self, values, options))

    original, JITFunction.run = JITFunction.run, note
    try:
        run()
    finally:
        JITFunction.run = original
    return seen


def signature(launch: Launch) -> tuple[dict[str, str], dict[str, Any], dict[tuple[int], list[list[Any]]]]:
    """(types, constants, divisibilities) as a launch on a device would specialise them: integers that are 1 are constants,
    multiples of 16 are known to be, but for those that the kernel wants left alone; tensors are aligned."""
    kinds, constants, divides = {}, {}, {}
    for i, p in enumerate(launch.kernel.params):
        value = launch.arguments[p.name]
        special = not p.do_not_specialize
        if p.is_constexpr or value is None or (special and type(value) is int and value == 1):
            kinds[p.name], constants[p.name] = "constexpr", value
        elif isinstance(value, torch.Tensor):
            kinds[p.name] = "*" + TYPES[value.dtype]
            divides[(i,)] = [["tt.divisibility", 16]]
        elif isinstance(value, float):
            kinds[p.name] = "fp32"
        else:
            kinds[p.name] = "i32" if -(2**31) <= value < 2**31 else "i64"
            if special and value % 16 == 0:
                divides[(i,)] = [["tt.divisibility", 16]]
    return kinds, constants, divides


TYPES = {
    torch.float32: "fp32", torch.float16: "fp16", torch.bfloat16: "bf16", torch.int32: "i32", torch.int64: "i64",
    torch.int16: "i16", torch.int8: "i8", torch.uint8: "u8", torch.float8_e4m3fn: "fp8e4nv", torch.float8_e5m2: "fp8e5",
    torch.float8_e4m3fnuz: "fp8e4b8",
}  # fmt: skip


# ---------------------------------------------------------------- which launches there are

SPECS = {
    "8b": AttnSpec(32, 8, 128, 128**-0.5, "bfloat16"),
    "1b": AttnSpec(32, 8, 64, 64**-0.5, "bfloat16"),
    "256": AttnSpec(16, 8, 256, 1 / 16, "bfloat16", "window", 4096, softcap=50.0),
    "8b e4m3": AttnSpec(32, 8, 128, 128**-0.5, "bfloat16", kv_dtype="float8_e4m3fn"),
    "8b e5m2": AttnSpec(32, 8, 128, 128**-0.5, "bfloat16", kv_dtype="float8_e5m2"),
    "8b int8": AttnSpec(32, 8, 128, 128**-0.5, "bfloat16", kv_dtype="int8"),
    "sinks": AttnSpec(64, 8, 64, 0.125, "bfloat16", "window", 128, sinks=True),
    "half": AttnSpec(32, 32, 80, 80**-0.5, "float16"),
    "float": AttnSpec(14, 2, 64, 0.125, "float32"),
    "mla": AttnSpec(128, 1, 576, 0.1, "bfloat16", "latent", latent=512),
    "mla 16": AttnSpec(16, 1, 576, 0.1, "float16", "latent", latent=512),
    "mla e4m3": AttnSpec(128, 1, 576, 0.1, "bfloat16", "latent", latent=512, kv_dtype="float8_e4m3fn"),
    "mla e5m2": AttnSpec(128, 1, 576, 0.1, "bfloat16", "latent", latent=512, kv_dtype="float8_e5m2"),
    "mla int8": AttnSpec(128, 1, 576, 0.1, "bfloat16", "latent", latent=512, kv_dtype="int8"),
    "mla float": AttnSpec(128, 1, 576, 0.1, "float32", "latent", latent=512),
}


def launches(arch: str) -> list[Launch]:
    """Every distinct launch that the library makes for layers of 1B and 8B models, and for each kind of attention. Where
    launches may be dependent, one such launch of each kernel too. Decodes of JOINED also join their spans."""
    out = _record_library(library(arch))
    joined = [x for x in _record_library(library(arch, joined_attention=True)) if x.arguments.get("JOINED")]
    out += [replace(x, name=f"{x.name} joined") for x in joined if any(f"[{name} " in x.name for name in JOINED)]
    if refuse_dependent_launch(arch) is None:
        some = _record_library(library(arch, dependent_launch=True))
        dependent = {(x.kernel, bool(x.arguments.get("SHARED"))): x for x in reversed(some)}
        out += [replace(x, name=f"{x.name} dependent") for x in dependent.values() if "launch_pdl" in x.options]
    return out


def _record_library(lib: TritonLibrary) -> list[Launch]:
    """The distinct launches of these kernels."""
    out: dict[str, Launch] = {}
    for k in lib.kernels:
        for name, args, static in calls(k):
            for launch in record(lambda k=k, args=args, static=static: k.run(*args, **static), name):
                out.setdefault(launch.key(), launch)
    for backend in lib.attention:
        for name, spec in SPECS.items():
            why = backend.supports(spec)
            if why is not None:
                continue
            for kind, uniform in (("decode", 1), ("mixed", 0)):
                run = attention_call(backend, spec, uniform)
                label = f"{name} {'exact ' if backend.batch_invariant else ''}{kind}"
                for launch in record(run, label):
                    out.setdefault(launch.key(), launch)
            for number, prologue in enumerate(PROLOGUES if backend.fuses(spec, PROLOGUES[0]) is None else ()):
                run = attention_call(backend, spec, 1, replace(prologue, rotary_dim=spec.head_dim))
                if number == 0 or name in ("8b", "half"):
                    for launch in record(run, f"{name} prologue {number}"):
                        out.setdefault(launch.key(), launch)
    return list(out.values())


JOINED = ("8b", "256", "8b int8", "8b e4m3", "sinks")
PROLOGUES = (QKPrologue(2), QKPrologue(2, eps=1e-6), QKPrologue(2, interleaved=True, eps=1e-6, offset=1.0))


# ---------------------------------------------------------------- compile, and read what came out


def expected(launch: Launch, arch: str) -> str:
    """The matrix instruction that should be there: none where nothing is multiplied, or where it is float32, whose exact
    products no matrix unit makes. Tiles of fewer than 64 rows are too small for the warp-group instructions."""
    a = launch.arguments
    rows = a.get("M", 0)
    if not rows or a.get("MODE") == lora.EXPAND or a["q" if "q" in a else "x"].dtype == torch.float32:
        return ""
    if MATRIX[arch] == "tcgen05.mma" and a.get("INTEGER"):
        return "mma.sync"  # the compiler makes no integer products of that kind
    if quantised.fours.is_four(a.get("KIND", "")):  # the weight's columns are the first operand's rows
        rows = a["N"] if rows >= 16 else 0
    large = rows >= 64 and launch.options.get("num_warps", 4) % 4 == 0
    return MATRIX[arch] if large or not MATRIX[arch].startswith(("wgmma", "tcgen05")) else "mma.sync"


NARROW = {
    "float8": r"(wgmma|mma\.sync|tcgen05\.mma)[^;\n]*(e4m3|f8f6f4)|v_s?w?mf?ma\w*(fp8|f8)",
    "int8": r"(wgmma|mma\.sync)[^;\n]*s8|v_s?w?mf?ma\w*(i8|iu8)",
}
"""What a matrix instruction of 8-bit operands looks like."""


def narrow(launch: Launch, arch: str) -> str:
    """Which 8-bit operands the matrix instruction should have, if any. Where mma.sync is the small tiles' alone, the compiler
    widens 8-bit floats for it."""
    a = launch.arguments
    if expected(launch, arch) != MATRIX[arch] and not a.get("INTEGER"):
        return ""
    return "int8" if a.get("INTEGER") and "M" in a else "float8" if a.get("CODES") and a["NATIVE"] else ""


def compile_one(launch: Launch, arch: str) -> Outcome:
    out = Outcome(launch.name, arch)
    kinds, constants, divides = signature(launch)
    source = ASTSource(launch.kernel, kinds, constants, divides)
    start = time.monotonic()
    result = triton.compile(source, target=target(arch), options=launch.options)
    out.seconds = time.monotonic() - start
    out.shared = result.metadata.shared
    text = result.asm.get("ptx") or result.asm["amdgcn"]
    found = [m for m in ("wgmma", "tcgen05.mma", "mma.sync", "v_mfma", "v_wmma") if m in text]
    out.matrix = ",".join(found)
    out.instructions = sorted({"".join(found) for found in INSTRUCTION.findall(text)})
    out.reductions = read_reductions(result.asm["ttgir"])
    out.registers, out.spilled = read_usage(result.asm)
    out.ahead = max(map(int, re.findall(r"cp\.async\.wait_group\s+(\d+)", text)), default=0)
    want = expected(launch, arch)
    if want and want not in found:
        out.problems.append(f"no {want}, found {out.matrix or 'no matrix instruction'}")
    small = narrow(launch, arch)
    if small and not re.search(NARROW[small], text):
        out.problems.append(f"no matrix instruction of {small}")
    limit = tiles(arch).shared
    if out.shared > limit:
        out.problems.append(f"{out.shared} bytes of shared memory, the device has {limit}")
    if launch.options.get("launch_pdl") and "prefetch_weight" in launch.kernel.src and "prefetch.global.L2" not in text:
        out.problems.append("a dependent product that prefetches nothing")
    if launch.options.get("launch_pdl") and (why := find_early_access(text)):
        out.problems.append(why)
    if out.spilled > SPILLED:
        out.problems.append(f"spills {out.spilled}, at most {SPILLED}")
    return out


SAME = {"sm_90": (("mma.syncm16k16", "wgmmam64k16"),)}
"""Matrix instructions that gave rows equal bits on a device of an architecture (`ci/gpu/rows.py` on an NVIDIA H200)."""


def _form(launch: Launch) -> str:
    """What a product of codes multiplies: launches that differ in sizes only are tiles of one product."""
    a = launch.arguments
    return f"{a['KIND']} {a['GROUP']} {a['ZEROS']} {a['CODES']} {a['INTEGER']}"


def alike(outcomes: list[Outcome], arch: str) -> None:
    """Tiles of one product are chosen by the number of rows. Rows keep their bits only if all tiles sum with one instruction,
    or with some that a device has shown to give the same. Sums of integers are exact."""
    kinds = {tuple(o.instructions) for o in outcomes if not o.problems and "int8-row-int8" not in o.launch}
    if any({i for kind in kinds for i in kind} <= set(same) for same in SAME.get(arch, ())):
        return
    if len(kinds) > 1:
        outcomes[0].problems.append(f"tiles of this product use {' and '.join(map(str, sorted(kinds)))}")
        print(f"{outcomes[0].launch}: {outcomes[0].problems[-1]}")


def compare_norms(outcomes: list[Outcome]) -> None:
    """A norm that rounds has the bits of one that does not only if both add a row's squares in one order."""
    found = {tuple(o.reductions[:1]) for o in outcomes if not o.problems}
    if len(found) > 1:
        outcomes[0].problems.append(f"norms of this width sum in the orders {sorted(found)}")
        print(f"{outcomes[0].launch}: {outcomes[0].problems[-1]}")


def _worker(work: list[Launch], arch: str, pipe: Any) -> None:
    """Compiles the launches whose numbers it is sent."""
    while True:
        launch = work[pipe.recv()]
        try:
            pipe.send(compile_one(launch, arch))
        except BaseException as e:
            while e.__cause__ is not None:  # the compiler wraps what went wrong in where
                e = e.__cause__
            lines = str(e).strip().splitlines() or [""]
            pipe.send(Outcome(launch.name, arch, problems=[f"{type(e).__name__}: {lines[-1][:200]}"]))


class Guarded:
    """compile_one in a process that may die or be stopped; another takes its place."""

    def __init__(self, work: list[Launch], arch: str, seconds: float) -> None:
        self._work, self._arch, self._seconds = work, arch, seconds
        self._child: Any = None
        self._pipe: Any = None

    def __call__(self, i: int) -> Outcome:
        if self._child is None:
            fork = multiprocessing.get_context("fork")
            self._pipe, other = fork.Pipe()
            self._child = fork.Process(target=_worker, args=(self._work, self._arch, other))
            self._child.start()
            other.close()
        name = self._work[i].name
        try:
            self._pipe.send(i)
            if self._pipe.poll(self._seconds):
                return self._pipe.recv()  # type: ignore[no-any-return]
            self.stop()
            return Outcome(name, self._arch, self._seconds, problems=[f"not compiled in {self._seconds:g} s"])
        except (EOFError, OSError):
            self._child.join()
            status = self._child.exitcode
            self.stop()
            return Outcome(name, self._arch, problems=[f"the compiler ended the process (exit status {status})"])

    def stop(self) -> None:
        if self._child is not None:
            self._child.kill()
            self._child.join()
            self._pipe.close()
            self._child = None


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--quick", action="store_true", help=f"the launches that matter most, for {', '.join(QUICK)}")
    parser.add_argument("--each", action="store_true", help="of each kernel only the first launch")
    parser.add_argument("--arch", nargs="*", help=f"default: {' '.join(ARCHS)}")
    parser.add_argument("--only", default="", help="launches whose name contains this")
    parser.add_argument("--part", metavar="I/N", default="1/1", help="the I-th of N parts of each architecture's launches")
    parser.add_argument("--seconds", type=float, default=120, help="time limit of one compilation")
    parser.add_argument("--json", type=Path, help="also write the outcomes here")
    args = parser.parse_args()
    numbers = re.fullmatch(r"(\d+)/(\d+)", args.part)
    part, parts = map(int, numbers.groups()) if numbers else (0, 0)
    if not 1 <= part <= parts:
        parser.error(f"--part: {args.part} is not the I-th of N parts, as in 1/2")
    outcomes = []
    print(f"{'launch':44} {'arch':8} {'s':>5} {'matrix':20} {'shared':>7} {'regs':>4} {'spill':>5} {'ahead':>5}  problems")
    with tempfile.TemporaryDirectory() as cache:
        triton.knobs.cache.dir = cache
        for arch in args.arch or (QUICK if args.quick else ARCHS):
            work = [x for x in launches(arch) if args.only in x.name and (not args.quick or any(q in x.name for q in QUICKLY))]
            if args.each:
                work = list({x.kernel: x for x in reversed(work)}.values())
            work = work[part - 1 :: parts]
            compiled = Guarded(work, arch, args.seconds)
            for i in range(len(work)):
                o = compiled(i)
                outcomes.append(o)
                print(f"{o.launch:44} {o.arch:8} {o.seconds:5.1f} {o.matrix:20} {o.shared:7} {o.registers:4} {o.spilled:5} "
                      f"{o.ahead:5}  {'; '.join(o.problems) or 'ok'}", flush=True)  # fmt: skip
            compiled.stop()
            result = list(zip(outcomes[len(outcomes) - len(work) :], work, strict=True))
            alike([o for o, x in result if x.kernel is linear._product], arch)
            norms = [(o, x) for o, x in result if x.kernel in (elementwise._norm, rounding._norm_round)]
            for block in {x.arguments["BLOCK"] for _, x in norms}:
                compare_norms([o for o, x in norms if x.arguments["BLOCK"] == block])
            exact = [(o, x) for o, x in result if x.kernel is quantised.product and " variant " not in x.name]
            for form in {_form(x) for _, x in exact}:
                alike([o for o, x in exact if _form(x) == form], arch)
    if args.json:
        args.json.write_text(json.dumps([asdict(o) for o in outcomes], indent=1) + "\n")
    failed = sum(bool(o.problems) for o in outcomes)
    print(f"{len(outcomes)} compilations with Triton {triton.__version__}, {failed} with problems")
    return 1 if failed or not outcomes else 0


if __name__ == "__main__":
    sys.exit(main())
