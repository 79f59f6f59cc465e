"""Norms and rotary positions done on the way to attention: bit for bit what the compiled ops and attention give."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch

from thalweg import LLM
from thalweg.backends.cpu.native import NativeLibrary, levels
from thalweg.backends.cpu.native.attention import NativeAttention
from thalweg.backends.cpu.native.rows import NativeRowOps
from thalweg.backends.cpu.recording import Arena, RecordingExecutable
from thalweg.hal.attention import AttnSpec, QKPrologue
from thalweg.hal.step import SCRATCH, StateBox, StepBatch, StepResult
from thalweg.hal.testing import sequences as seq

CASES = {
    "norms": (AttnSpec(16, 8, 128, 128**-0.5, "bfloat16"), QKPrologue(128, eps=1e-6)),
    "no-norms": (AttnSpec(4, 4, 64, 0.125, "bfloat16"), QKPrologue(64)),
    "part-window": (AttnSpec(6, 2, 80, 0.1, "bfloat16", "window", 21), QKPrologue(24, eps=1e-2)),
    "part-int8": (AttnSpec(6, 1, 96, 0.1, "bfloat16", kv_dtype="int8"), QKPrologue(50, eps=1e-6)),
    "pairs": (AttnSpec(4, 2, 64, 0.125, "bfloat16"), QKPrologue(64, interleaved=True, eps=1e-6)),
    "pairs-part-int8": (AttnSpec(4, 1, 80, 0.1, "bfloat16", kv_dtype="int8"), QKPrologue(40, interleaved=True)),
    "sinks-int8": (AttnSpec(4, 2, 16, 0.25, "bfloat16", sinks=True, kv_dtype="int8"), QKPrologue(16)),
}
MIX = [(1, 1), (37, 1), (129, 1), (45, 20), (64, 64), (70, 2)]
"""(length, new tokens)"""
SIZE = 16


class Case:
    """One layer's q, k and v as a projection leaves them, and both ways on."""

    def __init__(self, library: NativeLibrary, spec: AttnSpec, prologue: QKPrologue, tokens: int, blocks: int) -> None:
        self.spec, self.prologue, self.backend, self.rows = spec, prologue, NativeAttention(library), NativeRowOps(library)
        kind, d = getattr(torch, spec.dtype), spec.head_dim
        generator = torch.Generator().manual_seed(3)
        row = torch.randn(tokens, (spec.heads + 2 * spec.kv_heads) * d, generator=generator).to(kind)
        cuts = [spec.heads * d, spec.kv_heads * d, spec.kv_heads * d]
        self.q, self.k, self.v = (x.unflatten(-1, (-1, d)) for x in row.split(cuts, -1))
        self.table = torch.randn(200, prologue.rotary_dim, generator=generator)
        self.weights = tuple(torch.randn(2, d, generator=generator).to(kind)) if prologue.eps is not None else None
        self.sinks = torch.randn(spec.heads, generator=generator).to(kind) if spec.sinks else None
        layout = self.backend.layout(spec, SIZE)
        cache = torch.zeros(blocks, *layout.shape, dtype=getattr(torch, layout.dtype))
        self.cache = cache.random_(-100, 100, generator=generator) if spec.kv_dtype else cache.normal_(generator=generator)
        if spec.kv_dtype:  # codes with scales that are numbers
            scales = cache.view(blocks, -1)[:, 2 * spec.kv_heads * SIZE * d :].view(torch.float32)
            scales.copy_(torch.rand(scales.shape, generator=generator))

    def by_ops(self, kv: torch.Tensor, batch: StepBatch) -> torch.Tensor:
        q, k = self.q, self.k
        if self.weights:
            q, k = (self.rows.rms_norm(x, w, eps=self.prologue.eps or 0.0) for x, w in zip((q, k), self.weights, strict=True))
        facts = {"rotary_dim": self.prologue.rotary_dim, "interleaved": self.prologue.interleaved}
        q, k = self.rows.rope(q, k, batch.positions, self.table, **facts)
        return self.backend.attend(q, k, self.v, kv, batch, 0, self.spec, self.sinks)[0]

    def at_once(self, kv: torch.Tensor, batch: StepBatch) -> torch.Tensor:
        weights: Any = self.weights
        assert self.backend.fuses(self.spec, self.prologue) is None
        return self.backend.attend_fused(
            self.q, self.k, self.v, kv, batch, 0, self.spec, self.prologue, self.table, weights, self.sinks
        )[0]


@pytest.mark.parametrize("dtype", ["bfloat16", "float32"])
@pytest.mark.parametrize("name", CASES)
def test_outputs_and_cache_have_the_bits_of_the_ops(library: NativeLibrary, name: str, dtype: str) -> None:
    spec, prologue = CASES[name]
    rng = np.random.default_rng(1)
    start, query = [length - new for length, new in MIX], [new for _, new in MIX]
    table = 1 + rng.permutation(len(MIX) * 9).astype(np.int32).reshape(len(MIX), 9)
    case = Case(library, replace(spec, dtype=dtype), prologue, sum(query), table.size + 1)
    batch = seq.batch_of(table, start, query)
    batch.slots[1] = SCRATCH  # padding: written to block 0, and no row of it
    told = batch.map(torch.from_numpy)
    kvs = [case.cache.clone() for _ in range(2)]
    want, got = case.by_ops(kvs[0], replace(told, metadata=())), case.at_once(kvs[1], replace(told, metadata=()))
    assert want.isfinite().all()
    assert torch.equal(got, want)
    assert torch.equal(kvs[1].view(torch.uint8), kvs[0].view(torch.uint8))
    assert not torch.equal(kvs[0].view(torch.uint8), case.cache.view(torch.uint8))


@pytest.mark.parametrize("name", ["norms", "part-int8"])
def test_recorded_it_reads_each_batchs_positions(library: NativeLibrary, name: str) -> None:
    spec, prologue = CASES[name]
    case = Case(library, spec, prologue, 2, 33)
    table = np.arange(1, 17, dtype=np.int32).reshape(2, 8)
    results = []
    for way in (case.at_once, case.by_ops):

        def step(params: Any, kv: Any, b: StepBatch, way: Any = way) -> Any:
            outs = [way(kv, b).float(), way(kv, b).float()]  # as two layers, which share the step's plan
            return kv, StepResult(b.slots[:, None], b.query, extras={"out": torch.stack(outs)})

        exe = RecordingExecutable(step, None, StateBox(case.cache.clone()), library, Arena(library))
        batches = [replace(seq.batch_of(table, [at, 3 * at], [1, 1]), uniform=1, metadata=({},)) for at in (0, 7, 8, 20, 33)]
        results.append([exe(b).result().extras["out"] for b in batches])
        assert [not isinstance(t, str) for t in exe._tapes.values()] == [True]
    np.testing.assert_array_equal(results[0], results[1])
    assert len({out.tobytes() for out in results[0]}) == 5


def test_what_it_does_not_turn_is_refused_in_words_and_what_does_not_fit_is_an_error(library: NativeLibrary) -> None:
    spec, prologue = CASES["norms"]
    backend = NativeAttention(library)
    assert "padded to 128" in str(backend.fuses(replace(spec, head_dim=120), replace(prologue, rotary_dim=120)))
    assert "an even number" in str(backend.fuses(spec, replace(prologue, rotary_dim=31)))
    assert "128 elements, not 130" in str(backend.fuses(spec, replace(prologue, rotary_dim=130)))
    case = Case(library, spec, prologue, 1, 2)
    batch = replace(seq.batch_of(np.ones((1, 1), np.int32), [0], [1]).map(torch.from_numpy), metadata=())
    for name, value, words in (
        ("table", case.table[:, :64], "a table of"),
        ("table", case.table.double(), "a table of"),
        ("weights", None, "the norms' weights"),
        ("weights", tuple(w.float() for w in case.weights or ()), "the norms' weights"),
    ):
        kept = getattr(case, name)
        setattr(case, name, value)
        with pytest.raises(ValueError, match=words):
            case.at_once(case.cache, batch)
        setattr(case, name, kept)


def test_a_model_gets_it_and_its_plan_says_so(library: NativeLibrary) -> None:
    if library.level != levels()[0]:
        pytest.skip("at the best instruction set only")
    llm = LLM("thalweg-nano", device="cpu", max_model_len=64, max_num_seqs=2)
    lines = [line for line in llm.kernel_plan if line.startswith(("attend_fused(", "rope("))]
    llm.shutdown()
    assert len(lines) == 1
    assert f") -> native-{library.level} [batch-invariant]" in lines[0]
