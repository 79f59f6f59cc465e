"""What `ci/gpu/sweep.py` times, a process for each library, as a library's settings hold for a process: JSON lines.

    python ci/gpu/contestants.py cublas|cublaslt|tiles|attention --device cuda [--quick]

A record of a product has row0, a checksum of the first row's bits: equal ones are equal bits, between libraries, tiles and
numbers of rows. same_bits: every row is what it is among the most rows, in whatever order.
"""

from __future__ import annotations

import argparse
import json
import sys
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

import measure
import numpy as np
import torch
import torch.nn.functional as F

LLAMAS = {"1b": (2048, 8192, 3072, 128256), "8b": (4096, 14336, 6144, 128256)}
"""hidden, intermediate, rows of q, k and v together, vocabulary."""
ROWS, HEAD_ROWS = (1, 16, 64, 256, 2048), (1, 16, 64, 256)
"""Tokens of a step; of the output matrix only the last ones count."""
LIBRARIES: Mapping[str, Mapping[str, str]] = {
    "cublas": {}, "cublaslt": {"CUBLAS_WORKSPACE_CONFIG": ":16:8", "CUBLASLT_WORKSPACE_SIZE": "1"},
}  # fmt: skip
"""Name -> environment. cublaslt is left no workspace, without which it cannot split the sums of a row."""
WRONG = 2e-2
"""Largest difference of a right result, relative to the largest magnitude."""


@dataclass(frozen=True, slots=True)
class Matrix:
    """A weight [cols, width] and the numbers of rows it is multiplied with."""

    name: str
    cols: int
    width: int
    rows: tuple[int, ...]


def matrices(quick: bool) -> list[Matrix]:
    """The five products of a layer and the head, of both models."""
    if quick:
        return [Matrix("tiny o", 64, 64, (1, 5)), Matrix("tiny head", 128, 64, (1, 5))]
    out = []
    for model, (hidden, inner, qkv, vocab) in LLAMAS.items():
        shapes = {"qkv": (qkv, hidden), "o": (hidden, hidden), "gate_up": (2 * inner, hidden), "down": (hidden, inner)}
        out += [Matrix(f"{model} {name}", *shape, ROWS) for name, shape in shapes.items()]
        out.append(Matrix(f"{model} head", vocab, hidden, HEAD_ROWS))
    return out


def product_tiles(quick: bool) -> list[dict[str, int]]:
    """rows, cols, inner, warps, stages. With fewer than 64 rows Hopper's wide matrix instructions are not used."""
    names = ("rows", "cols", "inner", "warps", "stages")
    few = [(32, 32, 64, 1, 1), (32, 64, 64, 1, 1)]
    many = [
        (64, 32, 64, 4, 5), (64, 128, 64, 4, 5), (64, 16, 64, 4, 5), (64, 64, 64, 4, 5), (64, 256, 64, 4, 5),
        (64, 16, 128, 4, 4), (64, 32, 128, 4, 4), (64, 64, 128, 4, 4), (64, 128, 128, 4, 4), (128, 64, 64, 8, 4),
        (128, 128, 64, 8, 4), (128, 256, 64, 8, 4), (128, 128, 64, 4, 4), (16, 32, 128, 4, 4), (16, 64, 128, 4, 4),
    ]  # fmt: skip
    return [dict(zip(names, t, strict=True)) for t in (few if quick else many)]


def attention_tiles(quick: bool) -> dict[str, list[dict[str, int]]]:
    """Which launch of tiles/*.json -> rows, keys, warps, stages."""
    names = ("rows", "keys", "warps", "stages")
    few, alike = [(16, 32, 1, 1), (32, 16, 1, 1)], [(16, 16, 1, 1), (32, 16, 1, 1)]
    many = {
        "exact_prefill": [(64, 64, 4, 2), (64, 64, 4, 3), (64, 64, 4, 5), (128, 64, 8, 3), (128, 64, 8, 5), (128, 64, 8, 7)],
        "exact": [(64, 64, 4, 3), (64, 64, 4, 5), (64, 64, 8, 3), (64, 128, 4, 2), (64, 128, 8, 2), (32, 64, 4, 3),
                  (16, 64, 4, 4)],
        "decode": [(16, 64, 4, 4), (16, 128, 4, 3), (16, 32, 4, 4), (16, 64, 2, 4), (64, 64, 4, 3)],
        "prefill": [(128, 128, 8, 2), (128, 64, 8, 3), (128, 64, 4, 3), (64, 128, 4, 2)],
    }  # fmt: skip
    each = {kind: alike if kind == "exact_prefill" else few for kind in many} if quick else many
    return {kind: [dict(zip(names, t, strict=True)) for t in tiles] for kind, tiles in each.items()}


CASES = {"exact": ("decode",), "exact_prefill": ("prefill",)}
"""Launches whose names are not the case that they serve."""


def microseconds(run: Callable[[], Any], device: torch.device) -> float:
    """Median of one run with cold caches; on a processor, where it is a try-out, of the run at hand."""
    if device.type == "cpu":
        return measure.best(run, device, 1, 1) * 1e6
    from triton.testing import do_bench

    return float(do_bench(run, warmup=5, rep=30, return_mode="median")) * 1e3


def arch_of(device: torch.device) -> str:
    """As tiles/*.json name it; "interpret" where the host is the device."""
    if device.type == "cpu":
        return "interpret"
    if device.type == "xpu":
        return "xe2"
    properties = torch.cuda.get_device_properties(device)
    hip = getattr(properties, "gcnArchName", "") if torch.version.hip else ""
    return hip.split(":")[0] or f"sm_{properties.major}{properties.minor}"


def products(run: Callable[..., torch.Tensor], m: Matrix, at: torch.device) -> Iterator[dict[str, Any]]:
    """A record for each number of rows."""
    dtype = torch.float32 if at.type == "cpu" else torch.bfloat16
    result = torch.Generator(at).manual_seed(0)
    x = torch.randn(max(m.rows), m.width, generator=result, device=at).to(dtype)
    weight = (torch.randn(m.cols, m.width, generator=result, device=at) * m.width**-0.5).to(dtype)
    whole, want = run(x, weight), F.linear(x[:16].float(), weight.float())
    worst = ((whole[:16].float() - want).abs().max() / want.abs().max()).item()
    for n in m.rows:
        order = torch.from_numpy(np.random.default_rng(n).permutation(len(x))[:n]).to(at)
        some, first = run(x[order], weight), run(x[:n], weight)[0]
        us = microseconds(lambda n=n: run(x[:n], weight), at)  # type: ignore[misc]
        yield {
            "kind": "product", "matrix": m.name, "cols": m.cols, "width": m.width, "rows": n, "us": round(us, 2),
            "tflops": round(2 * n * m.cols * m.width / us / 1e6, 1), "gb_per_s": round(weight.nbytes / us / 1e3, 1),
            "same_bits": torch.equal(some, whole[order]), "row0": zlib.crc32(first.cpu().view(torch.uint8).numpy().tobytes()),
            **({"wrong_by": worst} if not worst <= WRONG else {}),
        }  # fmt: skip


def library(name: str, at: torch.device, quick: bool) -> Iterator[dict[str, Any]]:
    """torch's own product by this library; and, for the one that splits no sums, with rows filled up to 16, as one row alone
    may go another way."""
    if at.type == "cuda" and not torch.version.hip:
        torch.backends.cuda.preferred_blas_library(name)
    if name == "cublaslt" and at.type == "cuda":
        try:
            torch.backends.cuda.matmul.allow_bf16_reduced_precision_reduction = (False, False)  # type: ignore[assignment]
        except (TypeError, RuntimeError):  # a torch that does not tell the two apart
            torch.backends.cuda.matmul.allow_bf16_reduced_precision_reduction = False
    ways: dict[str, Callable[..., torch.Tensor]] = {name: F.linear}
    if name == "cublaslt":
        ways["cublaslt, 16 rows"] = lambda x, w: F.linear(F.pad(x, (0, 0, 0, -len(x) % 16)), w)[: len(x)]
    for m in matrices(quick):
        for by, run in ways.items():
            yield from ({"by": by, **r} for r in products(run, m, at))


def _tiles(at: torch.device) -> Any:
    if at.type == "cpu":
        from thalweg.backends.triton_kernels.testing import InterpretPlatform
        from thalweg.hal.platform import Place

        InterpretPlatform().open(Place())  # which repairs the interpreter's arithmetic
    from thalweg.backends.triton_kernels.tiles import tiles

    return tiles(arch_of(at))


def own(at: torch.device, quick: bool) -> Iterator[dict[str, Any]]:
    """Our product, tile by tile; one that asks for more than the device has is told with its error."""
    base = _tiles(at)
    from thalweg.backends.triton_kernels.linear import linear
    from thalweg.backends.triton_kernels.tiles import ProductTile

    for m in matrices(quick):
        for t in product_tiles(quick):
            result = replace(base, product=replace(base.product, dense=(ProductTile(**t),)))
            try:
                for r in products(lambda x, w, result=result: linear(result, x, w), m, at):  # type: ignore[misc]
                    yield {"by": "triton", "tile": t, **r}
            except Exception as e:  # out of shared memory, say: the next one may fit
                yield {"kind": "product", "by": "triton", "tile": t, "matrix": m.name, "error": _first_line(e)}


def _first_line(e: Exception) -> str:
    return f"{type(e).__name__}: {(str(e).splitlines() or [''])[0]}"


def attention(at: torch.device, quick: bool) -> Iterator[dict[str, Any]]:
    """Both kinds of attention over a paged cache: a prompt of 2,048 tokens, and 64 decodes of 1,500 keys each."""
    base = _tiles(at)
    from thalweg.backends.triton_kernels.attention import TritonPagedAttention
    from thalweg.hal.attention import AttnSpec

    dtype = "float32" if quick else "bfloat16"
    dims = {"tiny": (4, 2, 16)} if quick else {"8b": (32, 8, 128), "1b": (32, 8, 64)}
    cases = {"prefill": (1, 0, 20), "decode": (2, 20, 1)} if quick else {"prefill": (1, 0, 2048), "decode": (64, 1500, 1)}
    for model, (heads, kv_heads, dim) in dims.items():
        spec = AttnSpec(heads, kv_heads, dim, dim**-0.5, dtype)
        for case, (seqs, context, query) in cases.items():
            first: torch.Tensor | None = None
            want: torch.Tensor | None = None
            for kind, tiles in attention_tiles(quick).items():
                for t in tiles if case in CASES.get(kind, (kind,)) else ():
                    one = replace(getattr(base.attention, kind), **t)
                    backend = TritonPagedAttention(
                        replace(base, attention=replace(base.attention, **{kind: one})), kind.startswith("exact")
                    )
                    record = {"kind": "attention", "launch": kind, "model": model, "case": case, "tile": t}
                    try:
                        run = _attend(backend, spec, [context] * seqs, [query] * seqs, at)
                        out = run()
                        first = out if first is None else first
                        if kind == "exact_prefill":  # all of these serve one model, some its prompts
                            want = out if want is None else want
                            record["same_bits"] = torch.equal(out, want)
                        worst = ((out.float() - first.float()).abs().max() / first.float().abs().max()).item()
                        record |= {"us": round(microseconds(run, at), 2)} | ({"wrong_by": worst} if not worst <= WRONG else {})
                    except Exception as e:
                        record["error"] = _first_line(e)
                    yield record


def _attend(
    backend: Any, spec: Any, context: Sequence[int], query: Sequence[int], at: torch.device, first: int = 0
) -> Callable[[], torch.Tensor]:  # fmt: skip
    """One layer's attention of a batch, with a cache of numbers that an earlier step left. first: blocks that nobody reads,
    before those of the batch."""
    from thalweg.hal.testing.sequences import batch_of

    size, n = 16, len(query)
    each = -(-(context[0] + query[0]) // size)
    table = (np.random.default_rng(0).permutation(n * each).astype(np.int32) + 1 + first).reshape(n, each)
    batch = batch_of(table, context, query)
    batch = replace(batch, uniform=1) if max(query) == 1 else batch
    batch = replace(batch, metadata=(backend.metadata(batch, 0, spec, None),)).map(
        lambda a: torch.from_numpy(np.array(a)).to(at)
    )
    result = torch.Generator(at).manual_seed(0)
    dtype = getattr(torch, spec.dtype)

    def noise(*shape: int) -> torch.Tensor:
        return torch.randn(shape, generator=result, device=at).to(dtype)

    kv = noise(n * each + 1, *backend.layout(spec, size).shape)
    if first:
        kv = torch.cat([kv.new_zeros(first, *kv.shape[1:]), kv])
    tokens = sum(query)
    q, k, v = noise(tokens, spec.heads, spec.head_dim), *(noise(tokens, spec.kv_heads, spec.head_dim) for _ in range(2))
    return lambda: backend.attend(q, k, v, kv, batch, 0, spec)[0]  # type: ignore[no-any-return]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("contestant", choices=[*LIBRARIES, "tiles", "attention"])
    parser.add_argument("--device", required=True, help="platform to run on")
    parser.add_argument("--quick", action="store_true", help="tiny sizes, to see that everything runs")
    args = parser.parse_args()
    at = measure.torch_device(args.device)
    if args.contestant in LIBRARIES:
        records = library(args.contestant, at, args.quick)
    else:
        records = (own if args.contestant == "tiles" else attention)(at, args.quick)
    print(json.dumps({"kind": "about", "arch": arch_of(at), "torch": torch.__version__}), flush=True)
    if args.contestant in ("tiles", "attention"):
        print(json.dumps({"kind": "base", "tiles": asdict(_tiles(at))}), flush=True)
    with torch.inference_mode():
        for record in records:
            print(json.dumps(record), flush=True)


if __name__ == "__main__":
    sys.exit(main())
