"""Long rows: their keys are summed in segments, which one thread takes in order or several share: never another bit."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from amounts import some

from thalweg.backends.cpu import CpuPlatform, native
from thalweg.backends.cpu.native import NativeLibrary, open_library
from thalweg.backends.cpu.native.attention import NativeAttention
from thalweg.backends.cpu.recording import Arena, RecordingExecutable
from thalweg.backends.eager import EagerExecutable
from thalweg.hal.attention import AttnSpec
from thalweg.hal.platform import Place
from thalweg.hal.step import StateBox, StepBatch, StepResult
from thalweg.hal.testing import sequences as seq
from thalweg.hal.testing.test_attention import TOLERANCE

SEGMENT = int(re.findall(r"SEGMENT = (\d+);", (native.LIBRARY.parent / "src" / "core.h").read_text())[0])
SPECS = {
    "full": AttnSpec(4, 1, 32, 0.2, "bfloat16"),
    "window": AttnSpec(4, 2, 32, 0.2, "float32", "window", SEGMENT + SEGMENT // 3, softcap=8.0),
    "latent": AttnSpec(4, 1, 48, 0.2, "bfloat16", "latent", latent=32),
    "latent-window": AttnSpec(4, 1, 48, 0.2, "float32", "latent", SEGMENT + SEGMENT // 3, latent=32),
    "int8-sinks": AttnSpec(2, 1, 48, 0.2, "bfloat16", sinks=True, kv_dtype="int8"),
}
EDGES = (SEGMENT - 1, SEGMENT, SEGMENT + 1, 2 * SEGMENT, 3 * SEGMENT + 70, 9)
LENGTHS = some((SEGMENT, SEGMENT + 1, 2 * SEGMENT + 70, 9), EDGES)
SIZE = 16


@pytest.fixture(scope="module")
def device() -> Any:
    return CpuPlatform().open(Place())


@pytest.mark.parametrize("name", SPECS)
@pytest.mark.slow
def test_segments_are_the_same_bits_in_any_company_and_by_any_number_of_threads(
    library: NativeLibrary, device: Any, name: str
) -> None:
    """The last token of each sequence: of its prompt in one chunk, in short chunks, decoded alone, and with the others."""
    spec, rng = SPECS[name], np.random.default_rng(5)
    stories = [seq.story(rng, spec, n, 1) for n in LENGTHS]
    table, blocks = seq.tables(rng, stories, SIZE)
    last = [n - 1 for n in LENGTHS]
    outs: dict[str, np.ndarray] = {}
    for threads in some((1, 5), (1, 2, 5)):
        cache = seq.Cache(device, NativeAttention(open_library(threads, library.level)), spec, SIZE, blocks)
        seq.poison(cache, blocks, SIZE, spec)
        whole = cache.attend(seq.batch_of(table, [0] * len(LENGTHS), LENGTHS), *seq.rows(stories, [0] * len(LENGTHS), LENGTHS))
        outs[f"prompt, {threads}"] = whole[np.cumsum(LENGTHS) - 1]
        outs[f"together, {threads}"] = _decoded(cache, table, stories, last, 1)
        ones = [_decoded(cache, table[i : i + 1], [s], [at], 1) for i, (s, at) in enumerate(zip(stories, last, strict=True))]
        outs[f"alone, {threads}"] = np.concatenate(ones)
        outs[f"chunks, {threads}"] = _decoded(cache, table, stories, [n - 7 for n in LENGTHS], 7)[6::7]
    want = np.concatenate([seq.dense(s, spec, getattr(torch, spec.dtype)) for s in stories])
    assert np.abs(outs["prompt, 1"] - want).max() <= TOLERANCE[spec.dtype] * np.abs(want).max()
    for how, got in outs.items():
        np.testing.assert_array_equal(got, outs["prompt, 1"], err_msg=how)


def _decoded(
    cache: seq.Cache, table: np.ndarray, stories: Sequence[seq.SequenceCase], start: Sequence[int], query: int
) -> np.ndarray:
    new = [query] * len(start)
    return cache.attend(seq.batch_of(table, start, new), *seq.rows(stories, start, new))


@pytest.mark.parametrize("edge", [1, 2])
@pytest.mark.parametrize("name", ["window", "latent-window"])
@pytest.mark.sampled(2)
def test_a_window_may_begin_anywhere_in_a_segment(library: NativeLibrary, device: Any, name: str, edge: int) -> None:
    """Each row of a prompt, whose windows end and begin around an edge of segments, as if it were decoded."""
    spec, rng = replace(SPECS[name], window=SEGMENT - 64 * edge), np.random.default_rng(6)
    length = 2 * SEGMENT + 40
    stories = [seq.story(rng, spec, length, length)]
    table, blocks = seq.tables(rng, stories, SIZE)
    one, many = (
        seq.Cache(device, NativeAttention(open_library(n, library.level)), spec, SIZE, blocks) for n in (1, 5)
    )  # one writes what it reads, token by token
    whole = one.attend(seq.batch_of(table, [0], [length]), *seq.rows(stories, [0], [length]))
    many.attend(seq.batch_of(table, [0], [length]), *seq.rows(stories, [0], [length]))
    starts = SEGMENT * np.arange(3)[:, None] + np.arange(-3, 3)
    ends = [int(s) + spec.window - 1 for s in starts.reshape(-1) if 0 <= s + spec.window - 1 < length]
    assert len(ends) >= 6
    for at in (*ends, SEGMENT, length - 1):
        np.testing.assert_array_equal(_decoded(many, table, stories, [at], 1)[0], whole[at])
    dense = seq.dense(stories[0], spec, torch.float32)
    assert np.abs(whole - dense).max() <= TOLERANCE["float32"] * np.abs(dense).max()


def _contexts() -> Iterator[list[int]]:
    """Of two sequences, step by step: past an edge of segments, while the layout stays."""
    for at in range(2 * SEGMENT - 3, 2 * SEGMENT + 4):
        yield [at, at // 5]


@pytest.mark.parametrize("threads", [1, 5])
def test_a_recorded_step_cuts_what_each_batch_holds(library: NativeLibrary, device: Any, threads: int) -> None:
    spec, rng = SPECS["full"], np.random.default_rng(7)
    lib = open_library(threads, library.level)
    backend = NativeAttention(lib)
    table = 1 + rng.permutation(512).astype(np.int32).reshape(2, 256)
    cache = torch.from_numpy(rng.standard_normal((513, *backend.layout(spec, SIZE).shape))).to(torch.bfloat16)

    def step(params: Any, kv: Any, b: StepBatch) -> Any:
        heads = b.get(seq.Heads)
        q, k, v = (a.to(torch.bfloat16) for a in (heads.q, heads.k, heads.v))
        out, kv = backend.attend(q, k, v, kv, b, 0, spec)
        return kv, StepResult(b.slots[:, None], b.query, extras={"out": out.to(torch.float32)})

    recorded = RecordingExecutable(step, None, StateBox(cache.clone()), lib, Arena(lib))
    written = EagerExecutable(step, None, StateBox(cache.clone()))
    for context in _contexts():
        new = seq.Heads(*(rng.standard_normal((2, heads, 32)).astype(np.float32) for heads in (4, 1, 1)))
        batch = replace(seq.batch_of(table, context, [1, 1]), uniform=1, parts=(new,))
        got, want = (exe(replace(batch, metadata=({},))).result().extras["out"] for exe in (recorded, written))
        np.testing.assert_array_equal(got, want, err_msg=f"{context}")
    assert [not isinstance(t, str) for t in recorded._tapes.values()] == [True]
