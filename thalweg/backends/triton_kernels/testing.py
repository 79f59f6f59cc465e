"""The library where there is no GPU: a platform that runs every kernel in Triton's interpreter, for the conformance kit.

    pytest --pyargs thalweg.hal.testing --platform=thalweg.backends.triton_kernels.testing:InterpretPlatform

It proves the kernels' results, with separate tile sizes, and not speed, races or a compiler's output.
Triton decides when its modules are imported whether functions are interpreted. A process that has imported it otherwise
is refused. The interpreter's own arithmetic is repaired where it is wrong (`_repair`).
"""

from __future__ import annotations

import os
import sys
from dataclasses import dataclass, replace
from typing import Any

from thalweg.backends.host import cores, cpu_name, has_torch, host_memory
from thalweg.errors import DeviceError
from thalweg.hal.device import Device, DeviceInfo
from thalweg.hal.platform import Defaults, ModelInfo, Place, Platform, Probe

SWITCH = "TRITON_INTERPRET"


@dataclass(frozen=True, slots=True)
class InterpretOptions:
    float8: str = ""
    """The 8-bit float that the target is taken to have (`Tiles.float8`): kernels then take the way they take there."""
    joined: bool = False
    """`AttentionTiles.joined`."""


class InterpretPlatform(Platform):
    name = "triton-interpret"
    options: InterpretOptions = InterpretOptions()

    def probe(self) -> Probe:
        if not has_torch():
            return Probe(0, "torch is not installed; pip install 'thalweg[cpu]'")
        return Probe(1, "interprets kernels on the host, for tests")

    def defaults(self, model: ModelInfo, device: DeviceInfo) -> Defaults:
        return Defaults(dtype="float32", block_tokens=16, max_num_seqs=8, max_num_batched_tokens=256, pipeline_depth=1)

    def describe(self) -> DeviceInfo:
        return DeviceInfo(cpu_name(), self.name, host_memory()[0], cores(), ("float32", "bfloat16"))

    def open(self, place: Place) -> Device:
        if "triton" in sys.modules and os.environ.get(SWITCH) != "1":
            raise DeviceError(f"device: {self.name}: Triton was imported to compile; start the process with {SWITCH}=1")
        os.environ[SWITCH] = "1"
        try:
            import triton  # noqa: F401
        except ImportError:
            raise DeviceError(f"device: {self.name}: Triton is not installed; pip install 'thalweg[gpu-test]'") from None
        from thalweg.backends.eager import EagerDevice
        from thalweg.backends.triton_kernels import build_library
        from thalweg.backends.triton_kernels.tiles import tiles

        _repair()
        t = tiles("interpret")
        attention = replace(t.attention, joined=self.options.joined)
        result = build_library(replace(t, float8=self.options.float8, attention=attention))
        return EagerDevice(self.describe(), result.kernels, result.attention)


def _product(a: Any, b: Any) -> Any:
    """a [.., m, k] times b [.., k, n] in float32 [.., m, n], each sum from the first term to the last, whatever its row."""
    import numpy as np

    terms = a.astype(np.float32)[..., :, :, None] * b.astype(np.float32)[..., None, :, :]
    return np.add.reduce(terms, axis=-2)


def _repair() -> None:
    """Errors of the interpreter: products of bfloat16 (it multiplies the bit patterns), the order of a product's sums, rounding
    to bfloat16 and to the 8-bit floats (it truncates, or carries wrongly), and codes of NaN. The order of sums is its
    library's, which on some processors differs with the row's place in the tile. The devices' does not."""
    import numpy as np
    import torch
    import triton.language as tl
    from triton.runtime import interpreter

    builder: Any = interpreter.InterpreterBuilder
    dot, cast = builder.create_dot, builder.cast_impl
    if hasattr(builder, "repaired"):
        return
    narrow = {
        tl.bfloat16: (torch.bfloat16, np.uint16), tl.float8e4nv: (torch.float8_e4m3fn, np.uint8),
        tl.float8e5: (torch.float8_e5m2, np.uint8),
    }  # fmt: skip
    eight = {
        tl.float8e4nv: torch.float8_e4m3fn, tl.float8e5: torch.float8_e5m2, tl.float8e4b8: torch.float8_e4m3fnuz,
    }  # fmt: skip
    tl.float8e4b8.to_ir = lambda builder: builder.get_fp8e4b8_ty()  # a type that the interpreter's own list lacks

    def wide(h: Any) -> Any:
        if h.dtype.scalar in eight:
            values = torch.from_numpy(np.ascontiguousarray(h.data)).view(eight[h.dtype.scalar])
            return interpreter.TensorHandle(values.to(torch.float32).numpy(), tl.float32)
        if h.dtype.scalar != tl.bfloat16:
            return h
        return interpreter.TensorHandle((h.data.astype(np.uint32) << 16).view(np.float32), tl.float32)

    def create_dot(self: Any, a: Any, b: Any, d: Any, *rest: Any) -> Any:
        a, b = wide(a), wide(b)
        if not (a.dtype.is_floating() and d.dtype.scalar == tl.float32):
            return dot(self, a, b, d, *rest)
        return interpreter.TensorHandle(_product(a.data, b.data) + d.data, tl.float32)

    def cast_impl(self: Any, src: Any, to: Any) -> Any:
        if src.dtype.scalar == tl.float32 and to.scalar in narrow:
            kind, bits = narrow[to.scalar]
            rounded = torch.from_numpy(np.ascontiguousarray(src.data)).to(kind).view(getattr(torch, bits.__name__))
            return interpreter.TensorHandle(rounded.numpy(), to.scalar)
        return cast(self, src, to)

    def create_fp_to_fp(self: Any, src: Any, to: Any, rounding: Any) -> Any:
        if src.dtype.scalar in eight:
            src = wide(src)
        return cast_impl(self, src, to) if src.dtype.scalar == tl.float32 else old_fp(self, src, to, rounding)

    old_fp = builder.create_fp_to_fp
    builder.create_dot, builder.cast_impl, builder.create_fp_to_fp, builder.repaired = (
        create_dot,
        cast_impl,
        create_fp_to_fp,
        True,
    )
