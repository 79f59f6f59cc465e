"""How long a step should take on a GPU, by counting what it moves and multiplies. A measured figure far from it teaches most.

    python ci/gpu/predict.py [--shape llama-8b] [--quantization fp8] [--scaled | --dependent] [--joined | --unfused]
        [--summary FILE]

Every weight is one product: the largest of its bytes at the memory's rate, the bytes that its tiles read from the L2 cache
at that one's, and its multiplications at the matrix unit's. A tile of M rows and N columns reads M rows of x and N of the
weight. Keys and values are read once. Every launch adds a ramp and a gap. A step that no graph holds takes at least as long
as its launches take the host.

Rates are those that `smoke` measured, or an H100's: memory copied at 3.0 TB/s and matrix products of 798 TFLOP/s, both
measured there; 5.5 TB/s from the L2 cache is assumed. What a kernel reaches of them is assumed too (`Rates`).
"""

from __future__ import annotations

import argparse
import json
import re
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any

from report import Predict, predict_nothing
from shapes import QUANTIZATIONS, SHAPES, Case, parse

from thalweg.hal.weights import WeightFormat
from thalweg.models import registry, sizes
from thalweg.models.precision import model_scheme
from thalweg.models.spec import ModelSpec, MoE
from thalweg.models.weights import HEADS, products, walk

TELLING = 0.15
"""A figure that differs from its prediction by more of that is marked."""
DTYPE = "bfloat16"
CONTEXT = 1500
"""Tokens before each new one, in the table that is printed."""
STEP_CONTEXT = 208
"""The same in "step N" of `measure.py`, of one sequence."""
PRODUCT_GAP, LAUNCH_GAP = 3e-6, 2.5e-6
"""Seconds that a product, and another launch, add to a step inside a graph."""
DEPENDENT_GAP = 1.2e-6
"""Seconds that a launch adds where it starts before the one ahead of it ends: assumed, no card has measured it."""
HOST_LAUNCH = 25e-6
"""Seconds of the host for each launch of a step that no graph holds."""
CAPTURED = 512
"""Tokens of the largest step that a graph holds (`mixed_graph` of the GPU platforms)."""
BUDGET = 8192
"""Tokens of the largest step with prompts, on a large GPU."""
LAYER_LAUNCHES = {"dense": 10, "experts": 14}
LAYER_DEPENDENT = {"dense": 6, "experts": 11}
AROUND = 10
"""Launches of a layer, of these such as may be dependent, and around all layers (`ci/gpu/launches.py`)."""
FEW_PAIRS = 128
"""Pairs of a token and an expert up to which a mixture has one launch less (`triton_kernels.groups`)."""
ROUNDINGS, UNFUSED_ROUNDINGS = 1, 4
"""Launches that round the inputs of a dense layer's products, where they are 8-bit: those of attention's output, and without
`fused_rounding` those behind norms and gates."""
EXPERT_TILE = (64, 32)
"""Rows and columns of a program of the experts' kernel."""
Tile = tuple[int, int]
Choose = Callable[[str, int, int], Tile]
"""(operands, rows, columns) -> rows and columns of a product's programs. Operands are as of the tile files."""


@dataclass(frozen=True, slots=True)
class Rates:
    """Per second: bytes of weights, bytes of keys and values, bytes from the L2 cache, operations of products, of prompts'
    scores."""

    weights: float
    cache: float
    l2: float
    flops: float
    scores: float

    @classmethod
    def of(cls, ceilings: Mapping[str, Any] | None = None) -> Rates:
        """From `smoke`'s ceilings; an H100's where they are missing. A product reads at 0.93 of the memory's rate, attention
        at 0.75. Products reach 0.75 of the matrix rate, scores of prompts 0.35."""
        rates = ceilings or {}
        memory = rates.get("bandwidth", 3.0e12)
        matrix = rates.get("matrix_flops_per_second", 798e12)
        l2 = rates.get("l2_bytes_per_second", 5.5e12)
        return cls(0.93 * memory, 0.75 * memory, l2, 0.752 * matrix, 0.351 * matrix)


@dataclass(frozen=True, slots=True)
class Matrix:
    """A weight that rows are multiplied with: [cols, width]. bytes: held. each: bytes of a value of x. experts, top_k: of
    a mixture, whose matrices are all alike."""

    cols: int
    width: int
    bytes: float
    operands: str
    each: int
    head: bool = False
    experts: int = 0
    top_k: int = 0


@dataclass(frozen=True, slots=True)
class Model:
    """What the count needs of a case."""

    spec: ModelSpec
    matrices: tuple[Matrix, ...]
    launches: int
    token_bytes: tuple[tuple[int, int], ...]
    """Of each layer's cache: bytes of a token, and the window that it reads (0: all)."""
    dependent: int = 0
    """Launches that start before the one ahead of them ends."""


LIBRARY_TILE = (128, 256)
"""Rows and columns of a program of a matrix library, about."""


def read_tiles(arch: str = "sm_90") -> Choose:
    """The tiles of this checkout for an architecture. Where a matrix library serves, its own."""
    from thalweg.backends.torch_gpu import linear, scaled
    from thalweg.backends.triton_kernels.tiles import tiles

    result = tiles(arch).product
    library = {"dense": -1 if arch in linear.SHOWN else 1 << 30, "float8": scaled.FEW if arch in scaled.SHOWN else 1 << 30}

    def choose(operands: str, rows: int, cols: int) -> Tile:
        if rows > library.get(operands, 1 << 30):
            return LIBRARY_TILE
        tile = result.choose(operands, rows, cols)
        return tile.rows, tile.cols

    return choose


@cache
def count_case(case: Case) -> Model:
    config = case.config()
    spec = registry.family(config)(config)
    use = model_scheme(config, case.quantization or None, spec).choose(multiplies)
    matrices = tuple(_list_matrices(spec, use))
    if case.scaled:
        matrices = tuple(replace(m, operands="scaled") if m.operands == "grouped" else m for m in matrices)
    kinds = ["experts" if isinstance(layer.ffn, MoE) else "dense" for layer in spec.layers]
    less = 1 if case.joined else 0
    rounded = (UNFUSED_ROUNDINGS if case.unfused else ROUNDINGS) if any(m.each == 1 for m in matrices) else 0
    launches = sum(LAYER_LAUNCHES[k] + rounded - less for k in kinds) + AROUND
    kept = [s for s in sizes.cache_specs(spec, DTYPE, "", 1 << 30) if s is not None]
    token = tuple((sizes.token_bytes(s), getattr(s, "window", 0)) for s in kept)  # type: ignore[arg-type]
    dependent = sum(LAYER_DEPENDENT[k] + rounded - less for k in kinds) if case.dependent else 0
    return Model(spec, matrices, launches, token, dependent)


def multiplies(format: WeightFormat) -> bool:
    """Has a GPU a kernel for linear layers of this format? Names such as int4 leave the format to the device."""
    from thalweg.backends.triton_kernels import quantised

    return any(quantised.refusal(kind, act, format, DTYPE) is None for kind, act in quantised.FORMATS.values())


def _list_matrices(spec: ModelSpec, use: Any) -> Iterator[Matrix]:
    for keys, weight in walk(spec.weights()):
        if weight.role not in ("linear", "experts", *HEADS):
            continue
        moe = spec.layers[keys[1]].ffn if weight.role == "experts" and keys[0] == "layers" else None
        for part in products(weight, use):
            form = use.of(part.role, part.sources[0].name)
            act = getattr(form, "act", "")
            operands = "float8" if act.startswith("float8") else "int8" if act.startswith("int8") else "dense"
            if form.kind != "dense" and not act:
                operands = "codes" if form.bits != 4 else "grouped" if form.kind == "int" and 0 < form.group <= 64 else "four"
            held, each = sizes.held_bytes(part, DTYPE, use), 1 if act else 2
            if isinstance(moe, MoE):
                width = part.sources[0].shape[1]
                cols = sum(s.shape[0] for s in part.sources) // moe.experts
                yield Matrix(cols, width, held, operands, each, experts=moe.experts, top_k=moe.top_k)
            else:
                cols, width = sum(s.shape[0] for s in part.sources), part.sources[0].shape[1]
                yield Matrix(cols, width, held, operands, each, weight.role in HEADS)


def predict_product(m: Matrix, rows: int, rates: Rates, choose: Choose) -> float:
    """Of one matrix and so many rows, without its gap."""
    if m.experts:
        return _predict_experts(m, rows, rates)
    tall, wide = choose(m.operands, rows, m.cols)
    programs = -(-rows // tall) * -(-m.cols // wide)
    value = m.bytes / (m.cols * m.width)
    read = programs * m.width * (min(rows, tall) * m.each + min(m.cols, wide) * value)
    flops = rates.flops * (2 if m.each == 1 else 1)
    return max(m.bytes / rates.weights, read / rates.l2, 2 * rows * m.cols * m.width / flops)


def _predict_experts(m: Matrix, rows: int, rates: Rates) -> float:
    """Of all experts that the rows choose, each row top_k of them evenly."""
    met = m.experts * (1 - (1 - m.top_k / m.experts) ** rows)
    pairs = rows * m.top_k
    tall, wide = EXPERT_TILE
    each = pairs / met
    programs = met * -(-each // tall) * -(-m.cols // wide)
    value = m.bytes / (m.experts * m.cols * m.width)
    read = programs * m.width * (min(each, tall) * m.each + wide * value)
    return max(m.bytes * met / m.experts / rates.weights, read / rates.l2, 2 * pairs * m.cols * m.width / rates.flops)


def predict_products(result: Model, rows: int, emitting: int, rates: Rates, choose: Choose) -> float:
    """Of all weights. emitting: rows that the output matrix meets."""
    return sum(predict_product(m, emitting if m.head else rows, rates, choose) for m in result.matrices)


def predict_scores(result: Model, tokens: int, rates: Rates) -> float:
    """Of one prompt's attention, without its gap."""
    pairs = 0.0
    for mixer in (mixer for layer in result.spec.layers for mixer in layer.mixers):
        heads, _, dim = mixer.widths
        window = getattr(mixer, "window", 0) or tokens
        pairs += 4 * heads * dim * tokens * min(tokens / 2, window)
    return pairs / rates.scores


def predict_gaps(result: Model, rows: int) -> float:
    """Of all launches of a step with so many rows."""
    count = len(result.matrices)
    few = sum(1 for m in result.matrices if m.experts and rows * m.top_k <= FEW_PAIRS) // 2
    saved = (LAUNCH_GAP - DEPENDENT_GAP) * result.dependent
    saved += (DEPENDENT_GAP if result.dependent else LAUNCH_GAP) * few
    return PRODUCT_GAP * count + LAUNCH_GAP * max(0, result.launches - count) - saved


def predict_step(case: Case, seqs: int, context: float, rates: Rates, choose: Choose) -> float:
    """A decode step, captured."""
    result = count_case(case)
    read = sum(seqs * size * (min(context, window) if window else context) for size, window in result.token_bytes)
    return predict_products(result, seqs, seqs, rates, choose) + read / rates.cache + predict_gaps(result, seqs)


def predict_prompt(case: Case, tokens: int, rates: Rates, choose: Choose) -> float:
    """A step of one prompt. The output matrix meets one row."""
    result = count_case(case)
    busy = (
        predict_products(result, tokens, 1, rates, choose)
        + predict_scores(result, tokens, rates)
        + predict_gaps(result, tokens)
    )
    return busy if tokens <= CAPTURED else max(busy, result.launches * HOST_LAUNCH)


def predict_requests(case: Case, n: int, prompt: int, out: int, rates: Rates, choose: Choose) -> float:
    """N requests at once: their prompts in steps of BUDGET tokens, then as many decode steps as each has tokens."""
    result, tokens = count_case(case), n * prompt
    step = min(tokens, BUDGET)
    each = predict_products(result, step, max(1, step // prompt), rates, choose) + predict_gaps(result, step)
    prompts = tokens / step * each + n * predict_scores(result, prompt, rates)
    return prompts + out * predict_step(case, n, prompt + out / 2, rates, choose)


def predict_figure(name: str, value: Mapping[str, Any], rates: Rates, choose: Choose) -> float | None:
    """What a figure of `measure.py`, by its name, should be. None: it is none that is predicted. value: as it was measured,
    for the context of a step."""
    label, _, figure = name.partition(": ")
    case = parse(label)
    numbers = [int(n) for n in re.findall(r"\d+", figure)]
    kind = figure.partition(" ")[0]
    if case is None or kind not in ("step", "prompt", "requests") or "seconds" not in value:
        return None
    if kind == "step":
        return predict_step(case, numbers[0], value.get("context", CONTEXT), rates, choose)
    if kind == "prompt":
        return predict_prompt(case, numbers[0], rates, choose)
    n, prompt, out = numbers
    return predict_requests(case, n, prompt, out, rates, choose)


def make_predictions(summary: Mapping[str, Any]) -> Predict:
    """What the figures of a run should be, by the ceilings that its smoke test measured. Nothing is predicted where the model
    of this module does not apply: it is NVIDIA's GPUs'."""
    figures = summary["parts"].get("smoke", {}).get("figures", {})
    arch = figures.get("eager step", {}).get("arch")
    if summary["platform"] != "cuda" or not arch:
        return predict_nothing
    rates, choose = Rates.of(figures.get("ceilings")), read_tiles(arch)
    return lambda name, value: predict_figure(name, value, rates, choose)


def foretell(names: Sequence[str], arch: str = "sm_90") -> list[str]:
    """A line for each of these figures that can be predicted, for an H100."""
    rates, choose = Rates.of(), read_tiles(arch)
    steps = {"seconds": 0.0, "context": STEP_CONTEXT}
    each = {name: predict_figure(name, steps, rates, choose) for name in names}
    return [f"{name:44} {seconds * 1e3:10.2f} ms" for name, seconds in each.items() if seconds is not None]


def format_table(case: Case, context: int, rates: Rates, choose: Choose) -> str:
    """Steps and prompts, with what they are made of."""
    result, held = count_case(case), sum(m.bytes for m in count_case(case).matrices)
    lines = [
        f"{case.label}: {held / 1e9:.2f} GB of weights, {result.launches} launches a step, {context} tokens before each",
        f"{'':14}{'products':>10}{'cache':>9}{'scores':>9}{'gaps':>8}{'ms':>9}{'tok/s':>9}",
    ]
    for n in (1, 8, 16, 64, 128, 256):
        whole = predict_step(case, n, context, rates, choose)
        part = predict_products(result, n, n, rates, choose)
        gaps = predict_gaps(result, n)
        cells = (part, whole - part - gaps, 0.0, gaps, whole)
        lines.append(_format_row(f"step {n}", cells, n / whole))
    for n in (512, 2048, 8192):
        whole = predict_prompt(case, n, rates, choose)
        cells = (
            predict_products(result, n, 1, rates, choose),
            0.0,
            predict_scores(result, n, rates),
            predict_gaps(result, n),
            whole,
        )
        lines.append(_format_row(f"prompt {n}", cells, n / whole))
    return "\n".join(lines)


def _format_row(name: str, seconds: Sequence[float], rate: float) -> str:
    widths = (10, 9, 9, 8, 9)
    return f"{name:14}{''.join(f'{s * 1e3:{w}.2f}' for s, w in zip(seconds, widths, strict=True))}{rate:9.0f}"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--shape", default="llama-8b", choices=sorted(SHAPES))
    parser.add_argument("--layers", type=int, default=0, metavar="N", help="only so many")
    parser.add_argument("--quantization", choices=QUANTIZATIONS, help="round the weights")
    parser.add_argument("--scaled", action="store_true", help="int4 with scaled_codes")
    parser.add_argument("--dependent", action="store_true", help="with dependent_launch")
    parser.add_argument("--joined", action="store_true", help="with joined_attention")
    parser.add_argument("--unfused", action="store_true", help="without fused_rounding")
    parser.add_argument("--arch", default="sm_90", help="architecture whose tiles count (default %(default)s)")
    parser.add_argument("--context", type=int, default=CONTEXT, help="tokens before each new one (default %(default)s)")
    parser.add_argument("--summary", type=Path, metavar="FILE", help="with the ceilings of this run, not an H100's")
    args = parser.parse_args()
    rates = json.loads(args.summary.read_text())["parts"]["smoke"]["figures"]["ceilings"] if args.summary else None
    try:
        settings = {name: getattr(args, name) for name in ("scaled", "dependent", "joined", "unfused")}
        case = Case(args.shape, args.layers, args.quantization or "", **settings)
        print(format_table(case, args.context, Rates.of(rates), read_tiles(args.arch)))
    except ValueError as e:
        parser.error(str(e))
    return 0


if __name__ == "__main__":
    sys.exit(main())
