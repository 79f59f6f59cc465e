"""Compile every Pallas kernel for TPU generations with libtpu, on a host without one: whether their memory, layouts and
instructions are accepted, which interpreting them does not show. Nothing is executed.

    python ci/tpu/kernels.py [--chips v5e v6e v7x] [--only WORD]

Needs libtpu (`pip install 'jax[tpu]'`) beside the test environment. One line per kernel, of shapes that models have; exit
status 1 if one is refused. All of them take some ten minutes of processor time.
"""

from __future__ import annotations

import argparse
import os
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from typing import Any

os.environ["JAX_PLATFORMS"] = "cpu"
os.environ.setdefault("TPU_SKIP_MDS_QUERY", "1")

import jax
import jax.numpy as jnp
from jax import ShapeDtypeStruct as Shape
from jax.experimental import topologies
from jax.sharding import AbstractDevice, AbstractMesh, SingleDeviceSharding
from tpu_steps import TOPOLOGIES

from thalweg.backends.tpu import matmul, moe, sampling, shipped
from thalweg.backends.tpu.kinds import KINDS
from thalweg.backends.tpu.pallas import ragged_attention, vocabulary
from thalweg.hal.attention import AttnSpec
from thalweg.hal.ops.quantise import KV_DTYPES
from thalweg.hal.weights import DENSE, QTensor, WeightFormat

Case = tuple[str, Callable[..., Any], tuple[Any, ...]]
"""Name, function of arrays, their shapes."""
FORMATS = [
    WeightFormat("int", 8), WeightFormat("int", 4, 128), WeightFormat("int", 4, 32, symmetric=False),
    WeightFormat("float", 8, 128), WeightFormat("float", 4, 32), WeightFormat("int", 8, act="int8"),
    WeightFormat("float", 8, act="float8_e4m3fn"),
]  # fmt: skip


def weight(format: WeightFormat, out: int, fan_in: int) -> QTensor:
    """A weight of zeros, for its shapes."""
    if format == DENSE:
        return QTensor(DENSE, (out, fan_in), {"weight": jnp.zeros((out, fan_in), jnp.bfloat16)})
    groups = -(-fan_in // format.group) if format.group else 1
    kind = jnp.float8_e4m3fn if format.kind == "float" else jnp.int8 if format.symmetric else jnp.uint8
    data = {"codes": jnp.zeros((out, fan_in), kind), "scales": jnp.zeros((out, groups), jnp.float32)}
    return QTensor(format, (out, fan_in), data | ({} if format.symmetric else {"zeros": jnp.zeros((out, groups), jnp.uint8)}))


def linears() -> Iterator[Case]:
    for f in FORMATS:
        packed = jax.eval_shape(lambda f=f: matmul.pack(weight(f, 1536, 2048)))
        for rows in (1, 1024):
            run = partial(matmul._linear, group=f.group, act=f.act)
            yield f"linear {f} {rows} rows", run, (Shape((rows, 2048), "bfloat16"), packed)


def experts() -> Iterator[Case]:
    """Those of Qwen3-30B-A3B, and of gpt-oss-20b, whose sizes are no multiples of anything."""
    kernels = {k.name: k for k in moe.kernels(interpret=False) if k.op == "experts"}
    for count, k, hidden, ffn, formats in (
        (128, 8, 2048, 768, [DENSE, *(f for f in FORMATS if not f.act)]),
        (32, 4, 2880, 2880, [DENSE, WeightFormat("float", 4, 32)]),
    ):
        for f in formats:
            facts = {"experts": count, "weight": f, "down_weight": f, "dtype": "bfloat16", "act": "silu"}
            for kernel, body in (("pallas-grouped", moe._experts), ("jax-megablox", moe._megablox)):
                if kernels[kernel].supports(facts) is not None:
                    continue
                pack = kernels[kernel].pack
                first, second = (
                    jax.eval_shape(lambda s=s, f=f, n=count, pack=pack: pack(replace(weight(f, *s), matrices=n)))
                    for s in ((count * 2 * ffn, hidden), (count * hidden, ffn))
                )
                for tokens in (1, 64, 2048):
                    x, ids = Shape((tokens, hidden), "bfloat16"), Shape((tokens, k), "int32")
                    run = partial(body, experts=count, group=f.group, down_group=f.group)
                    yield f"experts {kernel} {count}x{ffn} {f} {tokens} tokens", run, (
                        x, ids, Shape(ids.shape, "float32"), first, second,
                    )  # fmt: skip
    scores = partial(moe._route, k=8, scores="softmax", renormalise=True)
    yield "route 64 tokens, 128 experts", scores, (Shape((64, 128), "float32"),)


def sampling_() -> Iterator[Case]:
    """Vocabularies of today, one no multiple of a register's lanes."""
    for rows, vocab in ((1, 128_256), (4, 151_936), (129, 151_936), (64, 50_257), (8, vocabulary.LARGEST)):
        row, number = Shape((rows,), "float32"), Shape((rows,), "int32")
        logits, name = Shape((rows, vocab), "float32"), f"{rows} rows of {vocab}"
        yield f"truncate {name}", vocabulary.truncate, (logits, number, row, row)
        draw = partial(sampling._draw, random=True, interpret=False)
        yield f"best 20 {name}", partial(vocabulary.best, k=20), (logits,)
        yield f"sample {name}", draw, (logits, row, Shape((rows, 2), "int32"), number)


def attention() -> Iterator[Case]:
    """The walk and the write, of every kind of cache, for decodes (16 rows a tile) and chunks of prompts (64)."""
    for heads, dim, size, rows, dtype, kv in (
        (8, 128, 32, 16, "bfloat16", "bfloat16"), (8, 64, 32, 64, "bfloat16", "bfloat16"),
        (8, 128, 32, 64, "float32", "float32"), *((8, 128, 32, 16, "bfloat16", kv) for kv in KV_DTYPES),
        *((8, 128, 16, 64, "bfloat16", kv) for kv in KV_DTYPES), *((2, 64, 32, 64, "bfloat16", kv) for kv in KV_DTYPES),
    ):  # fmt: skip
        more = ragged_attention.scale_heads(heads, dim) if kv == "int8" else 0
        cache, tile = Shape((256, heads + more, size, 2 * dim), kv), Shape((12,), "int32")
        q, table = Shape((12, heads, rows, dim), dtype), Shape((4, 20), "int32")
        name = f"{heads}x{dim} {rows} rows, blocks of {size} in {kv}"
        for sinking in (False, True):
            run = partial(ragged_attention.attend, per=4, scale=0.1, window=100 * sinking, softcap=3.0 * sinking)
            sinks = (Shape((heads, rows), "float32"),) if sinking else ()
            yield f"attention {name}{' sinks' * sinking}", run, (q, cache, table, tile, tile, tile, *sinks)
        yield f"write {name}", ragged_attention.write, (cache, Shape((12, *cache.shape[1:]), kv), tile, tile, tile)


def shipped_() -> Iterator[Case]:
    """JAX's own attention, of a prompt beside decodes and of decodes alone."""
    spec = AttnSpec(32, 8, 128, 0.1, "bfloat16")
    kv = Shape((256, *shipped.ShippedAttention(interpret=False).layout(spec, 32).shape), spec.dtype)
    for tokens, seqs in ((1024, 65), (64, 64)):
        plan = {"starts": Shape((seqs + 1,), "int32"), "lengths": Shape((seqs,), "int32"), "count": Shape((1,), "int32")}
        q, k, each = Shape((tokens, 32, 128), spec.dtype), Shape((tokens, 8, 128), spec.dtype), Shape((tokens,), "int32")
        run = partial(shipped.attend, spec=spec, kernel=shipped._kernel)
        reported = (Shape((seqs, 128), "int32"), each, each, Shape((seqs,), "int32"), plan)
        yield f"shipped attention {tokens} tokens of {seqs} sequences", run, (q, k, k, kv, *reported)


CASES = (linears, experts, sampling_, attention, shipped_)


def chip_mesh(chip: str) -> AbstractMesh:
    """One device of this generation, to be traced for."""
    device = AbstractDevice(device_kind=KINDS[chip].device_kind, num_cores=1, platform="tpu")
    return AbstractMesh((1,), ("x",), abstract_device=device)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--chips", nargs="+", choices=TOPOLOGIES, default=["v5e", "v6e", "v7x"])
    parser.add_argument("--only", default="", metavar="WORD", help="those whose name holds it")
    args = parser.parse_args()
    refused = 0
    for name, run, shapes in (c for cases in CASES for c in cases()):
        if args.only not in name:
            continue
        for chip in args.chips:
            there = SingleDeviceSharding(topologies.get_topology_desc(TOPOLOGIES[chip], "tpu").devices[0])
            placed = jax.tree.map(lambda a, there=there: Shape(a.shape, a.dtype, sharding=there), shapes)
            start = time.monotonic()
            try:
                with jax.sharding.use_abstract_mesh(chip_mesh(chip)):  # JAX's own kernels ask which chip they are for
                    lowered = jax.jit(run).lower(*placed)
                result = lowered.compile()
                reported = f"temporaries {result.memory_analysis().temp_size_in_bytes / (1 << 20):.1f} MiB"
            except Exception as e:  # every one is tried, and each refusal told
                reported, refused = f"REFUSED {type(e).__name__}: {str(e)[:500]}", refused + 1
            print(f"{chip:4} {name:58} {time.monotonic() - start:5.1f} s  {reported}", flush=True)
    return int(refused > 0)


if __name__ == "__main__":
    jax.config.update("jax_enable_compilation_cache", False)
    sys.exit(main())
