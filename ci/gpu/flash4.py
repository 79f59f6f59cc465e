"""Compiles FlashAttention-4's kernels for the attention cases of the conformance kit and for Llama 1B and 8B, on a processor:

    python ci/gpu/flash4.py --arch sm_90 [--cache-dir DIR]

The part `kit flash-attn-4` of `ci/gpu/run` runs the kit on them, and `measure 8b flash4` serves with them. Requires
flash-attn-4 and a C compiler. Exit status: 1 if a kernel was not compiled.
"""

from __future__ import annotations

import argparse
import os
import sys
from dataclasses import replace
from pathlib import Path

from thalweg.backends.cuda import flash4
from thalweg.backends.torch_gpu.library import AheadKernels
from thalweg.hal.attention import AttnSpec
from thalweg.hal.testing.test_attention import SPECS

SERVED = {"llama-1b": AttnSpec(32, 8, 64, 64**-0.5, "bfloat16"), "llama-8b": AttnSpec(32, 8, 128, 128**-0.5, "bfloat16")}


def list_specs() -> dict[str, AttnSpec]:
    """Layers by name, in bfloat16."""
    return {**{name: replace(spec, dtype="bfloat16") for name, spec in SPECS.items()}, **SERVED}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--arch", default="sm_90", choices=flash4.ARCHES, help="architecture (default: %(default)s)")
    default = Path(os.environ.get("TRITON_CACHE_DIR", Path.home() / ".triton" / "cache"))
    parser.add_argument("--cache-dir", type=Path, default=default, help="folder of compiled kernels (default: Triton's)")
    args = parser.parse_args()
    ahead = AheadKernels(args.cache_dir)
    (attention,) = flash4.load(args.arch, ahead=ahead).attention
    for name, spec in list_specs().items():
        why = attention.supports(spec)
        if why is not None:
            print(f"{name}: not supported: {why}")
    failed = 0
    for name, make in ahead.tasks().items():
        try:
            result = make()
        except Exception as e:  # any error of the compiler; the other kernels are still compiled
            failed += 1
            print(f"{name}: {type(e).__name__}: {next(iter(str(e).splitlines()), '')}")
        else:
            print(f"{name}: {'there already' if result.cached else f'{result.seconds:.1f} s'}")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
