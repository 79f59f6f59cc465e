"""FlashAttention-4 (github.com/Dao-AILab/flash-attention, folder flash_attn/cute): kernels that `thalweg compile` made.

Its compiler writes objects that follow the ABI of tvm-ffi, and an object contains its signature. To run one, a machine needs
the package apache-tvm-ffi and the library libcute_dsl_runtime.so, but neither flash-attn-4 nor the compiler. One object runs
every step: the tiles depend on the layer, and keys are not split. Never run on a GPU here.
"""

from __future__ import annotations

import ctypes
import functools
import re
from collections.abc import Callable, Mapping
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import torch
from torch import Tensor

from thalweg.backends.torch_gpu import paged
from thalweg.backends.torch_gpu.library import AheadKernels, KernelSet
from thalweg.backends.torch_gpu.packages import loading
from thalweg.errors import DeviceError
from thalweg.hal.attention import AttnSpec
from thalweg.hal.step import SCRATCH, StepBatch, StepShape

NAME = "flash-attn-4"
ARCHES = ("sm_90", "sm_100", "sm_103")
SHOWN: tuple[str, ...] = ()
"""Architectures where a device has shown that a row keeps its bits in any batch."""
SYMBOL = "func"
"""Name of the function in an object."""
RUNTIME = "libcute_dsl_runtime.so"
OPTION = '{"flash_attn_4": true}'
ROWS = 1 << 20
"""Upper bound of a sequence's new tokens, where an object has such an argument."""

Run = Callable[..., None]
"""Arguments by the names of `GIVEN`."""
GIVEN: Mapping[str, str] = {
    "mQ": "Tensor", "mK": "Tensor", "mV": "Tensor", "mO": "Tensor", "softmax_scale": "float32", "mCuSeqlensQ": "Tensor",
    "mSeqUsedK": "Tensor", "mPageTable": "Tensor", "window_size_left": "int32", "window_size_right": "int32",
    "max_seqlen_q": "int32",
}  # fmt: skip
"""Arguments that `FlashAttention4` has values for, and their kinds in an object's signature."""


class Kernels(Protocol):
    """The objects of one architecture."""

    def find(self, spec: AttnSpec) -> Run | str:
        """A function of GIVEN, or why there is none."""
        ...


class FlashAttention4(paged.LibraryAttention):
    """kernels: an object per kind of layer."""

    name = NAME

    def __init__(self, arch: str, kernels: Kernels, partner: paged.PagedBackend, invariant: bool) -> None:
        super().__init__(partner)
        self._arch, self._kernels, self.batch_invariant = arch, kernels, invariant

    def supports(self, spec: AttnSpec) -> str | None:
        if self._arch != "sm_90" and spec.head_dim > 128 and spec.head_dim != 256:
            return f"runs head sizes up to 128, and 256, on {self._arch}, not {spec.head_dim}"
        why = super().supports(spec)
        if why is None and spec.head_dim % 16:
            why = f"runs head sizes that 16 divides, not {spec.head_dim}"
        if why is None:
            found = self._kernels.find(spec)
            why = found if isinstance(found, str) else None
        return why

    def metadata(self, batch: StepBatch, group: int, spec: AttnSpec, shape: StepShape | None) -> Mapping[str, Any]:
        """{"lengths": i32[S], "queries": i32[S + 1]}: keys of each sequence, and where its new tokens begin. Padding has
        neither. The sizes depend only on the bucket."""
        new = np.where(batch.slots == SCRATCH, 0, batch.query)
        return {"lengths": paged.lengths(batch), "queries": paged.starts(new)}

    def attend(
        self, q: Tensor, k: Tensor, v: Tensor, kv: Tensor, batch: StepBatch, group: int, spec: AttnSpec,
        sinks: Tensor | None = None,
    ) -> tuple[Tensor, Tensor]:  # fmt: skip
        self._partner.store(k, v, kv, batch, group, spec)
        run, plan = self._kernels.find(spec), batch.metadata[group]
        if isinstance(run, str):
            raise RuntimeError(f"{NAME}: {run}")
        out = q.new_zeros(q.shape)  # rows of padding are not written
        left, right = paged.window(spec)
        run(
            mQ=q, mK=kv[:, 0], mV=kv[:, 1], mO=out, softmax_scale=spec.scale, mCuSeqlensQ=plan["queries"],
            mSeqUsedK=plan["lengths"], mPageTable=batch.block_tables[group], window_size_left=left, window_size_right=right,
            max_seqlen_q=ROWS,
        )  # fmt: skip
        return out, kv


def name_object(arch: str, spec: AttnSpec) -> str:
    """The name of a layer's object, without its suffix: everything that is constant in its code."""
    more = ["window"] * (spec.kind == "window") + [f"softcap{spec.softcap:g}"] * bool(spec.softcap)
    return "-".join([arch, spec.dtype, f"d{spec.head_dim}", f"g{spec.heads // spec.kv_heads}", *more])


class ObjectSignature:
    """The arguments of an object, in order, as its own error message for a call without arguments states them. ValueError if
    an object needs one that `FlashAttention4` does not have, or if it is for another kind of layer."""

    def __init__(self, text: str, spec: AttnSpec) -> None:
        inside = re.search(r"`__call__\((.*)\)`", text, re.S)
        self.arguments: tuple[tuple[str, str], ...] = tuple(
            re.findall(r"(\w+): (None|Tuple\[[^\]]*\]|Tensor\(\[[^\]]*\],\s*\w+\)|\w+)", inside[1] if inside else "")
        )
        count = re.search(r"Expects (\d+) parameters", text)
        if count is None or int(count[1]) != len(self.arguments):
            raise ValueError(f"states no signature: {text.splitlines()[0][:100] if text else ''}")
        kinds = dict(self.arguments)
        for name, kind in self.arguments:
            constant = set(re.findall(r"\w+", kind)) <= {"None", "Tuple"}
            if not constant and (name not in GIVEN or not kind.startswith(GIVEN[name])):
                raise ValueError(f"has an argument {name}: {kind}, which this version does not support")
        needed = [n for n, kind in GIVEN.items() if kind == "Tensor" and kinds.get(n, "None") == "None"]
        if needed:
            raise ValueError(f"has no argument {', '.join(needed)}")
        if not kinds["mQ"].endswith(f" {spec.dtype})"):
            raise ValueError(f"is for {kinds['mQ']}, not {spec.dtype}")
        if (kinds.get("window_size_left", "None") != "None") != (spec.kind == "window"):
            raise ValueError(f"is for {'full' if spec.kind == 'window' else 'window'} attention")

    def pack(self, given: Mapping[str, Any]) -> list[Any]:
        """Values of `given` in the object's order, and None for what is constant in it."""
        return [
            given[name] if kind.startswith(GIVEN.get(name, "-")) else (None,) * kind.count("None") if "[" in kind else None
            for name, kind in self.arguments
        ]  # fmt: skip


def signature(function: Callable[..., Any], spec: AttnSpec) -> ObjectSignature:
    try:
        function()
    except TypeError as e:
        return ObjectSignature(str(e), spec)
    raise ValueError("accepts a call without arguments")


class ObjectFolder:
    """Objects that lie in a folder, loaded at first use."""

    def __init__(self, arch: str, folder: Path, load: Callable[[Path], Callable[..., Any]]) -> None:
        self._arch, self._folder, self._load = arch, folder, load
        self._found: dict[AttnSpec, Run | str] = {}

    def find(self, spec: AttnSpec) -> Run | str:
        found = self._found.get(spec)
        if found is None:
            found = self._found[spec] = self._open(spec)
        return found

    def _open(self, spec: AttnSpec) -> Run | str:
        path = self._folder / f"{name_object(self._arch, spec)}.so"
        if not path.exists():
            compiling = f"thalweg compile --arch {self._arch} --no-batch-invariant --additional-config '{OPTION}'"
            return f"no compiled kernel {path.name} in {self._folder} ({compiling})"
        try:
            function = self._load(path)
            arguments = signature(function, spec)
        except (OSError, RuntimeError, ValueError, AttributeError) as e:
            return f"{path.name} does not load: {str(e).splitlines()[0] if str(e) else type(e).__name__}; compile it again"

        def run(**given: Any) -> None:
            function(*arguments.pack(given))

        return run


class ObjectRecorder:
    """For an absent device: objects that layers ask for, which `ahead` compiles later. Calls do nothing."""

    def __init__(self, arch: str, ahead: AheadKernels) -> None:
        self._arch, self._ahead = arch, ahead

    def find(self, spec: AttnSpec) -> Run | str:
        from thalweg.backends.cuda.flash4_compile import compile_object

        path = folder(self._ahead.cache) / f"{name_object(self._arch, spec)}.so"
        self._ahead.want(f"{NAME} {path.stem}", functools.partial(compile_object, self._arch, spec, path))
        return lambda **given: None


def folder(cache: Path) -> Path:
    """Where objects lie in the folder of compiled kernels."""
    return cache / NAME


def load(arch: str, unshown: bool = False, ahead: AheadKernels | None = None) -> KernelSet:
    """unshown: count as batch-invariant where no device has shown it. ahead: compile, and load nothing. DeviceError: the
    option is set, and the architecture or a package for it is missing."""
    if arch not in ARCHES:
        raise DeviceError(f"additional_config: flash_attn_4 is for {', '.join(ARCHES)}, not {arch}; leave it out")
    kernels: Kernels
    if ahead is None:
        kernels = ObjectFolder(arch, folder(_cache()), _loader())
    else:
        ahead.expect(NAME)
        kernels = ObjectRecorder(arch, ahead)
    return KernelSet(attention=(FlashAttention4(arch, kernels, paged.partner(arch), unshown or arch in SHOWN),))


def _cache() -> Path:
    try:
        from thalweg.backends.triton_kernels.cross_compile import cache_folder
    except ImportError as e:
        raise DeviceError(f"additional_config: flash_attn_4: kernels lie in Triton's cache, and {e.name} is missing") from e
    return cache_folder()


def _loader() -> Callable[[Path], Callable[..., Any]]:
    """The function that opens an object: DeviceError names the package to install."""
    try:
        with loading("tvm_ffi"):
            import tvm_ffi
    except ImportError as e:
        raise DeviceError(f"additional_config: flash_attn_4: {e}; pip install apache-tvm-ffi") from e
    path = runtime_library(str(torch.version.cuda or "").partition(".")[0])
    if path is None:
        raise DeviceError(
            f"additional_config: flash_attn_4: {RUNTIME} is missing; pip install --no-deps nvidia-cutlass-dsl-libs-cu12 or "
            "nvidia-cutlass-dsl-libs-cu13, of the version that compiled the kernels"
        )
    ctypes.CDLL(str(path), mode=ctypes.RTLD_GLOBAL)  # objects have undefined symbols of it

    def open_object(path: Path) -> Callable[..., Any]:
        function: Callable[..., Any] = getattr(tvm_ffi.load_module(str(path)), SYMBOL)
        return function

    return open_object


def runtime_library(cuda: str = "") -> Path | None:
    """libcute_dsl_runtime.so in an installed package nvidia_cutlass_dsl, for this major version of CUDA if there is one."""
    spec = find_spec("nvidia_cutlass_dsl")
    places = [Path(p) for p in spec.submodule_search_locations or ()] if spec else []
    found = sorted(p for place in places for p in place.glob(f"*/lib/{RUNTIME}"))
    own = [p for p in found if p.parts[-3] == f"cu{cuda}"]
    return next(iter(own or found), None)
