"""Decodes whose last program joins the spans of a sequence, in the interpreter: run by test_triton_library in a process of its
own. The launch that joins otherwise is the oracle, bit for bit."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch

from thalweg.backends.triton_kernels import paged
from thalweg.backends.triton_kernels.testing import InterpretOptions, InterpretPlatform
from thalweg.hal.attention import AttnSpec, QKPrologue
from thalweg.hal.device import Device
from thalweg.hal.platform import Place
from thalweg.hal.testing import sequences as seq

SPECS = {
    "full": AttnSpec(6, 2, 32, 0.2, "float32"),
    "window": AttnSpec(4, 2, 32, 0.2, "float32", "window", 600, softcap=3.0),
    "sinks": AttnSpec(4, 2, 32, 0.2, "float32", sinks=True),
    "int8": AttnSpec(4, 2, 32, 0.2, "float32", kv_dtype="int8"),
    "half": AttnSpec(4, 4, 80, 0.1, "float16"),
}
CONTEXT = (511, 0, 1199, 69, 512)
"""Tokens in the cache: spans have 512 keys, so these have 1, 1, 3, 1 and 2 of them."""
STEPS = {"decode": ((1, 1, 1, 1, 1), 1), "verify": ((3, 3, 3, 3, 3), 3), "prompts too": ((1, 5, 1, 7, 1), 0)}
"""New tokens, and how many each sequence has, 0 where they differ."""


@pytest.fixture(scope="module")
def devices() -> tuple[Device, Device]:
    """Without and with it."""
    made = (InterpretPlatform().with_options(InterpretOptions(joined=on)).open(Place()) for on in (False, True))
    return next(made), next(made)


@pytest.mark.parametrize("which", [0, 1], ids=["variant", "exact"])
@pytest.mark.parametrize("name", SPECS)
@pytest.mark.parametrize("step", STEPS)
def test_the_last_program_of_a_sequence_gives_the_bits_of_the_launch_that_joins(
    devices: tuple[Device, Device], step: str, name: str, which: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    if step != "decode" and name not in ("full", "window"):
        pytest.skip("the same code for every spec")
    launched: list[Any] = []
    plain = paged.join

    class Watched:
        def __getitem__(self, grid: Any) -> Any:
            launched.append(grid)
            return plain[grid]

    monkeypatch.setattr(paged, "join", Watched())
    prologue = QKPrologue(32, eps=1e-3) if name == "full" else None
    outs = [_attend(device, SPECS[name], *STEPS[step], which, prologue) for device in devices]
    assert len(launched) == 1  # of the first device
    assert torch.isfinite(outs[0]).all()
    assert torch.equal(*outs)


def _attend(
    device: Device, spec: AttnSpec, query: tuple[int, ...], uniform: int, which: int, prologue: QKPrologue | None
) -> torch.Tensor:  # fmt: skip
    """The result of a step over a cache that holds CONTEXT, whose values are the same for each device."""
    backend, rng, size = device.attention[which], torch.Generator().manual_seed(3), 16
    kind = getattr(torch, spec.dtype)
    columns = -(-(max(CONTEXT) + 8) // size)
    table = 1 + np.arange(len(CONTEXT) * columns, dtype=np.int32).reshape(len(CONTEXT), columns)
    kv = device.alloc_kv(backend.layout(spec, size), int(table.max()) + 1)

    def batch_of(rows: list[int], start: tuple[int, ...], new: tuple[int, ...], uniform: int) -> Any:
        host = replace(seq.batch_of(table[rows], list(start), list(new)), uniform=uniform)
        host.metadata = (backend.metadata(host, 0, spec, None),)
        return host.map(lambda a: torch.from_numpy(np.array(a)))

    def draw(tokens: int, heads: int) -> torch.Tensor:
        return torch.randn(tokens, heads, spec.head_dim, generator=rng).to(kind)

    old = [i for i, n in enumerate(CONTEXT) if n]
    held = tuple(CONTEXT[i] for i in old)
    backend.store(*(draw(sum(held), spec.kv_heads) for _ in "kv"), kv, batch_of(old, (0,) * len(old), held, 0), 0, spec)  # type: ignore[attr-defined]
    tokens, every = sum(query), list(range(len(CONTEXT)))
    q, k, v = (draw(tokens, h) for h in (spec.heads, spec.kv_heads, spec.kv_heads))
    sinks = torch.randn(spec.heads, generator=rng) if spec.sinks else None
    batch = batch_of(every, CONTEXT, query, uniform)
    if prologue is None:
        return backend.attend(q, k, v, kv, batch, 0, spec, sinks)[0]
    angles = torch.randn(max(CONTEXT) + 8, prologue.rotary_dim, generator=rng)
    weights = (torch.randn(spec.head_dim, generator=rng), torch.randn(spec.head_dim, generator=rng))
    return backend.attend_fused(q, k, v, kv, batch, 0, spec, prologue, angles, weights, sinks)[0]
