"""Layers whose norm or gate is one op with a product, on a device that has such kernels: here the ops' bodies."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from rig import Rig
from zoo import make_checkpoint

from thalweg.backends.eager import EagerDevice
from thalweg.hal import ops
from thalweg.hal.discovery import load
from thalweg.hal.op import OF_BODIES, Kernel
from thalweg.hal.platform import Place

PROMPTS = ([5, 9, 2, 7, 7, 1, 30, 4, 8, 11, 3], [3, 1, 4])
FAMILIES = {
    "llama": (True, True), "gemma2": (True, True), "qwen2": (True, True), "cohere": (False, True), "granite": (True, True),
    "qwen3-moe": (True, True), "bloom": (False, False),
}  # fmt: skip
"""Family -> has it norms, and gates, that only one product reads? A parallel layer's norm has two readers."""


class Counting:
    """Runs an op's body and counts its calls."""

    def __init__(self, body: Any) -> None:
        self.body, self.calls, self.first = body, 0, 0

    def __call__(self, *args: Any, **static: Any) -> Any:
        self.calls += 1
        self.first += args[1] is None
        return self.body(*args, **static)


@pytest.mark.parametrize("family", FAMILIES)
def test_a_model_computes_the_same_with_joined_layers(family: str, tmp_path: Path) -> None:
    path = make_checkpoint(family, tmp_path, tokenizer=False)
    want = Rig(path).generate(PROMPTS, 2, chunk=6, budget=8)
    norms, gates = Counting(ops.rms_norm_linear.reference), Counting(ops.act_and_mul_linear.reference)
    kernels = [Kernel("rms_norm_linear", "joined", norms, pack=OF_BODIES, batch_invariant=True),
               Kernel("act_and_mul_linear", "joined", gates, pack=OF_BODIES, batch_invariant=True)]  # fmt: skip
    reference = load("reference").open(Place())
    rig = Rig(path, device=EagerDevice(reference.info, kernels, reference.attention))
    got = rig.generate(PROMPTS, 2, chunk=6, budget=8)
    for w, g in zip(want, got, strict=True):
        assert g.tokens == w.tokens
        assert g.logprobs == w.logprobs
    assert (norms.calls > 0, gates.calls > 0) == FAMILIES[family]
    assert (norms.first > 0) == FAMILIES[family][0], "the first layer has no residual stream yet"
