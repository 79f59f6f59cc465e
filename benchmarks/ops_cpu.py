"""Kernels of the CPU platform side by side in one run: `python benchmarks/ops_cpu.py [--threads N] [--isa X] [--only PART]`.

attention: of 16 decoding sequences with 256 tokens each, beside the bare gather of their cache. long: of one sequence
with 8,192 tokens and few KV heads, and of a prompt, by one thread beside all of them. latents: attention over latents
beside torch's operations, and beside attention of as many tokens whose heads have keys and values of their own
(DeepSeek-V2-Lite). layer: norms of q and k, rotary positions and attention of a layer (Qwen3-0.6B), op by op beside all
at once. formats: one linear layer in every format that `--quantization` knows, by rows. compressed: bfloat16 layers in
memory beside the same without `compress_weights`, by rows. ops: one kernel on one workload
of a small model (hidden 1,024, vocabulary 151,936) a line, with the time relative to the reference body's in the same
run. Quote ratios: times drift with what else the machine does.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
import torch

from thalweg.backends.cpu import CpuOptions, CpuPlatform
from thalweg.errors import DeviceError
from thalweg.hal import ops as bodies
from thalweg.hal.attention import AttentionBackend, AttnSpec, QKPrologue
from thalweg.hal.device import Device
from thalweg.hal.op import Binder
from thalweg.hal.platform import Place
from thalweg.hal.step import StateBox, StepBatch, StepResult
from thalweg.hal.testing import measure, sequences
from thalweg.hal.weights import DENSE, QTensor
from thalweg.quantization.online import METHODS, linear_spec, round_weight
from thalweg.quantization.online import formats as methods

SEQS, CONTEXT, BLOCK = 16, 256, 16


def ops(device: Device) -> None:
    for work in measure.workloads():
        dtype = device.info.dtypes[0] if "bfloat16" in work.op.tolerances else "float32"
        records = list(measure.perf(device, work, dtype))
        for r in records:
            ratio = records[-1]["ms"] / r["ms"]
            rate = f"{r['gflop_per_s']:8.1f} GFLOP/s" if r["gflop_per_s"] else f"{r['gb_per_s']:8.1f} GB/s   "
            name = f"{r['op']:14} {r['case']:22} {r['dtype']:9} {r['kernel']:14}"
            print(f"{name} {r['ms']:10.3f} ms {rate} {ratio:6.2f}x", flush=True)


def attention(device: Device) -> None:
    spec = AttnSpec(16, 8, 128, 128**-0.5, device.info.dtypes[0])
    rng = np.random.default_rng(0)
    stories = [sequences.story(rng, spec, CONTEXT, 1) for _ in range(SEQS)]
    table, blocks = sequences.tables(rng, stories, BLOCK)
    batch = sequences.batch_of(table, [CONTEXT - 1] * SEQS, [1] * SEQS)
    arrays = sequences.rows(stories, [CONTEXT - 1] * SEQS, [1] * SEQS)
    q, k, v = (torch.from_numpy(a).to(getattr(torch, spec.dtype)) for a in arrays)
    for backend in (b for b in device.attention if b.supports(spec) is None):
        layout = backend.layout(spec, BLOCK)
        box = StateBox(device.alloc_kv(layout, blocks))

        def step(params: object, kv: object, b: StepBatch, backend: object = backend) -> tuple[object, StepResult]:
            for _ in range(28):  # a model's layers share one plan
                _, kv = backend.attend(q, k, v, kv, b, 0, spec)  # type: ignore[attr-defined]
            return kv, StepResult(b.slots[:, None], b.query)

        run = device.compile(step, None, box, None, None)

        def launch(params: object, run: object = run, backend: object = backend) -> None:
            batch.metadata = (backend.metadata(batch, 0, spec, None),)  # type: ignore[attr-defined]
            run(batch).result()  # type: ignore[operator]

        seconds = measure.median_seconds(device, launch, [None], 7) / 28
        kv, index = box.value, torch.from_numpy(table.reshape(-1)).long()
        gather = measure.median_seconds(device, lambda c, i: c.index_select(0, i), [kv, index], 7)
        size = SEQS * CONTEXT // BLOCK * layout.bytes_per_block
        print(f"attention      decode {SEQS} x {CONTEXT}        {spec.dtype:9} {backend.name:14} {seconds * 1e3:10.3f} ms "
              f"{size / seconds / 1e9:8.1f} GB/s    {gather / seconds:6.2f}x of a bare gather")  # fmt: skip


def in_turn(calls: Mapping[str, Callable[[], object]], repeats: int = 15) -> dict[str, float]:
    """Least seconds of each, called one after the other so that all see the same machine: what else it does only adds."""
    times: dict[str, list[float]] = {name: [] for name in calls}
    for i in range(repeats + 3):  # a step is recorded when it comes the second time
        for name, call in calls.items():
            start = time.perf_counter()
            call()
            if i >= 3:
                times[name].append(time.perf_counter() - start)
    return {name: min(t) for name, t in times.items()}


Layer = Callable[[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor, StepBatch], tuple[torch.Tensor, torch.Tensor]]
"""(q, k, v, kv, batch) -> (out, kv)"""


def step_of(
    device: Device, spec: AttnSpec, context: Sequence[int], query: int, layers: int, layer: Layer, recorded: bool = True,
    backend: AttentionBackend | None = None,
) -> Callable[[], object]:  # fmt: skip
    """So many layers as one step, for sequences with `context` tokens in a cache of noise and `query` new ones each. recorded:
    a step of one token each is, as in serving; else it runs as it is written, as a prompt's does."""
    backend, rng = backend or device.attention[0], np.random.default_rng(0)
    need = [-(-(c + query) // BLOCK) for c in context]
    table = np.zeros((len(context), max(need)), np.int32)
    table[:] = 1 + np.arange(table.size).reshape(table.shape)
    batch = sequences.batch_of(table, context, [query] * len(context))
    batch.uniform = int(query == 1 and recorded)
    result = device.alloc_kv(backend.layout(spec, BLOCK), table.size + 1)
    if result.is_floating_point():
        result.normal_()
    else:
        result.fill_(64)  # a scale of these bytes is about 3
    width = (spec.heads + 2 * spec.kv_heads) * spec.head_dim
    row = torch.from_numpy(rng.standard_normal((batch.tokens.shape[0], width), np.float32)).to(getattr(torch, spec.dtype))
    cuts = [spec.heads * spec.head_dim, *[spec.kv_heads * spec.head_dim] * 2]

    def step(params: object, kv: Any, b: StepBatch) -> tuple[object, StepResult]:
        for _ in range(layers):
            q, k, v = (x.unflatten(-1, (-1, spec.head_dim)) for x in row.split(cuts, -1))
            _, kv = layer(q, k, v, kv, b)
        return kv, StepResult(b.slots[:, None], b.query)

    run = device.compile(step, None, StateBox(result), None, None)

    def call() -> object:
        batch.metadata = (backend.metadata(batch, 0, spec, None),)
        return run(batch).result()

    return call


def attends(backend: AttentionBackend, spec: AttnSpec) -> Layer:
    return lambda q, k, v, kv, b: backend.attend(q, k, v, kv, b, 0, spec)


def long(threads: int) -> None:
    """Where one thread's time divided by that of N threads is N, nobody idles."""
    devices = [CpuPlatform().with_options(CpuOptions(n)).open(Place()) for n in (1, threads)]
    for kv_heads, context, query in ((1, [8191], 1), (8, [8191], 1), (8, [8191] + [255] * 7, 1), (8, [0], 2048)):
        spec = AttnSpec(16, kv_heads, 128, 128**-0.5, "bfloat16")
        calls = {}
        for device in devices:
            layers = 28 if query == 1 else 1
            calls[str(device.info.cores)] = step_of(device, spec, context, query, layers, attends(device.attention[0], spec))
        one, many = in_turn(calls).values()
        what = f"{len(context)} x {context[0] + query}" if query == 1 else f"prompt {query}"
        times = f"1 thread {one * 1e3:9.3f} ms, {threads} threads {many * 1e3:9.3f} ms {one / many:6.2f}x"
        print(f"attention      {what:12} {kv_heads} KV heads {spec.dtype:9} {times}", flush=True)


def latents(device: Device) -> None:
    """Of eight layers, as a step: what one layer takes. Own keys and values are there already, not made of latents."""
    spec = AttnSpec(16, 1, 576, 192**-0.5, "bfloat16", "latent", latent=512)
    own = AttnSpec(16, 16, 192, 192**-0.5, "bfloat16")
    others = [b for b in device.attention[1:] if b.supports(spec) is None and b.batch_invariant]
    for context, query in (([1023], 1), ([1023] * 16, 1), ([8191], 1), ([0], 512), ([0], 2048)):
        layers = 8 if query == 1 else 1
        calls = {
            b.name: step_of(device, spec, context, query, layers, attends(b, spec), backend=b)
            for b in (device.attention[0], *others)
        }
        calls["own keys"] = step_of(device, own, context, query, layers, attends(device.attention[0], own))
        got = in_turn(calls, 9 if query == 1 else 3)
        first = got[device.attention[0].name]
        seen = sum(query * c + query * (query + 1) / 2 for c in context)
        rate = layers * 2 * seen * spec.heads * (spec.head_dim + spec.latent) / first / 1e9
        times = ", ".join(f"{n} {t / layers * 1e3:.3f} ms ({t / first:.2f}x)" for n, t in got.items())
        what = f"{len(context)} x {context[0] + query}" if query == 1 else f"prompt {query}"
        print(f"latents        {what:12} {rate:7.1f} GFLOP/s: {times}", flush=True)


def layer(device: Device) -> None:
    spec, prologue = AttnSpec(16, 8, 128, 128**-0.5, "bfloat16"), QKPrologue(128, eps=1e-6)
    backend: AttentionBackend = device.attention[0]
    if (why := backend.fuses(spec, prologue)) is not None:
        print(f"layer          {backend.name}: {why}")
        return
    binder, facts = Binder(device.kernels), {"dtype": spec.dtype}
    norm = binder.bind(bodies.rms_norm, eps=1e-6, size=128, **facts)
    rope = binder.bind(bodies.rope, rotary_dim=128, interleaved=False, heads=16, kv_heads=8, head_dim=128, **facts)
    table, weight = torch.rand(4096, 128), torch.ones(128, dtype=getattr(torch, spec.dtype))

    def by_ops(q: Any, k: Any, v: Any, kv: Any, b: StepBatch) -> tuple[Any, Any]:
        q, k = rope(norm(q, weight), norm(k, weight), b.positions, table)
        return backend.attend(q, k, v, kv, b, 0, spec)

    ways: dict[str, Layer] = {
        "op by op": by_ops,
        "at once": lambda q, k, v, kv, b: backend.attend_fused(q, k, v, kv, b, 0, spec, prologue, table, (weight, weight)),
        "attend alone": attends(backend, spec),
    }
    for context, query, recorded in (
        ([255], 1, True), ([255] * 16, 1, True), ([255] * 16, 1, False), ([0] * 16, 128, False), ([0], 2048, False),
    ):  # fmt: skip
        layers = 28 if query == 1 else 1
        calls = {n: step_of(device, spec, context, query, layers, way, recorded) for n, way in ways.items()}
        got = in_turn(calls, 31 if query == 1 else 9)
        times = ", ".join(f"{n} {t / layers * 1e3:.4f} ms" for n, t in got.items())
        what = f"{len(context)} x {query} tokens {'recorded' if recorded else 'as written'}"
        print(f"layer          {what:26} {spec.dtype} {times}: {got['op by op'] / got['at once']:.2f}x", flush=True)


def caches(device: Device) -> None:
    """Keys and values in the model's type and in int8, read for a token of each sequence, or written and read by a prompt.
    Beside the former stands what memory gives to a plain read."""
    spec = AttnSpec(16, 8, 128, 128**-0.5, "bfloat16")
    backend: AttentionBackend = device.attention[0]
    specs = (spec, replace(spec, kv_dtype="int8"))
    if (why := backend.supports(specs[1])) is not None:
        print(f"caches         {backend.name}: {why}")
        return
    for context, query in (([255] * 128, 1), ([1023] * 32, 1), ([32767], 1), ([0], 2048)):
        calls = {s.kv_dtype or s.dtype: step_of(device, s, context, query, 1, attends(backend, s)) for s in specs}
        size = sum(context) * 2 * spec.kv_heads * spec.head_dim
        got = in_turn(calls)
        wide = {"bfloat16": 2, "int8": 1}
        rate = {n: f" ({size * wide[n] / t / 1e9:.1f} GB/s)" if query == 1 else "" for n, t in got.items()}
        times = ", ".join(f"{n} {t * 1e3:7.3f} ms{rate[n]}" for n, t in got.items())
        if query == 1 and (most := device.read_rate()):
            times += f", a plain read {most / 1e9:.1f} GB/s"
        what = f"{len(context)} x {context[0] + 1} decode" if query == 1 else f"prompt {query}"
        print(f"caches         {what:18} {times}; int8 {got[spec.dtype] / got['int8']:.2f}x", flush=True)


def formats(device: Device) -> None:
    """Of a layer's weights (10,000 outputs of 1,024 inputs), in the model's type first."""
    dtype, fan_in, out = "bfloat16", 1024, 10_000
    dense, layers = QTensor(DENSE, (out, fan_in), {"weight": torch.randn(out, fan_in).bfloat16()}), {}
    for name in (None, *METHODS):
        form = methods(name).layers
        bound = Binder(device.kernels).bind(
            bodies.linear, dtype=dtype, in_features=fan_in, out_features=out, **linear_spec(form)
        )
        layers[name or dtype] = bound, bound.pack(dense if form == DENSE else round_weight(dense, form))
    for rows in (1, 4, 16, 64, 256):
        x = torch.randn(rows, fan_in).bfloat16()
        got = in_turn({n: partial(bound, x, packed) for n, (bound, packed) in layers.items()})
        times = ", ".join(f"{n} {t * 1e3:.2f} ms ({2 * rows * fan_in * out / t / 1e9:.0f} GFLOP/s)" for n, t in got.items())
        print(f"formats        {rows:3} rows: {times}; w4a8 {got['w4a16'] / got['w4a8']:.2f}x w4a16", flush=True)


def compressed(options: CpuOptions) -> None:
    """Of as many layers (1,024 -> 6,144) as no cache holds. What `compress_weights` saves, it saves in reading memory."""
    fan_in, out, copies = 1024, 6144, 24
    weight = QTensor(DENSE, (out, fan_in), {"weight": (torch.randn(out, fan_in) * 0.02).bfloat16()})
    layers = {}
    for name, less in (("dense", False), ("compressed", True)):
        try:
            device = CpuPlatform().with_options(replace(options, compress_weights=less)).open(Place())
        except DeviceError as e:
            print(f"compressed     {e}")
            return
        bound = Binder(device.kernels).bind(
            bodies.linear, dtype="bfloat16", in_features=fan_in, out_features=out, **linear_spec(DENSE)
        )
        layers[name] = bound, [bound.pack(weight) for _ in range(copies)]
    size = {n: packs[0].bytes for n, (_, packs) in layers.items()}
    print(f"compressed     {size['compressed'] / size['dense']:.2f} of the bytes")
    for rows in (1, 4, 8, 16, 32, 64, 256, 1024):
        x = torch.randn(rows, fan_in).bfloat16()

        def all_of(bound: Any, packs: Any, x: Any = x) -> None:
            for p in packs:
                bound(x, p)

        got = in_turn({n: partial(all_of, *layer) for n, layer in layers.items()})
        times = ", ".join(f"{n} {t * 1e6 / copies:.0f} us" for n, t in got.items())
        print(f"compressed     {rows:3} rows: {times}, {got['compressed'] / got['dense']:.2f} of the time", flush=True)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--threads", type=int, default=0)
    parser.add_argument("--isa", default="", help="instruction set of the compiled kernels (default: the best)")
    parser.add_argument("--only", choices=("attention", "long", "latents", "layer", "caches", "formats", "compressed", "ops"))
    requested = parser.parse_args()
    options = CpuOptions(requested.threads, requested.isa)
    device = CpuPlatform().with_options(options).open(Place())
    print(f"{device.info.name}, {device.info.cores} threads, {dict(device.info.notes)}")
    parts = {
        "attention": attention, "long": lambda d: long(d.info.cores), "latents": latents, "layer": layer, "caches": caches,
        "formats": formats, "compressed": lambda _: compressed(options), "ops": ops,
    }  # fmt: skip
    for name, part in parts.items():
        if requested.only in (None, name) and (name != "long" or device.info.cores > 1):
            part(device)
