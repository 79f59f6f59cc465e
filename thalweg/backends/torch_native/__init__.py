"""Kernels and attention in torch's own host operations, for platforms with torch tensors in host memory as arrays.

They run eagerly, so they may write in place and look at values. They compute the ops of `hal.ops`. `KERNELS` and
`ATTENTION` are in order of preference.
"""

from __future__ import annotations

from thalweg.backends.torch_native.attention import TorchPagedAttention
from thalweg.backends.torch_native.cross import CROSS
from thalweg.backends.torch_native.elementwise import ELEMENTWISE
from thalweg.backends.torch_native.encoder import TorchEncoderAttention
from thalweg.backends.torch_native.general_delta import GENERAL_DELTA
from thalweg.backends.torch_native.indexer import INDEXER
from thalweg.backends.torch_native.linear import LINEAR
from thalweg.backends.torch_native.logits import LOGITS
from thalweg.backends.torch_native.recurrence import RECURRENCE
from thalweg.backends.torch_native.sampling import SAMPLING
from thalweg.hal.attention import AttentionBackend
from thalweg.hal.op import Kernel

KERNELS: tuple[Kernel, ...] = (*LINEAR, *ELEMENTWISE, *GENERAL_DELTA, *RECURRENCE, *INDEXER, *CROSS, *LOGITS, *SAMPLING)
ATTENTION: tuple[AttentionBackend, ...] = (
    TorchPagedAttention(batch_invariant=False),
    TorchPagedAttention(),
    TorchEncoderAttention(),
)

__all__ = ["ATTENTION", "KERNELS"]
