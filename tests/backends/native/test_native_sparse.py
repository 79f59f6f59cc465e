"""Attention to listed keys, their selection, gates and layer norms in compiled code, at every instruction set: the samples of
each op, the same bits in any batch, views and recorded steps."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from thalweg.backends.cpu.native import NativeLibrary, gates, sparse
from thalweg.backends.cpu.native.token_attention import NativeTokenAttention
from thalweg.backends.cpu.recording import Arena, RecordingExecutable
from thalweg.backends.torch_native.attention import TorchPagedAttention
from thalweg.hal import ops
from thalweg.hal.attention import AttnSpec
from thalweg.hal.step import StateBox, StepResult
from thalweg.hal.testing import cases
from thalweg.hal.testing import sequences as seq

OPS = (
    ops.chosen_attention, ops.compressed_attention, ops.block_attention, ops.cross_attention, ops.index_top, ops.block_top,
    ops.pool_windows, ops.layer_norm, ops.sigmoid_mul, ops.delta_gates, ops.channel_delta_gates, ops.hyper_weights,
)  # fmt: skip
SAMPLES = [
    pytest.param(op, sample, dtype, id=f"{op.name}-{sample.name}-{dtype}")
    for op in OPS for sample in op.samples for dtype in ("float32", "bfloat16")
]  # fmt: skip


def kernel(library: NativeLibrary, name: str) -> Any:
    return next(k for k in (*sparse.kernels(library), *gates.kernels(library)) if k.op == name)


def several(found: Any) -> tuple[torch.Tensor, ...]:
    return found if isinstance(found, tuple) else (found,)


@pytest.mark.parametrize(("op", "sample", "dtype"), SAMPLES)
def test_samples(library: NativeLibrary, op: Any, sample: Any, dtype: str) -> None:
    args = cases.host_arguments(op, sample, dtype)
    if kernel(library, op.name).supports(cases.spec(op, sample, args, dtype)):
        pytest.skip("refused")
    found = several(kernel(library, op.name).run(*args, **sample.static))
    for got, want in zip(found, cases.reference(op, sample, args), strict=True):
        assert cases.difference(got.float().numpy(), want) <= op.tolerances[dtype]


def test_a_few_keys_are_summed_as_many_are(library: NativeLibrary) -> None:
    """Gaps in the list of keys, and where they are, change nothing."""
    g = torch.Generator().manual_seed(0)
    q, held = torch.randn(1, 5, 32, generator=g).bfloat16(), torch.randn(40, 16, 32, generator=g).bfloat16()
    table, chosen = torch.arange(40, dtype=torch.int32)[None], torch.randperm(600, generator=g).to(torch.int32)[None, :300]
    gaps = torch.full((1, 700), -1, dtype=torch.int32)
    gaps[0, torch.randperm(700, generator=g)[:300].sort().values] = chosen[0]
    run, where = kernel(library, "chosen_attention").run, torch.zeros(1, dtype=torch.int32)
    whole = run(q, held, table, where, chosen, scale=0.2, latent=16)
    assert torch.equal(run(q, held, table, where, gaps, scale=0.2, latent=16), whole)
    wide = torch.randn(40, 16, 50, generator=g).bfloat16()
    wide[..., 7:39] = held  # a cache inside wider rows
    assert torch.equal(run(q, wide[..., 7:39], table, where, chosen, scale=0.2, latent=16), whole)


def test_a_choice_in_parts_is_the_same(library: NativeLibrary, monkeypatch: pytest.MonkeyPatch) -> None:
    """More rows than scores are held of at once."""
    g = torch.Generator().manual_seed(1)
    held, table = torch.randn(900, 32, 16, generator=g), torch.randperm(800, generator=g).to(torch.int32)[None]
    q, by = torch.randn(90, 4, 16, generator=g), torch.randn(90, 4, generator=g)
    seq_of, at = torch.zeros(90, dtype=torch.int32), torch.randint(0, 25600, (90,), generator=g, dtype=torch.int32)
    found = kernel(library, "index_top").run(q, by, held, table, seq_of, at, top=33)
    each = [kernel(library, "index_top").run(*(t[i : i + 1] for t in (q, by)), held, table, seq_of[:1], at[i : i + 1], top=33)
            for i in (0, 40, 89)]  # fmt: skip
    assert torch.equal(torch.cat(each), found[[0, 40, 89]])
    assert torch.equal(found[::30], ops.index_top.reference(q[::30], by[::30], held, table, seq_of[::30], at[::30], top=33))


@pytest.mark.parametrize("window", [0, 21])
def test_attention_in_the_order_of_tokens(library: NativeLibrary, window: int) -> None:
    """A decoding sequence, a chunk and a prompt: as torch's attention, from the same cache."""
    spec = AttnSpec(6, 2, 80, 0.1, "float32", "window" if window else "full", window)
    table, starts, lengths = np.arange(1, 25, dtype=np.int32).reshape(3, 8), [90, 37, 0], [1, 11, 33]
    g = torch.Generator().manual_seed(3)
    q, k, v = (torch.randn(sum(lengths), heads, 80, generator=g) for heads in (6, 2, 2))
    outs, caches = [], []
    for backend in (TorchPagedAttention(), NativeTokenAttention(library)):
        kv = torch.randn(25, *backend.layout(spec, 16).shape, generator=torch.Generator().manual_seed(4))
        batch = seq.batch_of(table, starts, lengths)
        batch = type(batch)(**{f: getattr(batch, f) for f in batch.__dataclass_fields__} | {"metadata": ({},)})
        out, kv = backend.attend(q, k, v, kv, batch.map(torch.from_numpy), 0, spec)
        outs.append(out)
        caches.append(kv)
    torch.testing.assert_close(outs[1], outs[0], rtol=1e-4, atol=1e-5)
    assert torch.equal(*caches)


def test_gates_in_wider_rows_and_wrong_shapes(library: NativeLibrary) -> None:
    row = torch.randn(5, 200)
    x, gate = row[:, :96].view(5, 4, 24), row[:, 100:104].unsqueeze(-1)
    run = kernel(library, "sigmoid_mul").run
    torch.testing.assert_close(run(x, gate), ops.sigmoid_mul.reference(x, gate), rtol=1e-5, atol=1e-6)
    torch.testing.assert_close(run(row[:, :96], row[:, 100:196]), ops.sigmoid_mul.reference(row[:, :96], row[:, 100:196]))
    with pytest.raises(ValueError, match="does not fit"):
        run(x, gate[:-1])
    with pytest.raises(ValueError, match="does not fit"):
        kernel(library, "layer_norm").run(row, torch.ones(199), eps=1e-5)
    with pytest.raises(ValueError, match="delta_gates"):
        kernel(library, "delta_gates").run(row[:, :4], row[:, :4], torch.ones(5), torch.ones(4))


def test_a_recorded_step_reads_its_jobs_again(library: NativeLibrary) -> None:
    g = torch.Generator().manual_seed(2)
    held, table = torch.randn(9, 16, 32, generator=g), torch.arange(1, 9, dtype=torch.int32).view(2, 4)
    q, by = torch.randn(2, 4, 32, generator=g), torch.randn(2, 4, generator=g)
    choose, read = kernel(library, "index_top").run, kernel(library, "chosen_attention").run

    def step(params: Any, state: Any, b: Any) -> Any:
        chosen = choose(q, by, held, b.block_tables[0], b.token_seq, b.positions, top=7)
        out = read(q, held, b.block_tables[0], b.token_seq, chosen, scale=0.2, latent=32)
        return state, StepResult(b.slots[:, None], b.query, extras={"out": out})

    made = RecordingExecutable(step, None, StateBox(torch.zeros(1)), library, Arena(library))
    for at in (3, 9, 20, 40):
        batch = seq.batch_of(table.numpy(), [at, at + 5], [1, 1])
        batch = type(batch)(**{f: getattr(batch, f) for f in batch.__dataclass_fields__} | {"uniform": 1, "metadata": ({},)})
        got = made(batch).result().extras["out"]
        positions, of = torch.tensor([at, at + 5], dtype=torch.int32), torch.tensor([0, 1], dtype=torch.int32)
        chosen = choose(q, by, held, table, of, positions, top=7)
        np.testing.assert_array_equal(got, read(q, held, table, of, chosen, scale=0.2, latent=32).numpy())
    assert [not isinstance(tape, str) for tape in made._tapes.values()] == [True]
