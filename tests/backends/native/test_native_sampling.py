"""Compiled sampling against the ops' bodies and against arithmetic in float64, at every instruction set: rows with many equals,
flat and steep ones, vocabularies that are no multiple of a vector."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from thalweg.backends.cpu.native import NativeLibrary
from thalweg.backends.cpu.native.sampling import MOST, kernels
from thalweg.hal import ops
from thalweg.hal.noise import noise
from thalweg.hal.op import Binder

INF = float("inf")


def kernel(library: NativeLibrary, name: str) -> Any:
    return next(k.run for k in kernels(library) if k.op == name)


def rows_of(vocab: int, seed: int) -> torch.Tensor:
    """Steep, flat, rounded as bfloat16 is, all equal, mostly cut, one towering, negative, zeros of both signs, steeper."""
    r = np.random.default_rng(seed)
    x = r.normal(size=(9, vocab)) * np.array([3, 0.01, 3, 0, 2, 1, 1, 0, 5])[:, None]
    x[4, r.permutation(vocab)[1 + vocab // 8 :]], x[5, vocab // 2], x[6] = -INF, 60, x[6] - 40
    x[7, ::2] = -0.0
    rows = torch.from_numpy(x.astype(np.float32))
    rows[2] = rows[2].bfloat16().float()
    return rows


def kept_by_definition(x: np.ndarray, k: int, p: float, min_p: float) -> tuple[np.ndarray, float]:
    """(which tokens stay, how close a sum came to top_p without saying so), in float64."""
    order = np.lexsort((np.arange(len(x)), -x))
    x = x[order].astype(np.float64)
    stays = np.exp(x - x[0]) >= min_p
    if k > 0:
        stays &= x >= x[min(k, len(x)) - 1]
    close = 1.0
    if p < 1:
        weight = np.where(stays, np.exp(x - x[0]), 0)
        before = (np.cumsum(weight) - weight) / weight.sum()
        close = float(np.abs(before - p)[stays].min())
        stays &= (before < p) | (np.arange(len(x)) == 0)
    out = np.zeros(len(x), bool)
    out[order[stays]] = True
    return out, close


@pytest.mark.parametrize("vocab", [1, 7, 129, 2000, 30011])
@pytest.mark.sampled(2)
def test_truncation_keeps_what_the_definition_keeps(library: NativeLibrary, vocab: int) -> None:
    x = rows_of(vocab, vocab)
    asked = [(0, 0.9, 0), (50, 1, 0), (5, 0.5, 0), (0, 1, 0.2), (1000, 0.99, 0.001), (0, 0.999, 0), (1, 0.1, 0.9), (3, 0, 0)]
    for k, p, min_p in asked:
        full = torch.full((len(x),), 1.0)
        got = kernel(library, "truncate")(x, (full * k).int(), full * p, full * min_p)
        for row in range(len(x)):
            want, close = kept_by_definition(x[row].numpy(), k, float(np.float32(p)), float(np.float32(min_p)))
            mine = (got[row] > -INF).numpy()
            want &= x[row].numpy() > -INF
            if close > 1e-7:
                np.testing.assert_array_equal(mine, want, err_msg=f"row {row}: {k} {p} {min_p}")
            assert abs(int(mine.sum()) - int(want.sum())) <= 1
            assert torch.equal(got[row][mine], x[row][mine])


def test_a_row_that_asks_for_nothing_stays_as_it_is(library: NativeLibrary) -> None:
    x = rows_of(515, 0)
    nothing, one = torch.zeros(len(x)), torch.ones(len(x))
    assert torch.equal(kernel(library, "truncate")(x, nothing.int(), one, nothing), x)
    assert torch.equal(kernel(library, "truncate")(x, nothing.int() + 515, one, nothing), x)


@pytest.mark.parametrize("vocab", [8, 1000, 30000])
def test_a_share_that_is_reached_exactly_ends_with_the_token_that_reaches_it(library: NativeLibrary, vocab: int) -> None:
    """Equal tokens weigh 1 each, so sums are exact."""
    share = torch.tensor([0.5, 0.25, 0.125])
    none = torch.zeros(3)
    got = kernel(library, "truncate")(torch.full((3, vocab), -2.0), none.int(), share, none)
    assert torch.equal(got > -INF, torch.arange(vocab) < (share * vocab)[:, None])


@pytest.mark.parametrize("vocab", [1, 129, 30011])
def test_the_draw_is_the_definitions(library: NativeLibrary, vocab: int) -> None:
    x, n = rows_of(vocab, 1), 9
    seed = torch.randint(-(2**31), 2**31, (n, 2), dtype=torch.int64).int()
    for at in range(20):
        position = torch.full((n,), at, dtype=torch.int32)
        drawn = kernel(library, "sample")(x, torch.ones(n), seed, position, random=True)
        score = x.numpy() + noise(seed.numpy(), position.numpy(), np.arange(vocab, dtype=np.int32))
        assert drawn.tolist() == score.argmax(1).tolist()


def test_all_at_once_is_the_parts(library: NativeLibrary) -> None:
    """The same bits of truncation, the same draw: a request that wants processed logprobs takes the other way."""
    x, n = rows_of(5003, 2), 9
    r = np.random.default_rng(3)
    temperature = torch.tensor([0.7, 1, 0, 2, 0.01, 1, 0.3, 1.5, 0])
    top_k, top_p = torch.tensor([0, 20, 5, 7, 0, 0, 100, 0, 1]).int(), torch.tensor([0.9, 1, 0.5, 0.8, 1, 0.95, 0.7, 0.2, 1])
    min_p, seed = (
        torch.tensor([0, 0, 0.5, 0, 0.1, 0, 0, 0.05, 0]),
        torch.from_numpy(r.integers(0, 2**31, (n, 2)).astype(np.int32)),
    )
    for at in range(20):
        position = torch.full((n,), at, dtype=torch.int32)
        tokens, most = kernel(library, "draw")(x, temperature, top_k, top_p, min_p, seed, position)
        scaled = x / torch.where(temperature > 0, temperature, 1.0)[:, None]
        kept = kernel(library, "truncate")(scaled, top_k, top_p, min_p)
        assert tokens.tolist() == kernel(library, "sample")(kept, temperature, seed, position, random=True).tolist()
        assert tokens.tolist() == ops.draw(x, temperature, top_k, top_p, min_p, seed, position)[0].tolist()
        assert torch.equal(most, scaled.amax(-1))


def test_what_is_no_number_harms_no_other_row(library: NativeLibrary) -> None:
    x = rows_of(515, 4)
    x[0, 3], x[1], x[3], x[4, 9] = float("nan"), float("nan"), -INF, INF
    one, seed = torch.ones(9), torch.zeros(9, 2, dtype=torch.int32)
    for k, p, min_p in ((0, 1.0, 0.0), (5, 0.9, 0.1)):
        asked = ((one * k).int(), one * p, one * min_p, seed, one.int())
        tokens, most = kernel(library, "draw")(x, one, *asked)
        clean = torch.nan_to_num(x, 0, 0, -INF)
        assert (~(most < INF)).tolist() == [True, True, False, False, True, False, False, False, False]
        assert int(tokens.min()) >= 0
        assert int(tokens.max()) < 515
        whole = [2, 5, 6, 7, 8]
        assert tokens[whole].tolist() == kernel(library, "draw")(clean, one, *asked)[0][whole].tolist()


@pytest.mark.parametrize("k", [0, 1, 20, MOST])
@pytest.mark.parametrize("normalise", [True, False])
def test_the_likeliest_in_order(library: NativeLibrary, k: int, normalise: bool) -> None:
    for vocab in (1, 70, 5003):
        x, tokens = rows_of(vocab, 5), torch.arange(9, dtype=torch.int32) * (vocab - 1) // 8
        got = kernel(library, "logprobs")(x, tokens, k=k, normalise=normalise)
        ids, values, ranks = ops.logprobs.reference(x, tokens, k=k, normalise=False)  # order that no rounding has touched
        assert torch.equal(got[0], ids.int())
        assert torch.equal(got[2], ranks)
        values = ops.logprobs.reference(x, tokens, k=k, normalise=True)[1] if normalise else values
        torch.testing.assert_close(got[1], values, rtol=2e-6, atol=2e-6)


def test_more_of_the_likeliest_are_torchs_to_find(library: NativeLibrary) -> None:
    bound = Binder(kernels(library)).bind(ops.logprobs, k=MOST + 1, normalise=True)
    assert bound.choice.kernel == "reference"


def test_penalties_of_a_long_history(library: NativeLibrary) -> None:
    vocab, n = 1003, 6
    history = torch.randint(-1, vocab + 3, (8, 700), dtype=torch.int32)
    slots, lengths = torch.tensor([3, 1, 7, 0, 2, 5]).int(), torch.tensor([700, 701, 0, 1, 350, 20]).int()
    args = (
        history, slots, lengths, torch.tensor([100, 0, 0, 1, 350, 25]).int(), torch.tensor([1.2, 0.7, 1.5, 1, 1, 1.1]),
        torch.tensor([0.5, -0.5, 1, 0, 0.1, 0]), torch.tensor([0.2, 0, 1, 0, 0, -0.1]),
    )  # fmt: skip
    logits = torch.randn(n, vocab) * 3
    before = logits.clone()
    got = kernel(library, "penalties")(logits, *args)
    torch.testing.assert_close(got, ops.penalties.reference(logits, *args), rtol=1e-6, atol=1e-6)
    assert torch.equal(logits, before)


def test_no_rows_are_none(library: NativeLibrary) -> None:
    x, none, seed = torch.zeros(0, 40), torch.zeros(0), torch.zeros(0, 2, dtype=torch.int32)
    assert kernel(library, "truncate")(x, none.int(), none, none).shape == (0, 40)
    assert kernel(library, "draw")(x, none, none.int(), none, none, seed, none.int())[0].shape == (0,)
    assert kernel(library, "logprobs")(x, none.int(), k=2, normalise=True)[0].shape == (0, 3)


def test_columns_that_do_not_fit_are_refused(library: NativeLibrary) -> None:
    x = torch.zeros(3, 40)
    for bad in (torch.zeros(2), torch.zeros(3, 2)[:, 0]):
        with pytest.raises(ValueError, match="do not fit each other"):
            kernel(library, "truncate")(x, torch.zeros(3).int(), torch.ones(3), bad)


def test_the_first_of_equals_is_chosen_and_nan_stays_in_range(library: NativeLibrary) -> None:
    logits = torch.randn(6, 1003)
    logits[0, 1002], logits[1, 5], logits[1, 900], logits[2] = 9, 9, 9, float("-inf")
    nothing = torch.zeros(6)
    got = kernel(library, "sample")(logits, nothing, nothing, nothing, random=False)
    assert got.tolist() == logits.argmax(-1).tolist()
    logits[3, 7], logits[4] = float("nan"), float("nan")
    got = kernel(library, "sample")(logits, nothing, nothing, nothing, random=False)
    assert int(got.min()) >= 0
    assert int(got.max()) < 1003
