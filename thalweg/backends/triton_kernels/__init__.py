"""The kernels that CUDA, ROCm and XPU share, in Triton, each with the tile sizes its architecture needs.

`library(arch)` gives kernels and attention in order of preference. Importing this package imports neither torch nor
Triton. `library` imports both, and raises ImportError where one is missing. It knows no device memory, stream or
driver: kernels take tensors and launch on the current device.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from thalweg.backends.triton_kernels.tiles import TileSizes
    from thalweg.hal.attention import AttentionBackend
    from thalweg.hal.op import Kernel


@dataclass(frozen=True, slots=True)
class TritonLibrary:
    """Kernels for one architecture. tiles: the architecture that their tile sizes are from, which may be a relative."""

    kernels: tuple[Kernel, ...]
    attention: tuple[AttentionBackend, ...]
    tiles: str


def library(
    arch: str, row_tiles: bool = True, scaled_codes: bool = False, dependent_launch: bool = False,
    joined_attention: bool = False,
) -> TritonLibrary:  # fmt: skip
    """The kernels for `arch` (sm_90, gfx942, xe2, ... or interpret). row_tiles: tiles follow the number of rows. scaled_codes:
    4-bit integers are first multiplied by their scales (`quantised.SCALED`). dependent_launch: a layer's launches start before
    the launch ahead of them ends (`dependent`). joined_attention: see `AttentionTiles.joined`. Raises ImportError
    without torch or Triton, ValueError for an architecture of no known family, or one without dependent launches."""
    from thalweg.backends.triton_kernels.tiles import of_any_rows, refuse_dependent_launch, tiles

    if dependent_launch and (why := refuse_dependent_launch(arch)):
        raise ValueError(f"dependent_launch: {why}")
    t = tiles(arch)
    attention = replace(t.attention, joined=joined_attention or t.attention.joined)
    t = replace(t, dependent=dependent_launch or t.dependent, attention=attention)
    result = build_library(t if row_tiles else of_any_rows(t))
    if not scaled_codes:
        return result
    from thalweg.backends.triton_kernels.quantised import SCALED

    return replace(result, kernels=tuple(sorted(result.kernels, key=lambda k: k.name != SCALED)))


def build_library(t: TileSizes) -> TritonLibrary:
    """The kernels with these tile sizes. Raises ImportError without torch or Triton."""
    from thalweg.backends.triton_kernels import (
        elementwise,
        heads,
        history,
        linear,
        logits,
        lora,
        moe,
        quantised,
        sampling,
        truncation,
    )
    from thalweg.backends.triton_kernels.attention import attention

    parts = (linear, quantised, moe, lora, heads, elementwise, history, logits, sampling, truncation)
    kernels = tuple(k for part in parts for k in part.kernels(t))
    return TritonLibrary(kernels, attention(t), t.arch)
