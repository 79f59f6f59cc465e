"""Mixtures of experts: routing, and the experts' layers as products in which every tile has one expert.

Pairs (token, expert) are sorted by expert, and each expert's pairs cut into tiles of rows. The number of tiles
depends on the routing. There are as many programs as there could be, and some find nothing to do: a captured step
replays for any routing. A row is summed in one order wherever it lies in a tile.
"""

import functools
import itertools
from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from thalweg.backends.triton_kernels import fours, groups, lora_experts, quantised
from thalweg.backends.triton_kernels.dependent import declare_dependence, wait_for_launches
from thalweg.backends.triton_kernels.elementwise import GATES, apply_gate, split_activation
from thalweg.backends.triton_kernels.linear import DTYPES
from thalweg.backends.triton_kernels.lora_experts import ExpertAdapters, add_low_rank
from thalweg.backends.triton_kernels.tiles import ProductTile, TileSizes
from thalweg.hal.op import Kernel, Pack
from thalweg.hal.ops.activation import SWIGLU_OAI, is_gate
from thalweg.hal.weights import QTensor, WeightFormat

MOST_EXPERTS = 1024


@triton.jit(do_not_specialize=["tokens"])
def _route(
    logits, bias, ids, weights, tokens, row, scale, E: tl.constexpr, K: tl.constexpr, SIGMOID: tl.constexpr, BIAS: tl.constexpr,
    NORMAL: tl.constexpr, GROUPS: tl.constexpr, TOP: tl.constexpr, BEST: tl.constexpr, BLOCK: tl.constexpr,
    SLOTS: tl.constexpr, DEPENDENT: tl.constexpr,
):  # fmt: skip
    """One token."""
    wait_for_launches(DEPENDENT)
    t = tl.program_id(0).to(tl.int64)
    e = tl.arange(0, BLOCK)
    there = e < E
    x = tl.load(logits + t * row + e, mask=there, other=float("-inf")).to(tl.float32)
    if SIGMOID:
        value = 1.0 / (1.0 + tl.exp(-x))
    else:
        value = tl.exp(x - tl.max(x, 0))
        value = value / tl.sum(value, 0)
    by = value
    if BIAS:
        by += tl.load(bias + e, mask=there, other=0.0)
    by = tl.where(there, by, float("-inf"))
    if GROUPS > 1:
        size: tl.constexpr = E // GROUPS
        own = e // size
        score = tl.full([BLOCK], float("-inf"), tl.float32)  # of the group that each expert is of
        for g in range(0, GROUPS):
            mine = tl.where(there & (own == g), by, float("-inf"))
            rank = tl.max(mine, 0)
            if BEST > 1:
                at = tl.min(tl.where(mine == rank, e, BLOCK), 0)
                rank += tl.max(tl.where(e == at, float("-inf"), mine), 0)
            score = tl.where(own == g, rank, score)
        keep = e < 0
        for _ in range(0, TOP):
            free = tl.where(there & (keep == 0), score, float("-inf"))
            at = tl.min(tl.where(there & (keep == 0) & (free == tl.max(free, 0)), e, BLOCK), 0)
            keep = keep | (own == at // size)
        by = tl.where(keep, by, float("-inf"))
    slot = tl.arange(0, SLOTS)
    chosen = tl.zeros([SLOTS], tl.int32)
    kept = tl.zeros([SLOTS], tl.float32)
    free = there
    for i in range(0, K):
        best = tl.max(tl.where(free, by, float("-inf")), 0)
        at = tl.min(tl.where(free & (by == best), e, BLOCK), 0)
        chosen = tl.where(slot == i, at, chosen)
        kept = tl.where(slot == i, tl.sum(tl.where(e == at, value, 0.0), 0), kept)
        free = free & (e != at)
    if NORMAL:
        total = tl.sum(kept, 0)
        if SIGMOID:
            total += 1e-20
        kept = kept / total
    tl.store(ids + t * K + slot, chosen, mask=slot < K)
    tl.store(weights + t * K + slot, kept * scale, mask=slot < K)


@triton.jit
def _expert_of(starts, ends, firsts, pairs, tile_expert, M: tl.constexpr, E: tl.constexpr):
    """(expert, pairs [M], which exist) of this program's tile."""
    n = tl.program_id(0)
    e = tl.load(tile_expert + n)
    inside = tl.load(starts + e, mask=e < E, other=0) + (n - tl.load(firsts + e, mask=e < E, other=0)) * M + tl.arange(0, M)
    ok = (e < E) & (inside < tl.load(ends + e, mask=e < E, other=0))
    return e, tl.load(pairs + inside, mask=ok, other=0), ok


@triton.jit
def up(
    x, weight, scales, zeros, out, starts, ends, firsts, pairs, tile_expert, width, ffn, w_row, k, low, low_row, b, slots,
    ranks, rank, x_row, bias, E: tl.constexpr, ACT: tl.constexpr, LIMIT: tl.constexpr, UP_LIMIT: tl.constexpr,
    BIAS: tl.constexpr, ADAPTED: tl.constexpr, HELD: tl.constexpr, KIND: tl.constexpr, GROUP: tl.constexpr,
    SCALED: tl.constexpr, ZEROS: tl.constexpr, EVEN: tl.constexpr, NATIVE: tl.constexpr, PAIRED: tl.constexpr,
    PRECISION: tl.constexpr, M: tl.constexpr, N: tl.constexpr, K: tl.constexpr, STAGES: tl.constexpr, UNROLL: tl.constexpr,
    DEPENDENT: tl.constexpr,
):  # fmt: skip
    """act(gate) * up of one tile of pairs, N columns: x [T, width], weight [E * 2 ffn, width], out [pairs, ffn]. BIAS: bias
    [E * 2 ffn] is added to gate and up. ADAPTED: so are products with b [slots, E, rank, 2 ffn] (`add_low_rank`)."""
    wait_for_launches(DEPENDENT)
    e, pair, ok = _expert_of(starts, ends, firsts, pairs, tile_expert, M, E)
    if e >= E:
        return
    c = tl.program_id(1) * N + tl.arange(0, N)
    c_ok = c < ffn
    j = (e.to(tl.int64) * 2 * ffn + c).to(tl.int64)
    cols = E * 2 * ffn
    kind = out.dtype.element_ty
    at = (pair // k).to(tl.int64) * x_row
    gate = quantised.sums(
        x, at, ok, weight, scales, zeros, j, j * w_row, c_ok, 0, width, width, cols, kind,
        KIND, GROUP, ZEROS, False, EVEN, False, NATIVE, PAIRED, PRECISION, M, N, K, STAGES, UNROLL,
    )  # fmt: skip
    high = quantised.sums(
        x, at, ok, weight, scales, zeros, j + ffn, (j + ffn) * w_row, c_ok, 0, width, width, cols, kind,
        KIND, GROUP, ZEROS, False, EVEN, False, NATIVE, PAIRED, PRECISION, M, N, K, STAGES, UNROLL,
    )  # fmt: skip
    if SCALED:
        gate = quantised.scale_accumulator(gate, scales, j, c_ok, GROUP)
        high = quantised.scale_accumulator(high, scales, j + ffn, c_ok, GROUP)
    if BIAS:
        gate += tl.load(bias + j, mask=c_ok, other=0.0).to(tl.float32)[None, :]
        high += tl.load(bias + j + ffn, mask=c_ok, other=0.0).to(tl.float32)[None, :]
    if ADAPTED:
        gate = add_low_rank(
            gate.to(kind).to(tl.float32), pair, ok, e, c, c_ok, 0, 2 * ffn, low, low_row, b, slots, ranks, rank, k, E, 0, 0,
            HELD, M, N,
        )  # fmt: skip
        high = add_low_rank(
            high.to(kind).to(tl.float32), pair, ok, e, c, c_ok, ffn, 2 * ffn, low, low_row, b, slots, ranks, rank, k, E, 1, 1,
            HELD, M, N,
        )  # fmt: skip
    result = apply_gate(gate, high, kind, ACT, LIMIT, UP_LIMIT)
    tl.store(out + pair[:, None].to(tl.int64) * ffn + c[None, :], result, mask=ok[:, None] & c_ok[None, :])


@triton.jit
def down(
    x, weight, scales, zeros, out, starts, ends, firsts, pairs, tile_expert, width, hidden, w_row, k, low, low_row, b, slots,
    ranks, rank, E: tl.constexpr, ADAPTED: tl.constexpr, HELD: tl.constexpr, KIND: tl.constexpr, GROUP: tl.constexpr,
    SCALED: tl.constexpr, ZEROS: tl.constexpr, EVEN: tl.constexpr, NATIVE: tl.constexpr, PAIRED: tl.constexpr,
    PRECISION: tl.constexpr, M: tl.constexpr, N: tl.constexpr, K: tl.constexpr, STAGES: tl.constexpr, UNROLL: tl.constexpr,
    DEPENDENT: tl.constexpr,
):  # fmt: skip
    """x [pairs, width] through weight [E * hidden, width]: out [pairs, hidden]. ADAPTED: as in `up`, b
    [slots, E, rank, hidden]."""
    wait_for_launches(DEPENDENT)
    e, pair, ok = _expert_of(starts, ends, firsts, pairs, tile_expert, M, E)
    if e >= E:
        return
    c = tl.program_id(1) * N + tl.arange(0, N)
    c_ok = c < hidden
    j = (e.to(tl.int64) * hidden + c).to(tl.int64)
    acc = quantised.sums(
        x, pair.to(tl.int64) * width, ok, weight, scales, zeros, j, j * w_row, c_ok, 0, width, width, E * hidden,
        out.dtype.element_ty, KIND, GROUP, ZEROS, False, EVEN, False, NATIVE, PAIRED, PRECISION, M, N, K, STAGES, UNROLL,
    )  # fmt: skip
    if SCALED:
        acc = quantised.scale_accumulator(acc, scales, j, c_ok, GROUP)
    if ADAPTED:
        acc = acc.to(out.dtype.element_ty).to(tl.float32)
        acc = add_low_rank(acc, pair, ok, e, c, c_ok, 0, hidden, low, low_row, b, slots, ranks, rank, k, E, 2, 0, HELD, M, N)
    put = pair[:, None].to(tl.int64) * hidden + c[None, :]
    tl.store(out + put, acc.to(out.dtype.element_ty), mask=ok[:, None] & c_ok[None, :])


@triton.jit
def _together(
    y, weights, ids, bias, out, hidden, E: tl.constexpr, K: tl.constexpr, BIAS: tl.constexpr, BLOCK: tl.constexpr,
    DEPENDENT: tl.constexpr,
):  # fmt: skip
    """out[t] = the sum of weights[t, i] * y[t, i], in the order of i. BIAS: y[t, i] gets bias[ids[t, i]] of bias
    [E, hidden]. An id of E adds nothing, and has no y."""
    wait_for_launches(DEPENDENT)
    t = tl.program_id(0).to(tl.int64)
    c = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    acc = tl.zeros([BLOCK], tl.float32)
    for i in range(0, K):
        e = tl.load(ids + t * K + i)
        there = (c < hidden) & (e < E)
        part = tl.load(y + (t * K + i) * hidden + c, mask=there, other=0.0).to(tl.float32)
        if BIAS:
            part += tl.load(bias + e.to(tl.int64) * hidden + c, mask=there, other=0.0).to(tl.float32)
        acc += tl.load(weights + t * K + i) * part
    tl.store(out + t * hidden + c, acc.to(out.dtype.element_ty), mask=c < hidden)


def route(
    tiles: TileSizes, logits: Tensor, bias: Tensor | None = None, *, k: int, scores: str, renormalise: bool, scale: float = 1.0,
    groups: int = 1, top_groups: int = 1, group_best: int = 2,
) -> tuple[Tensor, Tensor]:  # fmt: skip
    tokens, count = logits.shape
    logits = logits if logits.stride(1) == 1 else logits.contiguous()
    ids = torch.empty((tokens, k), dtype=torch.int32, device=logits.device)
    weights = torch.empty((tokens, k), dtype=torch.float32, device=logits.device)
    if tokens:
        _route[(tokens,)](
            logits, logits if bias is None else bias, ids, weights, tokens, logits.stride(0), float(scale), E=count, K=k,
            SIGMOID=scores == "sigmoid", BIAS=bias is not None, NORMAL=renormalise, GROUPS=groups, TOP=top_groups,
            BEST=group_best, BLOCK=triton.next_power_of_2(count), SLOTS=triton.next_power_of_2(k), num_warps=1,
            **declare_dependence(tiles),
        )  # fmt: skip
    return ids, weights


def experts(
    tiles: TileSizes, kind: str, exact: bool, x: Tensor, ids: Tensor, weights: Tensor, gate_up: dict[str, Tensor],
    down_: dict[str, Tensor], bias: Tensor | None = None, down_bias: Tensor | None = None, *, experts: int, act: str = "silu",
    group: int = 0, down_group: int = 0, adapters: ExpertAdapters | None = None,
) -> Tensor:  # fmt: skip
    """exact: a row's terms are added in one order whatever the number of tokens. kind: "" = each weight's, as `_pack_mixed`
    packed it. adapters: added to the products."""
    (tokens, hidden), k = x.shape, ids.shape[1]
    x = x if x.stride(1) == 1 else x.contiguous()
    out = torch.empty((tokens, hidden), dtype=x.dtype, device=x.device)
    if tokens == 0:
        return out
    kinds = [kind or next(k for k in KINDS.values() if k in w) for w in (gate_up, down_)]
    ffn = gate_up["codes" if kind else kinds[0]].shape[0] // experts // 2
    pairs = -(-tokens * k // experts)
    if any(
        fours.is_chain(k, **quantised.shifts(k, g, w)[1])
        for k, g, w in _four_bit_weights(kinds, (group, down_group), (gate_up, down_))
    ):
        pairs = max(pairs, fours.CHAINED)
    t = _choose_tile(tiles, kinds, pairs, exact, x.dtype)
    by = () if adapters is None else (adapters.slots, adapters.ranks.shape[0])
    work = groups.assign(tiles, ids, experts, t.rows, *by)
    middle = torch.empty((tokens * k, ffn), dtype=x.dtype, device=x.device)
    y = torch.empty((tokens * k, hidden), dtype=x.dtype, device=x.device)
    same = {
        "E": experts, "NATIVE": tiles.float8, "PAIRED": tiles.paired, "PRECISION": "ieee", "M": t.rows, "N": t.cols,
        "HELD": lora_experts.ranks_at_once(adapters), "STAGES": t.stages, "num_warps": t.warps, "num_stages": t.stages,
        **declare_dependence(tiles),
    }  # fmt: skip

    def launch(kernel, x: Tensor, kind: str, w: dict[str, Tensor], group: int, out: Tensor, *more: Any, **given: Any) -> None:
        (inputs, cols), codes = (x.shape[1], out.shape[1]), w["codes" if "codes" in w else kind]
        low: tuple[Any, ...] = (x, 0, x, x, x, 0)  # not read
        if adapters is not None:
            low = lora_experts.arguments(tiles, work, t.rows, x, adapters, pairs=tokens * k, k=k, down=kernel is down)
        held = "raw" if kind == "dense" else kind
        zeros, static = quantised.shifts(held, group, {"scales": codes} | w)
        width = quantised.inputs_of(held, static["GROUP"], t.inner, x.dtype)
        unroll = quantised.steps_of(held, t, width)
        kernel[(work.tile_expert.shape[0], triton.cdiv(cols, t.cols))](
            x, codes, w.get("scales", codes), zeros, out, *work, inputs, cols, codes.stride(0), k, *low, *more, KIND=held,
            K=width, ADAPTED=adapters is not None, SCALED=kind != "dense", EVEN=inputs % (width * unroll) == 0, UNROLL=unroll,
            **static, **same, **given,
        )  # fmt: skip

    launch(
        up, x, kinds[0], gate_up, group, middle, x.stride(0), x if bias is None else bias, **split_activation(act),
        BIAS=bias is not None,
    )  # fmt: skip
    launch(down, middle, kinds[1], down_, down_group, y)
    block = min(1024, triton.next_power_of_2(hidden))
    _together[(tokens, triton.cdiv(hidden, block))](
        y, weights.contiguous(), ids.contiguous(), y if down_bias is None else down_bias, out, hidden, E=experts, K=k,
        BIAS=down_bias is not None, BLOCK=block, num_warps=4, **declare_dependence(tiles),
    )  # fmt: skip
    return out


def adapted_experts(
    tiles: TileSizes, kind: str, exact: bool, x: Tensor, ids: Tensor, weights: Tensor, gate_up: dict[str, Tensor],
    down_: dict[str, Tensor], *arrays: Tensor, **static: Any,
) -> Tensor:  # fmt: skip
    """`lora_experts`, by the kernel of `experts` with the same kind and `exact`."""
    return experts(tiles, kind, exact, x, ids, weights, gate_up, down_, adapters=ExpertAdapters(*arrays), **static)


def _four_bit_weights(kinds: list[str], groups: tuple[int, int], weights: tuple[dict[str, Tensor], ...]) -> list[Any]:
    """(kind, group, weight) of those that hold codes of 4 bits."""
    return [x for x in zip(kinds, groups, weights, strict=True) if fours.is_four(x[0])]


def _choose_tile(tiles: TileSizes, kinds: list[str], rows: int, exact: bool, dtype: torch.dtype) -> ProductTile:
    """The tile of experts that have `rows` pairs each, on average. kinds: of both weights. Codes of 8 bits have one size of
    tile where rows must keep their bits, as they are multiplied a group at a time."""
    p = tiles.product
    if all(fours.is_four(k) for k in kinds):
        t = next((t for t in p.four if t.serves(rows, 1)), p.base(1))
        return t.cut(tiles.scalar) if dtype == torch.float32 else t
    if kinds == ["dense", "dense"] and exact and dtype != torch.float32:
        found = next((t for t in p.experts if t.serves(rows, 1)), None)
        if found is not None:
            return found
    m, n = quantised.tile_sizes(tiles, 0, 2 * rows, exact, dtype)
    return ProductTile(min(m, 64), max(16, n), p.inner, p.warps, min(2, p.stages))


def _pack(tiles: TileSizes, w: QTensor) -> dict[str, Tensor]:
    return {"codes": w.data["weight"].contiguous()} if w.format.kind == "dense" else quantised.pack(tiles, w)


KINDS = {
    "triton": "dense", "triton-int8": "int8", "triton-int4": "int4", "triton-float8": "float8", "triton-float4": "float4",
    "triton-table4": "table4",
}  # fmt: skip
"""Kernel name -> codes."""


def _pack_mixed(tiles: TileSizes, w: QTensor) -> dict[str, Tensor]:
    """As `_pack`, with the codes under the name of their kind."""
    result = _pack(tiles, w)
    kind = next(k for k in KINDS.values() if _unfit(k, w.format, DTYPES[0]) is None)
    return {kind: result.pop("codes")} | result


def _unfit(kind: str, w: WeightFormat, dtype: str) -> str | None:
    if kind != "dense":
        return quantised.refusal(kind, "", w, dtype)
    if w.kind != "dense":
        return f"runs dense weights, not {w}"
    return None if dtype in DTYPES else f"runs {', '.join(DTYPES)}, not {dtype}"


def _refusal(kind: str, spec) -> str | None:
    """kind: "" = two unequal formats."""
    first, second, dtype = spec["weight"], spec["down_weight"], spec["dtype"]
    if not spec.get("gated", True):
        return "runs experts with gates"
    if spec["act"] != SWIGLU_OAI and not is_gate(spec["act"]):
        return f"runs {SWIGLU_OAI}, {', '.join(GATES)}, not {spec['act']}"
    if kind:
        if second != first:
            return f"holds all matrices in one format, not {first} and for down {second}"
        return _unfit(kind, first, dtype)
    if first == second:
        return f"runs two formats, not {first} alone"
    if dtype not in DTYPES:
        return f"runs {', '.join(DTYPES)}, not {dtype}"
    missing = [str(w) for w in (first, second) if all(_unfit(k, w, dtype) for k in KINDS.values())]
    return f"runs formats that kernels for one of them run, not {' nor '.join(missing)}" if missing else None


def _refusal_adapted(kind: str, spec) -> str | None:
    if spec.get("biased") or spec.get("elsewhere"):
        return "adapts experts without biases that are all on this device"
    return _refusal(kind, spec)


def _few(spec) -> str | None:
    count = spec.get("experts", 0)
    return None if count <= MOST_EXPERTS else f"routes among {MOST_EXPERTS} experts at most, not {count}"


def kernels(t: TileSizes) -> tuple[Kernel, ...]:
    part = functools.partial
    found = [Kernel("route", "triton", part(route, t), supports=_few, batch_invariant=True)]
    for (name, kind), exact in itertools.product((*KINDS.items(), ("triton-mixed", "")), (False, True)):
        label, pack = name if exact else f"{name}-variant", Pack(part(_pack if kind else _pack_mixed, t))
        run, adapted = (part(f, t, kind, exact) for f in (experts, adapted_experts))
        found.append(Kernel("experts", label, run, part(_refusal, kind), pack, batch_invariant=exact))
        found.append(Kernel("lora_experts", label, adapted, part(_refusal_adapted, kind), pack, batch_invariant=exact))
    return tuple(found)
