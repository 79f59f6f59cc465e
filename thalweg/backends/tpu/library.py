"""Which kernels the TPU device offers, in order of preference."""

from __future__ import annotations

from thalweg.backends.tpu import TpuOptions, lora, matmul, moe, ngrams, recurrence, sampling
from thalweg.hal.op import Kernel


def kernels(options: TpuOptions, on_host: bool) -> tuple[Kernel, ...]:
    """on_host: there is no hardware for Pallas kernels, which are then interpreted, and only if they are asked for."""
    if on_host and options.attention != "pallas":
        return (*_experts(options, on_host), *sampling.KERNELS, moe.ROUTE, ngrams.HASH, lora.ADD, *recurrence.KERNELS)
    return (
        *matmul.kernels(on_host),
        *_experts(options, on_host),
        *sampling.pallas(on_host),
        *sampling.KERNELS,
        moe.ROUTE,
        ngrams.HASH,
        lora.ADD,
        *recurrence.KERNELS,
    )


def _experts(options: TpuOptions, on_host: bool) -> tuple[Kernel, ...]:
    result = moe.kernels(on_host)
    if options.experts == "auto":
        return () if on_host and options.attention != "pallas" else result
    name = {"pallas": "pallas-grouped", "jax": "jax-megablox", "xla": ""}[options.experts]
    return tuple(k for k in result if k.name == name)
