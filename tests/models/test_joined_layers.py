"""Layers whose norm or gate is one op with a product, and steps whose beginning and end are one op each, on a device that has
such kernels: here the ops' bodies."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
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
    "qwen3-moe": (True, True), "bloom": (False, False), "diffllama": (True, True),
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


def _open(**bodies: Counting) -> EagerDevice:
    """The reference device with these kernels."""
    reference = load("reference").open(Place())
    kernels = [Kernel(op, "joined", body, pack=OF_BODIES, batch_invariant=True) for op, body in bodies.items()]
    return EagerDevice(reference.info, kernels, reference.attention)


@pytest.mark.parametrize("family", FAMILIES)
def test_a_model_computes_the_same_with_joined_layers(family: str, tmp_path: Path) -> None:
    path = make_checkpoint(family, tmp_path, tokenizer=False)
    want = Rig(path).generate(PROMPTS, 2, chunk=6, budget=8)
    norms, gates = Counting(ops.rms_norm_linear.reference), Counting(ops.act_and_mul_linear.reference)
    got = Rig(path, device=_open(rms_norm_linear=norms, act_and_mul_linear=gates)).generate(PROMPTS, 2, chunk=6, budget=8)
    for w, g in zip(want, got, strict=True):
        assert g.tokens == w.tokens
        assert g.logprobs == w.logprobs
    assert (norms.calls > 0, gates.calls > 0) == FAMILIES[family]
    assert (norms.first > 0) == FAMILIES[family][0], "the first layer has no residual stream yet"


def test_a_step_whose_beginning_and_end_are_one_op_each_is_the_same(tmp_path: Path) -> None:
    path = make_checkpoint("llama", tmp_path, tokenizer=False)
    plain = Rig(path)
    want = plain.generate(PROMPTS, 4, chunk=6, budget=8)
    enter, emit = Counting(ops.enter_tokens.reference), Counting(ops.emit_tokens.reference)
    rig = Rig(path, device=_open(enter_tokens=enter, emit_tokens=emit))
    got = rig.generate(PROMPTS, 4, chunk=6, budget=8)
    for w, g in zip(want, got, strict=True):
        assert g.tokens == w.tokens
        assert g.logprobs == w.logprobs
    assert enter.calls == emit.calls > 4
    history, kept = (r.box.value["history"][1:] for r in (plain, rig))
    assert torch.equal(history, kept)
