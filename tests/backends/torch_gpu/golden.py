"""Kernel plans of every known GPU architecture, as text: which kernel serves what, and why not a better one.

    python tests/backends/torch_gpu/golden.py --write

writes them to tests/backends/golden; a test holds what is chosen today against what is committed. A change that moves a
line there is a change somebody should see.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import standins

from thalweg.backends.cuda import CudaPlatform
from thalweg.backends.rocm import RocmPlatform
from thalweg.backends.torch_gpu import library
from thalweg.backends.torch_gpu.arch import ARCHES, Arch, defaults
from thalweg.backends.torch_gpu.platform import GpuPlatform
from thalweg.backends.xpu import XpuPlatform
from thalweg.hal import ops
from thalweg.hal.attention import AttentionBackend, AttnSpec, choose_attention
from thalweg.hal.comm import Mesh
from thalweg.hal.op import Binder, KernelChoice
from thalweg.hal.ops.matmul import FP8_BLOCKS, NVFP4
from thalweg.hal.platform import ModelInfo
from thalweg.hal.weights import DENSE
from thalweg.models.build import build
from thalweg.models.layers.attention import SELDOM
from thalweg.models.step import make_step

FOLDER = Path(__file__).parents[1] / "golden"
MODEL: dict[str, Any] = {
    "architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_size": 4096, "intermediate_size": 14336,
    "num_hidden_layers": 2, "num_attention_heads": 32, "num_key_value_heads": 8, "head_dim": 128, "vocab_size": 128256,
    "max_position_embeddings": 8192, "rms_norm_eps": 1e-5, "rope_theta": 500000.0, "tie_word_embeddings": False,
    "hidden_act": "silu",
}  # fmt: skip
"""Llama 3.1 8B in width, two layers deep: the others are the same."""
PLATFORMS: dict[str, type[GpuPlatform]] = {"sm_": CudaPlatform, "gfx": RocmPlatform, "xe": XpuPlatform}
INSTALLED: dict[tuple[str, str], int] = {
    ("sm_80", "flash_attn"): 256, ("sm_90", "flash_attn_interface"): 16, ("sm_90", "flash_attn"): 16,
    ("sm_100", "flashinfer"): 16, ("sm_75", "flashinfer"): 16, ("gfx942", "aiter"): 16, ("gfx950", "flash_attn"): 256,
}  # fmt: skip
"""(architecture, package that is there) whose plans are kept, and the tokens of a block."""


def arches() -> list[Arch]:
    return [a for a in ARCHES.values() if a.dtypes]


def plan(arch: Arch, compiled: library.Source, package: str = "", block_tokens: int = 0) -> str:
    """The kernel plan of MODEL on this architecture, as the worker binds it, with and without batch invariance. package: the
    only attention library there is. block_tokens: 0 = by default."""
    with standins.installed(package):
        return _plan(arch, compiled, block_tokens)


def _plan(arch: Arch, compiled: library.Source, block_tokens: int) -> str:
    platform = next(p for prefix, p in PLATFORMS.items() if arch.name.startswith(prefix))()
    parts = library.assemble(arch.name, platform.vendors(), compiled)
    facts = ModelInfo("LlamaForCausalLM", "bfloat16", 32, 4096, 32, 8, 128, 128256, 8192, 16 << 30)
    chosen = defaults(arch, 80 << 30, facts)
    assert chosen.dtype is not None
    assert chosen.block_tokens is not None
    lines = [f"{platform.name} {arch.name} {arch.family}: {chosen.dtype}, fp8 {arch.fp8 or 'none'}"]
    for invariant in (True, False):
        binder = Binder(parts.kernels, batch_invariant=invariant)
        model = build(
            MODEL, binder=binder, attention=parts.attention, mesh=Mesh(), dtype=chosen.dtype, max_len=8192,
            block_tokens=block_tokens or chosen.block_tokens,
        )  # fmt: skip
        make_step(model, binder, logprobs_mode="raw_logprobs")
        bind_more(binder, parts.attention, chosen.dtype)
        lines += ["", "batch-invariant:" if invariant else "variants:", *sorted(map(str, binder.bindings))]
    return "\n".join(lines) + "\n"


LATENT = AttnSpec(128, 1, 576, 192**-0.5, "bfloat16", "latent", latent=512)
"""DeepSeek V3."""


def bind_more(binder: Binder, attention: Sequence[AttentionBackend], dtype: str) -> None:
    """What layers of other models would ask for: latent attention, in this dtype and in float32; a layer of experts; an
    adapter; weights in formats of checkpoints."""
    for spec in (replace(LATENT, dtype=dtype), replace(LATENT, dtype="float32")):
        backend, refused = choose_attention(attention, spec, batch_invariant=binder.batch_invariant)
        facts = {key: value for key, value in asdict(spec).items() if value or key not in SELDOM}  # as the layer says it
        binder.record(KernelChoice("attention", facts, backend.name, backend.batch_invariant, refused))
    every = ops.all_ops()
    binder.bind(every["route"], k=8, scores="sigmoid", renormalise=True, experts=256)
    binder.bind(every["experts"], dtype=dtype, weight=DENSE, down_weight=DENSE, experts=256, act="silu")
    binder.bind(every["lora_rows"], dtype=dtype, count=9)
    binder.bind(every["lora_add"], dtype=dtype, rows=(4096, 1024, 1024))
    for weight in (FP8_BLOCKS, NVFP4):
        static = {"weight": weight, "act": weight.act, "group": weight.group}
        binder.bind(every["linear"], dtype=dtype, in_features=4096, out_features=6144, **static)


def absent(arch: str) -> library.KernelSet:
    raise ImportError("triton is not installed")


def main() -> None:
    FOLDER.mkdir(exist_ok=True)
    for arch in arches():
        (FOLDER / f"{arch.name}.txt").write_text(plan(arch, absent))
        if has_library():
            (FOLDER / f"{arch.name}-triton.txt").write_text(plan(arch, library.triton))
    if has_library():
        for (name, package), size in INSTALLED.items():
            (FOLDER / f"{name}-{package}.txt").write_text(plan(ARCHES[name], library.triton, package, size))
    print(f"{len(list(FOLDER.glob('*.txt')))} plans in {FOLDER}")


def has_library() -> bool:
    """Are Triton and the kernels written in it here?"""
    try:
        library.triton("sm_90")
    except ImportError:
        return False
    return True


if __name__ == "__main__":
    if sys.argv[1:] != ["--write"]:
        sys.exit(__doc__)
    main()
