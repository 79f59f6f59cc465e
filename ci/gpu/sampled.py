"""What the tail of a step, from logits to tokens, launches and moves: `python ci/gpu/launches.py --sampling` starts this.

Kernels run in Triton's interpreter. The bytes that they load and store are counted, and those of every operation of torch. The
probability of the n-th best token falls as n^-1.5, and logits are bfloat16 values. A pass is as many bytes as the logits in
float32 have. Caches are not in it: a kernel that reads a row twice counts it twice.
"""

from __future__ import annotations

import argparse
import os
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from thalweg.backends.torch_gpu.library import assemble
from thalweg.hal.op import Binder
from thalweg.hal.parts.penalties import Penalties
from thalweg.hal.step import SamplingArrays, StepBatch
from thalweg.models.sampler import Sampler

QUIET = ("empty", "alias", "detach", "lift_fresh", "_unsafe_view", "_reshape_alias", "sym_")
"""Beginnings of torch's operations that launch nothing, beside views."""
KINDS: dict[str, dict[str, Any]] = {
    "greedy": {},
    "temperature 1": {"temperature": 1},
    "top_k 50": {"temperature": 1, "top_k": 50},
    "top_p 0.95": {"temperature": 1, "top_p": 0.95},
    "top_k 50, top_p 0.95": {"temperature": 0.8, "top_k": 50, "top_p": 0.95},
    "min_p 0.05": {"temperature": 1, "min_p": 0.05},
    "top_p 0.95, flat": {"temperature": 4, "top_p": 0.95},
    "greedy, penalties": {"penalties": True},
    "greedy, 20 logprobs": {"logprobs": 20},
}
"""What all rows ask for."""


class Traffic(TorchDispatchMode):
    """Launches by name, and bytes read and written by them."""

    def __init__(self) -> None:
        super().__init__()
        self.launches: Counter[str] = Counter()
        self.bytes: Counter[str] = Counter()
        self.inside = ""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = func(*args, **(kwargs or {}))
        name = func.name().removeprefix("aten::")
        if not self.inside and not func.is_view and not name.startswith(QUIET):
            name = f"torch {name.partition('.')[0]}"
            self.launches[name] += 1
            tensors = [*args, *(kwargs or {}).values(), *(out if isinstance(out, tuple | list) else (out,))]
            self.bytes[name] += sum(t.nbytes for t in tensors if isinstance(t, torch.Tensor))
        return out


@contextmanager
def counted() -> Iterator[Traffic]:
    """What is launched within."""
    from triton.runtime import interpreter

    builder: Any = interpreter.InterpreterBuilder
    traffic = Traffic()
    names = ("create_masked_load", "create_masked_store", "create_atomic_rmw")
    old = {name: getattr(builder, name) for name in names}
    run = interpreter.GridExecutor.__call__

    def size(pointers: Any) -> int:
        return int(np.dtype(interpreter._get_np_dtype(pointers.get_element_ty())).itemsize)

    def load(self: Any, pointers: Any, mask: Any, *more: Any) -> Any:
        traffic.bytes[traffic.inside] += int(mask.data.sum()) * size(pointers)
        return old["create_masked_load"](self, pointers, mask, *more)

    def store(self: Any, pointers: Any, value: Any, mask: Any, *more: Any) -> Any:
        traffic.bytes[traffic.inside] += int(mask.data.sum()) * size(pointers)
        return old["create_masked_store"](self, pointers, value, mask, *more)

    def atomic(self: Any, kind: Any, pointers: Any, value: Any, mask: Any, *more: Any) -> Any:
        traffic.bytes[traffic.inside] += 2 * int(mask.data.sum()) * size(pointers)
        return old["create_atomic_rmw"](self, kind, pointers, value, mask, *more)

    def launch(self: Any, *args: Any, **given: Any) -> Any:
        traffic.inside = f"triton {self.fn.__name__.strip('_')}"
        traffic.launches[traffic.inside] += 1
        try:
            return run(self, *args, **given)
        finally:
            traffic.inside = ""

    interpreter.GridExecutor.__call__ = launch
    for name, new in zip(names, (load, store, atomic), strict=True):
        setattr(builder, name, new)
    try:
        with traffic:
            yield traffic
    finally:
        interpreter.GridExecutor.__call__ = run
        for name in names:
            setattr(builder, name, old[name])


def batch_of(rows: int, requested: dict[str, Any]) -> StepBatch:
    """Decodes whose rows all ask for this, with the features that a GPU's steps have."""
    i32, s = np.int32, SamplingArrays.greedy(rows)
    for name in ("temperature", "top_k", "top_p", "min_p"):
        if name in requested:
            getattr(s, name)[:] = requested[name]
    s.seed[:] = np.arange(2 * rows).reshape(rows, 2)
    parts: tuple[Any, ...] = ()
    if requested.get("penalties"):
        on = np.full(rows, 1.1, np.float32)
        parts = (Penalties(repetition=on, presence=on, frequency=on, prompt_len=np.full(rows, 100, i32)),)
    batch = StepBatch(
        tokens=np.zeros(rows, i32), token_seq=np.arange(rows, dtype=i32), positions=np.full(rows, 200, i32),
        slots=np.arange(1, rows + 1, dtype=i32), context=np.full(rows, 200, i32), query=np.ones(rows, i32),
        last_row=np.arange(rows, dtype=i32), emit=np.ones(rows, bool), block_tables=(np.zeros((rows, 1), i32),), sampling=s,
        parts=parts,
    )  # fmt: skip
    features = batch.infer_features(logprobs=requested.get("logprobs", -1))
    batch.features = replace(features, random=True, truncate=True)
    return batch


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--arch", default="sm_90", help="architecture whose tile sizes are taken (default %(default)s)")
    parser.add_argument("--vocab", type=int, default=128_256, help="(default %(default)s)")
    parser.add_argument("--rows", type=int, default=2, help="sequences (default %(default)s)")
    parser.add_argument("--by-launch", action="store_true", help="also the passes of each launch")
    args = parser.parse_args()
    if os.environ.get("TRITON_INTERPRET") != "1":
        parser.error("start it with TRITON_INTERPRET=1, or by ci/gpu/launches.py --sampling")
    rng = np.random.default_rng(0)
    sampler = Sampler(
        Binder(assemble(args.arch, ()).kernels, batch_invariant=True), vocab=args.vocab, logprobs_mode="raw_logprobs"
    )
    ordered = 14 - 1.5 * np.log(np.arange(1, args.vocab + 1, dtype=np.float32))
    logits = torch.from_numpy(np.stack([rng.permutation(ordered) for _ in range(args.rows)])).to(torch.bfloat16).float()
    history = torch.from_numpy(rng.integers(0, args.vocab, (args.rows + 1, 4096)).astype(np.int32))
    print(f"{args.arch}, {args.rows} rows of {args.vocab} logits, a pass is {logits.nbytes / args.rows / 1024:.0f} KiB a row")
    print(f"{'all rows ask for':24} {'launches':>8} {'of Triton':>9} {'passes':>7} {'MiB a row':>10}")
    for name, requested in KINDS.items():
        batch = batch_of(args.rows, requested).map(torch.from_numpy)
        with counted() as seen:
            sampler(logits, history.clone(), batch)
        seen.launches["torch clone"] -= 1  # the history's, above
        seen.bytes["torch clone"] -= 2 * history.nbytes
        moved, ours = seen.bytes.total(), sum(n for k, n in seen.launches.items() if k.startswith("triton"))
        print(f"{name:24} {seen.launches.total():8} {ours:9} {moved / logits.nbytes:7.2f} {moved / args.rows / 2**20:10.2f}")
        for launch, n in seen.bytes.most_common() if args.by_launch else ():
            if n / logits.nbytes >= 0.005:
                print(f"    {n / logits.nbytes:6.2f}  {launch}{f' x {k}' if (k := seen.launches[launch]) > 1 else ''}")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
