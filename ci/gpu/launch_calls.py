"""What layers and the sampler ask of Triton's kernels, on tensors without memory: the arguments of the launches that
`compile.py` compiles."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import torch
from sizes import WEIGHTS

from thalweg.backends.triton_kernels import quantised
from thalweg.hal.attention import AttnSpec, QKPrologue
from thalweg.hal.op import Kernel
from thalweg.hal.ops.activation import CLAMP, CUT, SITU, SWIGLU_OAI
from thalweg.hal.ops.matmul import INT4_GROUPS, MXFP4, NF4
from thalweg.hal.step import SamplingArrays, StepBatch, StepShape
from thalweg.hal.weights import DENSE, QTensor, WeightFormat

BF16, F32, I32 = torch.bfloat16, torch.float32, torch.int32
VOCAB = 128_256
BATCHES = (1, 64, 128, 512, 2048)
"""Rows of a product: with the weights, they meet every tile."""
ADAPTED = ((4096, (4096, 1024, 1024)), (14336, (4096,)))
"""Inputs of layers with adapters, and the outputs of their parts."""
CODED = ((6144, 4096), (4096, 14336), (28672, 4096), (2048, 2048))
"""Weights in codes. Kernels that need not be batch-invariant have few tiles: the first two meet them."""


def meta(*shape: int, dtype: torch.dtype = BF16) -> torch.Tensor:
    return torch.empty(shape, dtype=dtype, device="meta")


def calls(k: Kernel) -> Iterator[tuple[str, list[Any], dict[str, Any]]]:
    """(name, arguments, static arguments) of what layers and the sampler ask of a kernel."""
    seqs, tokens = 64, 512
    i32 = {"dtype": I32}
    rows, logits, per_row = meta(seqs, **i32), meta(seqs, VOCAB, dtype=F32), meta(seqs, dtype=F32)
    history, ids = meta(257, 8193, **i32), meta(tokens, **i32)
    match k.op:
        case "linear" | "rms_norm_linear" | "act_and_mul_linear" if k.name.removesuffix("-variant") in quantised.FORMATS:
            yield from quantised_calls(k)
        case "lora_rows":
            for name, read in (("", []), (" read", [rows])):
                yield f"{tokens}{name}", [rows, ids, *read], {"count": 9}
        case "lora_add":
            for n, rank, (width, parts) in itertools.product((1, 64, tokens), (16, 32, 64, 128), ADAPTED):
                arrays = [meta(9, len(parts) * rank, width), meta(9, rank, sum(parts)), meta(9, len(parts), **i32)]
                each = [meta(n, **i32), meta(n, **i32), meta(10, **i32)]
                yield (
                    f"{n} of rank {rank} to {sum(parts)}",
                    [meta(n, sum(parts)), meta(n, width), *each, *arrays],
                    {"rows": parts},
                )
        case "experts" | "lora_experts":
            yield from expert_calls(k)
        case "route":
            yield "128 of 8", [meta(tokens, 128, dtype=F32)], {"k": 8, "scores": "softmax", "renormalise": True}
            grouped = {"scale": 2.5, "groups": 8, "top_groups": 4}
            static = {"k": 8, "scores": "sigmoid", "renormalise": True} | grouped
            yield "256 in groups", [meta(tokens, 256, dtype=F32), meta(256, dtype=F32)], static
            static = {"k": 6, "scores": "softmax", "renormalise": False, "groups": 8, "top_groups": 3, "group_best": 1}
            yield "160 in groups", [meta(tokens, 160, dtype=F32)], static
        case "head_linear":
            static = {"heads": 128, "out_features": 512, "turned": True}
            yield "128 to 512", [meta(tokens, 128, 192)[..., :128], meta(128 * 128, 512)], static
            yield "512 to 128", [meta(1, 128, 512), meta(128 * 128, 512)], {"heads": 128, "out_features": 128}
        case "linear":
            for (cols, width), rows in itertools.product(WEIGHTS, BATCHES):
                yield f"{rows} of {cols}x{width}", [meta(rows, width), meta(cols, width)], {}
        case "rms_norm":
            for h in (2048, 4096):
                yield str(h), [meta(tokens, h), meta(h)], {"eps": 1e-5}
            yield "heads", [meta(tokens, 48, 128)[:, :32], meta(128)], {"eps": 1e-6}
        case "add_rms_norm":
            yield "4096", [meta(tokens, 4096), meta(tokens, 4096), meta(4096)], {"eps": 1e-5}
        case "rope":
            qkv = meta(tokens, 48, 128)
            for interleaved in (False, True):
                static = {"rotary_dim": 128, "interleaved": interleaved}
                yield f"128 {interleaved}", [qkv[:, :32], qkv[:, 32:40], ids, meta(8192, 128, dtype=F32)], static
            yield "part", [qkv[:, :32], qkv[:, 32:40], ids, meta(8192, 32, dtype=F32)], {"rotary_dim": 32}
        case "act_and_mul":
            for act in ("silu", "gelu", "gelu_tanh", f"{CLAMP}10", f"{CUT}7", f"{SITU}4_25"):
                yield act, [meta(tokens, 2 * 14336)], {"act": act}
        case "resolve_tokens":
            yield "", [ids, history, ids, ids], {}
        case "history_write":
            yield "", [history, ids, ids, ids], {}
        case "enter_tokens":
            yield "", [ids, history, rows, ids, ids], {"max_len": 8192}
        case "emit_tokens":
            yield "", [history, rows, rows, rows, meta(seqs, dtype=torch.bool), rows, per_row], {}
        case "penalties":
            yield "", [logits, history, rows, rows, rows, per_row, per_row, per_row], {}
        case "bad_words":
            yield "", [logits, history, rows, rows, meta(7, **i32), meta(7, 5, **i32)], {}
        case "logit_bias":
            yield "", [logits, rows, rows, per_row], {}
        case "token_mask":
            yield "", [logits, meta(seqs, VOCAB // 32, **i32)], {}
        case "truncate":
            yield "", [logits, rows, per_row, per_row], {}
        case "draw":
            yield "", [logits, per_row, rows, per_row, per_row, meta(seqs, 2, **i32), rows], {}
        case "sample":
            for random in (False, True):
                yield f"random {random}", [logits, per_row, meta(seqs, 2, **i32), rows], {"random": random}
        case "logprobs":
            for n in (0, 20):
                yield f"k {n}", [logits, rows], {"k": n, "normalise": True}
        case _:
            raise SystemExit(f"ci/gpu/compile.py does not know what layers ask of {k.op}: add it to calls()")


FORMATS = (
    WeightFormat("int", 8), WeightFormat("int", 4, 128), WeightFormat("int", 4, 32, symmetric=False), WeightFormat("float", 8),
    WeightFormat("float", 8, 128), WeightFormat("float", 4, 32), WeightFormat("int", 8, act="int8"),
    WeightFormat("float", 4, 16, scale_dtype="float8_e4m3fn"),
    WeightFormat("int", 4, 32, symmetric=False, mins=True), WeightFormat("int", 8, 16), NF4, INT4_GROUPS,
    WeightFormat("float", 8, act="float8_e4m3fn"), WeightFormat("float", 8, 128, act="float8_e4m3fn"),
)  # fmt: skip


def qtensor(format: WeightFormat, cols: int, width: int) -> QTensor:
    """A weight of this format, of which only the sizes are there."""
    groups = {0: 1, -1: 1}.get(format.group, -(-width // max(1, format.group)))
    kind = (
        torch.float8_e4m3fn
        if format.kind == "float"
        else torch.int8
        if format.kind == "int" and format.symmetric
        else torch.uint8
    )
    data = {"codes": meta(cols, width, dtype=kind), "scales": meta(cols, groups, dtype=F32)}
    if format.scale_dtype:
        data |= {"scales": meta(cols, groups, dtype=getattr(torch, format.scale_dtype)), "scale": meta(1, 1, dtype=F32)}
    if format.kind == "table":
        data["levels"] = meta(1, len(format.levels), dtype=F32)
    if format.mins:
        data["mins"] = meta(cols, groups, dtype=F32)
    elif not format.symmetric:
        data["zeros"] = meta(cols, groups, dtype=torch.uint8)
    return QTensor(format, (cols, width), data)


def quantised_calls(k: Kernel) -> Iterator[tuple[str, list[Any], dict[str, Any]]]:
    """Of a kernel for quantised weights: each format that it supports, in batches that meet its tiles. Where it makes its
    inputs too, few sizes: products are those of its `linear`."""
    if k.op != "linear":
        yield from joined_calls(k)
        return
    for format in FORMATS:
        for (cols, width), rows in itertools.product(CODED if k.batch_invariant else CODED[:2], BATCHES):
            if k.supports({"weight": format, "dtype": "bfloat16"}) is None:
                weight = k.pack(qtensor(format, cols, width))
                label = f"{cols}x{width} {format}{'' if k.batch_invariant else ' variant'} {rows}"
                yield label, [meta(rows, width), weight], {"act": format.act, "group": format.group}


def joined_calls(k: Kernel) -> Iterator[tuple[str, list[Any], dict[str, Any]]]:
    """Of a kernel that makes the inputs of a linear layer, of an 8B model: norms, and gates of few rows and many."""
    for format, rows in itertools.product(FORMATS, (1, 64)):
        facts = {"weight": format, "dtype": "bfloat16", "in_features": 4096, "gate": "silu"}
        if not k.batch_invariant or k.supports(facts) is not None:
            continue
        static = {"act": format.act, "group": format.group}
        if k.op == "rms_norm_linear":
            weight = k.pack(qtensor(format, 6144, 4096))
            for residual in (None, meta(rows, 4096)):
                label = f"6144x4096 {format} {rows}{' first' if residual is None else ''}"
                yield label, [meta(rows, 4096), residual, meta(4096), weight], {"eps": 1e-5} | static
            continue
        weight = k.pack(qtensor(format, 4096, 14336))
        for gate in ("silu", f"{CLAMP}10"):
            yield f"4096x14336 {format} {rows} {gate}", [meta(rows, 2 * 14336), weight], {"gate": gate} | static


def expert_calls(k: Kernel) -> Iterator[tuple[str, list[Any], dict[str, Any]]]:
    """Of a kernel for experts: those of Qwen3-30B-A3B in each format, those of gpt-oss-20b, and gates that are clamped."""
    qwen, gpt_oss = (128, 8, 2048, 768), (32, 4, 2880, 2880)
    q4_k, q6_k = WeightFormat("int", 4, 32, symmetric=False, mins=True), WeightFormat("int", 8, 16)
    for pair in (*((f, f) for f in (DENSE, *FORMATS)), (q4_k, q6_k)):
        yield from mixture_calls(k, *qwen, *pair, "silu")
    for format in (DENSE, MXFP4):
        yield from mixture_calls(k, *gpt_oss, format, format, SWIGLU_OAI, biased=True)
    yield from mixture_calls(k, *qwen, DENSE, DENSE, f"{CUT}7")
    yield from mixture_calls(k, *qwen, MXFP4, MXFP4, f"{CLAMP}10")
    yield from mixture_calls(k, *qwen, DENSE, DENSE, f"{SITU}4_25")


def mixture_calls(
    k: Kernel, experts: int, each: int, hidden: int, ffn: int, format: WeightFormat, other: WeightFormat, act: str,
    biased: bool = False,
) -> Iterator[tuple[str, list[Any], dict[str, Any]]]:  # fmt: skip
    """Of one layer, in a prefill and a decode: `each` experts of a token, down held in `other`. None if the kernel refuses."""
    facts = {"weight": format, "down_weight": other, "dtype": "bfloat16", "act": act, "biased": biased, "down_biased": biased}
    if k.supports(facts) is not None:
        return
    shapes = ((format, (experts * 2 * ffn, hidden)), (other, (experts * hidden, ffn)))
    held = [k.pack(QTensor(DENSE, s, {"weight": meta(*s)}) if f == DENSE else qtensor(f, *s)) for f, s in shapes]
    more = [meta(s[0]) for _, s in shapes] if biased else []
    adapted = k.op == "lora_experts"
    name = f"{'adapted ' * adapted}{format}{'' if format == other else f' and {other}'}{'' if act == 'silu' else f' {act}'}"
    for tokens in (512, 1):
        if adapted:
            sizes = ((32, hidden), (16, 2 * ffn), (16, ffn), (16, hidden))
            arrays = [meta(9, experts, *size) for size in sizes]
            more = [meta(tokens, dtype=I32), *arrays, meta(9, experts, 3, dtype=I32)]
        args = [meta(tokens, hidden), meta(tokens, each, dtype=I32), meta(tokens, each, dtype=F32), *held, *more]
        static = {"experts": experts, "act": act, "group": format.group, "down_group": other.group}
        yield f"{name}{'' if k.batch_invariant else f' {tokens}'}", args, static


def attention_call(
    backend: Any, spec: AttnSpec, uniform: int, prologue: QKPrologue | None = None
) -> Callable[[], Any]:  # fmt: skip
    """Sequences of up to 4096 tokens that decode, or (uniform 0) a step with prefills among them."""
    seqs, blocks = 16, 256
    query = np.ones(seqs, np.int32) if uniform else np.array([100] + [1] * (seqs - 1), np.int32)
    tokens = int(query.sum())
    host = StepBatch(
        tokens=np.zeros(tokens, np.int32), token_seq=np.repeat(np.arange(seqs, dtype=np.int32), query),
        positions=np.zeros(tokens, np.int32), slots=np.arange(1, seqs + 1, dtype=np.int32),
        context=np.full(seqs, 1000, np.int32), query=query, last_row=(np.cumsum(query) - 1).astype(np.int32),
        emit=np.ones(seqs, bool), block_tables=(np.zeros((seqs, blocks), np.int32),), sampling=SamplingArrays.greedy(seqs),
        uniform=uniform,
    )  # fmt: skip
    host.metadata = (backend.metadata(host, 0, spec, StepShape(tokens, seqs, blocks, bool(uniform))),)
    layout = backend.layout(spec, 16)
    batch = host.map(lambda a: torch.empty(a.shape, dtype=getattr(torch, str(a.dtype)), device="meta"))
    kind = getattr(torch, spec.dtype)
    heads = spec.heads + 2 * spec.kv_heads
    qkv = meta(tokens, heads, spec.head_dim, dtype=kind)
    q, k, v = qkv.split([spec.heads, spec.kv_heads, spec.kv_heads], 1)
    kv = meta(1000, *layout.shape, dtype=getattr(torch, layout.dtype))
    sinks = meta(spec.heads) if spec.sinks else None
    if prologue is None:
        return lambda: backend.attend(q, k, v, kv, batch, 0, spec, sinks)
    weights = None if prologue.eps is None else (meta(spec.head_dim, dtype=kind), meta(spec.head_dim, dtype=kind))
    table = meta(4096, prologue.rotary_dim, dtype=F32)
    return lambda: backend.attend_fused(q, k, v, kv, batch, 0, spec, prologue, table, weights, sinks)
