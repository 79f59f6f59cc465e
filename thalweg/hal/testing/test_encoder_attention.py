"""Attention of encoders: every token of a sequence sees every other, whatever else is in the step."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch

from thalweg.hal.attention import AttentionBackend, AttnSpec
from thalweg.hal.device import Device
from thalweg.hal.step import StepShape
from thalweg.hal.testing import sequences as seq
from thalweg.hal.testing.cases import rng
from thalweg.hal.testing.test_attention import TOLERANCE

SPECS = {
    "mha": AttnSpec(4, 4, 32, 32**-0.5, "float32", "encoder"),
    "gqa": AttnSpec(8, 2, 64, 0.2, "float32", "encoder"),
    "softcap": AttnSpec(4, 2, 32, 0.3, "float32", "encoder", softcap=5.0),
    "window": AttnSpec(4, 2, 32, 0.3, "float32", "encoder", window=9),
    "bias": AttnSpec(4, 2, 32, 0.3, "float32", "encoder", reach=20),
    "placed": AttnSpec(3, 3, 32, 0.1, "float32", "encoder", reach=20, placed=True),
    "both": AttnSpec(2, 2, 64, 0.3, "float32", "encoder", window=33, reach=20),
}
LENGTHS = (37, 1, 300, 64, 2)


@pytest.fixture(params=SPECS)
def spec(request: pytest.FixtureRequest) -> AttnSpec:
    return SPECS[request.param]


def _ready(attention: AttentionBackend, spec: AttnSpec, dtype: str) -> AttnSpec:
    spec = replace(spec, dtype=dtype)
    if (why := attention.supports(spec)) is not None:
        pytest.skip(f"{attention.name} refuses: {why}")
    return spec


def _attend(
    device: Device, attention: AttentionBackend, spec: AttnSpec, stories: list[seq.SequenceCase], shape: StepShape | None = None
) -> list[np.ndarray]:
    """The outputs of each story's tokens, computed in one step."""
    table, blocks = seq.tables(rng("encoder tables"), stories, 16)
    start, query = [0] * len(stories), [s.length for s in stories]
    cache = seq.Cache(device, attention, spec, 16, blocks)
    out = cache.attend(seq.batch_of(table, start, query), *seq.rows(stories, start, query), shape=shape)
    return np.split(out, np.cumsum(query)[:-1])


def _dense(s: seq.SequenceCase, spec: AttnSpec, dtype: torch.dtype) -> np.ndarray:
    """softmax(q k^T * scale + bias) v over the whole sequence, or each token's window, in float64, inputs rounded to dtype."""
    q, k, v = (torch.from_numpy(a).to(dtype).double().numpy() for a in (s.q, s.k, s.v))
    share = spec.heads // spec.kv_heads
    scores = np.einsum("qhd,khd->hqk", q, k.repeat(share, 1)) * spec.scale
    if spec.softcap:
        scores = spec.softcap * np.tanh(scores / spec.softcap)
    at = np.arange(s.length)
    apart = at[None] - at[:, None]
    if (bias := seq.bias(spec)) is not None:
        scores = scores + bias[:, np.clip(apart, -spec.reach, spec.reach) + spec.reach]
    if (placed := seq.places(spec)) is not None:
        row, *both = placed
        met = row[np.clip(apart, -spec.reach, spec.reach) + spec.reach]
        keys, queries = (torch.from_numpy(a).to(dtype).double().numpy()[met] for a in both)  # [n, n, heads, D]
        scores = scores + (np.einsum("qhd,qkhd->hqk", q, keys) + np.einsum("khd,qkhd->hqk", k, queries)) * spec.scale
    if spec.window:
        scores = np.where(abs(apart) < spec.window, scores, -np.inf)
    weights = np.exp(scores - scores.max(-1, keepdims=True))
    return np.asarray(np.einsum("hqk,khd->qhd", weights / weights.sum(-1, keepdims=True), v.repeat(share, 1)))


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_a_mixed_batch_equals_dense_attention_padded_or_not(device: Device, attention: Any, spec: AttnSpec, dtype: str) -> None:
    spec = _ready(attention, spec, dtype)
    stories = [seq.story(rng("encoder", n), spec, n, n) for n in LENGTHS]
    for shape in (None, StepShape(tokens=512, seqs=8, blocks=50)):
        for got, s in zip(_attend(device, attention, spec, stories, shape), stories, strict=True):
            want = _dense(s, spec, getattr(torch, dtype))
            assert np.abs(got - want).max() <= TOLERANCE[dtype] * np.abs(want).max()


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_a_sequence_is_the_same_bits_alone_and_in_a_crowd(device: Device, attention: Any, spec: AttnSpec, dtype: str) -> None:
    spec = _ready(attention, spec, dtype)
    if not attention.batch_invariant:
        pytest.skip(f"{attention.name} does not claim it")
    stories = [seq.story(rng("encoder", n), spec, n, n) for n in LENGTHS]
    for got, s in zip(_attend(device, attention, spec, stories), stories, strict=True):
        np.testing.assert_array_equal(_attend(device, attention, spec, [s])[0], got)


def test_blocks_of_an_encoder_hold_nothing(device: Device, attention: Any, spec: AttnSpec) -> None:
    spec = _ready(attention, spec, "float32")
    assert attention.layout(spec, 16).bytes_per_block == 0
