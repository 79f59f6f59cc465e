"""The rates of a machine that bound every figure: memory, L2 cache, matrix products."""

from __future__ import annotations

import gc
import time
from collections.abc import Callable
from typing import Any

import torch

L2_BYTES = 16 << 20
"""Of the array that is read from the L2 cache, where a third of the cache holds that many."""
L2_PASSES = 200


def torch_device(platform: str) -> torch.device:
    """torch's name of the device that a platform drives; the host for platforms that run there."""
    kind = {"cuda": "cuda", "rocm": "cuda", "xpu": "xpu"}.get(platform, "cpu")
    return torch.device(kind, 0) if kind != "cpu" else torch.device("cpu")


def device_name(device: torch.device) -> str:
    if device.type == "cpu":
        return "host"
    return str(getattr(torch, device.type).get_device_name(device))


def wait(device: torch.device) -> None:
    if device.type != "cpu":
        torch.accelerator.synchronize()


def tidy(device: torch.device) -> None:
    """Give back what nobody uses, as what is measured next counts free memory."""
    gc.collect()
    if device.type != "cpu":
        torch.accelerator.empty_cache()


def best(run: Callable[[], Any], device: torch.device, times: int, inner: int) -> float:
    """Seconds of one run: the best of `times` rounds of `inner` each."""
    run()
    seconds = []
    for _ in range(times):
        wait(device)
        start = time.perf_counter()
        for _ in range(inner):
            run()
        wait(device)
        seconds.append((time.perf_counter() - start) / inner)
    return min(seconds)


def measure_rates(device: torch.device, quick: bool) -> dict[str, Any]:
    """Bytes per second read (a sum over memory far beyond any cache) and copied (read + write). Products per second of
    bfloat16 matrices of random numbers, as those draw the power that real ones do. Bytes per second read from the L2 cache,
    or why not."""
    size, n = (1 << 26, 512) if quick else (1 << 32, 8192)
    x = torch.ones(size // 4, dtype=torch.float32, device=device)
    y = torch.empty_like(x)
    a, b = (torch.randn(n, n, dtype=torch.float32, device=device).to(torch.bfloat16) for _ in range(2))
    c = torch.empty_like(a)
    rounds = 3 if quick else 10
    read = best(lambda: torch.sum(x), device, rounds, 5)
    copy = best(lambda: y.copy_(x), device, rounds, 5)
    product = best(lambda: torch.mm(a, b, out=c), device, rounds, 5)
    return {
        "read_bytes_per_second": size / read,
        "copy_bytes_per_second": 2 * size / copy,
        "bandwidth": max(size / read, 2 * size / copy),
        "matrix_flops_per_second": 2 * n**3 / product,
        **measure_l2(device),
    }


def measure_l2(device: torch.device) -> dict[str, Any]:
    """l2_bytes_per_second, from an array of l2_bytes; or l2_why there is none. RuntimeError if sums are wrong: then it was
    not read."""
    if device.type == "cpu":
        return {"l2_why": "the host reads its own caches otherwise"}
    held = getattr(getattr(torch, device.type).get_device_properties(device), "L2_cache_size", 0)
    if held < 1 << 20:
        return {"l2_why": f"the driver says that the L2 cache has {held} bytes"}
    try:
        from l2 import BLOCK, read_again
    except ImportError:
        return {"l2_why": "triton is not installed"}
    parts = min(L2_BYTES, held // 3) // (4 * BLOCK)
    x = torch.ones(parts * BLOCK, dtype=torch.float32, device=device)
    if not bool((read_again(x, L2_PASSES) == L2_PASSES * BLOCK).all()):
        raise RuntimeError("reading an array from the L2 cache gave wrong sums")
    seconds = best(lambda: read_again(x, L2_PASSES), device, 5, 3)
    return {"l2_bytes_per_second": x.nbytes * L2_PASSES / seconds, "l2_bytes": x.nbytes}
