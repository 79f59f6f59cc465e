"""Runs one op on a device, only through the contract, and compares the results."""

from __future__ import annotations

import zlib
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import torch

from thalweg.hal import ops
from thalweg.hal.device import Device
from thalweg.hal.op import Binder, BoundOp, Kernel, Op, Sample
from thalweg.hal.ops.quantise import quantise
from thalweg.hal.step import SamplingArrays, StateBox, StepBatch, StepResult
from thalweg.hal.weights import DENSE, QTensor, WeightFormat

ROWS: Mapping[str, tuple[int, ...]] = {
    "embed": (0,), "linear": (0,), "rms_norm": (0,), "add_rms_norm": (0, 1), "rope": (0, 1, 2), "act_and_mul": (0,),
    "penalties": (0, 2, 3, 4, 5, 6, 7), "token_mask": (0, 1), "truncate": (0, 1, 2, 3), "sample": (0, 1, 2, 3),
    "draw": (0, 1, 2, 3, 4, 5, 6),
    "linear_argmax": (0,), "logprobs": (0, 1), "resolve_tokens": (0, 2, 3), "route": (0,), "experts": (0, 1, 2),
    "lora_add": (0, 1, 2), "lora_experts": (0, 1, 2, 5), "lora_rescale": (0, 1), "layer_norm": (0,), "activation": (0,),
    "head_linear": (0,), "delta_gates": (0, 1), "gated_rms_norm": (0, 1), "sigmoid_mul": (0, 1), "gated_group_norm": (0, 1),
    "channel_delta_gates": (0, 1), "index_top": (0, 1, 4, 5), "chosen_attention": (0, 3, 4),
    "block_top": (0, 3, 4), "block_attention": (0, 4, 5, 6),
    "rms_norm_linear": (0, 1), "act_and_mul_linear": (0,),
    "compressed_attention": (0, 3, 4, 8), "hyper_weights": (0,), "cross_attention": (0, 4, 5),
    "index_blocks": (0, 1, 4, 5), "index_among": (0, 1, 4, 5, 6), "round_groups": (0,), "hash_ngrams": (0,),
    "distance_attention": (0, 1, 6, 7),
}  # fmt: skip
"""Arguments with one row per token or sequence, for ops with such a result."""


WEIGHTS: Mapping[str, tuple[int, ...]] = {
    "embed": (1,),
    "linear": (1,),
    "linear_argmax": (1,),
    "rms_norm_linear": (3,),
    "act_and_mul_linear": (1,),
    "experts": (3, 4),
    "lora_experts": (3, 4),
    "head_linear": (1,),
}
"""Which arguments are weights that a kernel packs."""


def rng(*name: object) -> np.random.Generator:
    """A generator that depends only on the case's name."""
    return np.random.default_rng(zlib.crc32(repr(name).encode()))


def dtypes_of(op: Op) -> tuple[str, ...]:
    """The dtypes an op is tested in: those with a tolerance. Exact ops hold integers or float32."""
    return tuple(op.tolerances) or ("float32",)


def host_arguments(op: Op, sample: Sample, dtype: str) -> list[torch.Tensor]:
    """The sample's arrays as host tensors, float16 standing for `dtype`."""
    kind = getattr(torch, dtype)
    arrays = sample.make(rng(op.name, sample.name))
    return [torch.from_numpy(np.array(a)).to(kind) if a.dtype == np.float16 else torch.from_numpy(np.array(a)) for a in arrays]


def spec(op: Op, sample: Sample, args: Sequence[torch.Tensor], dtype: str) -> dict[str, Any]:
    """The facts of a layer that binds this op."""
    out: dict[str, Any] = {"dtype": dtype, **sample.static}
    if op.name in ("linear", "linear_argmax", "rms_norm_linear", "act_and_mul_linear"):
        weight = args[WEIGHTS[op.name][0]]
        out = {"in_features": weight.shape[1], "out_features": weight.shape[0], "weight": DENSE} | out
    if op.name == "head_linear":
        out |= {"in_features": args[0].shape[2]}
    if op.name in ("embed", "experts", "lora_experts"):
        out = {"weight": DENSE} | out
    if op.name == "embed":  # as most kernels take it
        out["tied"] = True
    if args[0].dtype == torch.float32 and op.name in ROWS and dtype == "float32":
        out |= {"vocab": args[0].shape[-1]}
    return out


def bind(op: Op, sample: Sample, args: Sequence[torch.Tensor], dtype: str, kernel: Kernel | None) -> BoundOp:
    """The op bound to this one kernel (None: the reference body). `choice.kernel` says whether it took the case."""
    return Binder([kernel] if kernel else []).bind(op, **spec(op, sample, args, dtype))


def pick(op: Op, args: Sequence[torch.Tensor], index: torch.Tensor) -> list[torch.Tensor]:
    """The arguments of some rows, i64[N], in any order and any number of times."""
    some = [a[index] if i in ROWS[op.name] else a for i, a in enumerate(args)]
    if op is ops.lora_add:  # then the rows of slots follow from the slots
        seq = torch.arange(len(index), dtype=torch.int32)
        some[2:5] = ops.lora_rows(some[2], seq, count=len(args[4]) - 1)
    return some


def put(device: Device, op: Op, bound: BoundOp, args: Sequence[torch.Tensor]) -> list[Any]:
    """Arguments on the device, the weight packed as this kernel wants it."""
    placed = [device.put(a.clone()) for a in args]
    for i in WEIGHTS.get(op.name, ()):
        spec = bound.choice.spec
        placed[i] = bound.pack(_weight(device, args[i], _format(op, i, spec), spec.get("experts", spec.get("heads", 1))))
    return placed


def _format(op: Op, argument: int, facts: Mapping[str, Any]) -> WeightFormat:
    """The format of this argument, a weight."""
    name = "down_weight" if "down_weight" in facts and argument == WEIGHTS[op.name][1] else "weight"
    format: WeightFormat = facts.get(name, DENSE)
    return format


def _weight(device: Device, weight: torch.Tensor, format: WeightFormat, matrices: int) -> QTensor:
    shape = (weight.shape[0], weight.shape[1])
    result = quantise(weight, format) if format != DENSE else QTensor(DENSE, shape, {"weight": weight.clone()})
    return QTensor(format, shape, {name: device.put(a) for name, a in result.data.items()}, matrices)


class CompiledFunction:
    """A function of device arrays as a compiled step, compiled once: its arguments travel as the state."""

    def __init__(self, device: Device, call: Callable[..., Any]) -> None:
        self._box = StateBox([])

        def step(params: Any, state: Any, batch: StepBatch) -> tuple[Any, StepResult]:
            out = call(*state)
            out = out if isinstance(out, tuple) else (out,)
            wide = {str(i): x.to(torch.float32) if x.is_floating_point() else x for i, x in enumerate(out)}
            return state, StepResult(batch.slots[:, None], batch.query, extras=wide)

        self._run = device.compile(step, None, self._box, None, None)

    def __call__(self, args: Sequence[Any]) -> list[np.ndarray]:
        """Its results on the host, floating ones as float32. The step may consume its arguments."""
        self._box.value = list(args)
        result = self._run(empty_batch()).result()
        return [np.asarray(result.extras[str(i)]) for i in range(len(result.extras))]


def run(device: Device, call: Callable[..., Any], args: Sequence[Any]) -> list[np.ndarray]:
    """call(*args) once, as `CompiledFunction` does."""
    return CompiledFunction(device, call)(args)


def empty_batch() -> StepBatch:
    """A batch of one scratch token, for steps that do not look at it."""
    one = np.zeros(1, np.int32)
    return StepBatch(
        tokens=one, token_seq=one.copy(), positions=one.copy(), slots=one.copy(), context=one.copy(),
        query=np.ones(1, np.int32), last_row=one.copy(), emit=np.zeros(1, bool), block_tables=(np.zeros((1, 1), np.int32),),
        sampling=SamplingArrays.greedy(1),
    )  # fmt: skip


def body_arguments(op: Op, sample: Sample, args: Sequence[torch.Tensor]) -> list[Any]:
    """Copies of the arguments, the weight of a linear layer in the body's form."""
    out: list[Any] = [a.clone() for a in args]
    for i in WEIGHTS.get(op.name, ()):
        format = _format(op, i, sample.static)
        if format != DENSE:
            out[i] = dict(quantise(out[i], format).data)
    return out


def reference(op: Op, sample: Sample, args: Sequence[torch.Tensor]) -> list[np.ndarray]:
    """The results of the op's body, on the host."""
    out = op.reference(*body_arguments(op, sample, args), **{k: v for k, v in sample.static.items() if k in op.static})
    out = out if isinstance(out, tuple) else (out,)
    return [(x.to(torch.float32) if x.is_floating_point() else x).numpy() for x in out]


def difference(got: np.ndarray, want: np.ndarray) -> float:
    """Largest difference relative to the largest magnitude. inf if shapes, infinities or integers differ."""
    if got.shape != want.shape:
        return float("inf")
    if not np.issubdtype(want.dtype, np.floating):
        return 0.0 if np.array_equal(got, want) else float("inf")
    finite = np.isfinite(want)
    if not np.array_equal(got[~finite], want[~finite]) or not np.isfinite(got[finite]).all():
        return float("inf")
    if not finite.any():
        return 0.0
    return float(np.abs(got[finite] - want[finite]).max() / max(float(np.abs(want[finite]).max()), 1e-30))


def kernels_of(device: Device, op: Op) -> list[Kernel | None]:
    """The device's kernels for an op, in order. [None] = it runs the reference body."""
    found: list[Kernel | None] = [k for k in device.kernels if k.op == op.name]
    return found or [None]


def every_case(device: Device) -> list[tuple[Op, Sample, str, Kernel | None]]:
    """Every op x sample x dtype x kernel."""
    return [
        (op, s, d, k)
        for op in ops.all_ops().values()
        for s in op.samples
        for d in dtypes_of(op)
        for k in kernels_of(device, op)
    ]


def case_id(case: tuple[Op, Sample, str, Kernel | None]) -> str:
    op, sample, dtype, kernel = case
    return f"{op.name}-{sample.name}-{dtype}-{kernel.name if kernel else 'reference'}"
