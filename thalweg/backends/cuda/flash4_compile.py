"""Compiles an object of FlashAttention-4 on a processor. Requires the package flash-attn-4 and a C compiler as linker.

Its forward function runs on fake tensors, for which it compiles a kernel and launches nothing. The object does not depend on
their sizes, except for heads per KV head and the head size.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
import time
import warnings
from importlib.metadata import version
from pathlib import Path
from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensorMode

from thalweg.backends.cuda.flash4 import SYMBOL
from thalweg.backends.torch_gpu.packages import function, loading
from thalweg.hal.attention import AttnSpec
from thalweg.hal.platform import CompiledKernel

PACKAGES = ("flash-attn-4", "nvidia-cutlass-dsl")
CORES = {"sm_90": "132", "sm_100": "148", "sm_103": "148"}
"""Multiprocessors of the largest product. The package asks for a number; with one split of the keys it does not enter the
kernel."""
PAGE = 16
"""Tokens of a page. Larger ones equal to a tile would select loads by TMA, and another object."""
LONG = 4096
"""New tokens of a sequence: more than a tile, so that the object is the one for prompts."""


def compile_object(arch: str, spec: AttnSpec, path: Path) -> CompiledKernel:
    """Into `path`, a shared library. ImportError without the packages, RuntimeError without a linker or if linking fails."""
    start = time.monotonic()
    with loading("flash_attn"):
        stamp = ", ".join(f"{p} {version(p)}" for p in PACKAGES)
    note = path.with_suffix(".txt")
    if path.exists() and note.exists() and note.read_text() == stamp:
        return CompiledKernel(time.monotonic() - start, True)
    compiler = next((c for c in (os.environ.get("CC"), "cc", "gcc", "clang") if c and shutil.which(c)), None)
    if compiler is None:
        raise RuntimeError("no C compiler to link with; install gcc")
    path.parent.mkdir(parents=True, exist_ok=True)
    compiled = _compile(arch, spec)
    with tempfile.TemporaryDirectory(dir=path.parent) as place:
        result, linked = Path(place, "kernel.o"), Path(place, "kernel.so")
        compiled.export_to_c(object_file_path=str(result), function_name=SYMBOL)
        done = subprocess.run([compiler, "-shared", "-o", str(linked), str(result)], capture_output=True, text=True)
        if done.returncode:
            raise RuntimeError(f"{compiler} does not link it: {done.stderr.strip()[-200:]}")
        os.replace(linked, path)
    note.write_text(stamp)
    return CompiledKernel(time.monotonic() - start, False)


def _compile(arch: str, spec: AttnSpec) -> Any:
    """The compiled function of one layer kind. One architecture per process: the package reads it once."""
    if "cutlass" in sys.modules and os.environ.get("CUTE_DSL_ARCH") != f"{arch}a":
        raise RuntimeError(f"the compiler is loaded for another architecture in this process, not for {arch}")
    os.environ.update(FLASH_ATTENTION_ARCH=f"{arch}a", CUTE_DSL_ARCH=f"{arch}a", FLASH_ATTENTION_NUM_SMS=CORES[arch])
    with loading("flash_attn"):
        from flash_attn.cute import interface
    forward: Any = function(
        interface, "_flash_attn_fwd", "cu_seqlens_q", "seqused_k", "page_table", "max_seqlen_q", "softmax_scale", "causal",
        "softcap", "window_size_left", "window_size_right", "num_splits",
    )  # fmt: skip
    dtype, d, seqs, columns = getattr(torch, spec.dtype), spec.head_dim, 4, 12
    forward.compile_cache.clear()
    with FakeTensorMode(), torch.no_grad(), warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of arguments that are constant
        row = spec.kv_heads * d
        half = torch.empty_strided((64, PAGE, spec.kv_heads, d), (2 * PAGE * row, row, d, 1), dtype=dtype, device="cuda")
        q = torch.empty(100, spec.heads, d, dtype=dtype, device="cuda")
        starts, lengths, table = (
            torch.empty(n, dtype=torch.int32, device="cuda") for n in ((seqs + 1,), (seqs,), (seqs, columns))
        )
        forward(
            q, half, half, cu_seqlens_q=starts, seqused_k=lengths, page_table=table, max_seqlen_q=LONG, causal=True,
            softmax_scale=spec.scale, softcap=spec.softcap or None, num_splits=1,
            window_size_left=spec.window - 1 if spec.kind == "window" else None,
            window_size_right=0 if spec.kind == "window" else None,
        )  # fmt: skip
    (compiled,) = forward.compile_cache.cache.values()
    return compiled
