"""The bodies that define the ops, against implementations nobody here wrote: transformers, numpy, plain loops."""

from __future__ import annotations

import copy
import math

import numpy as np
import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils._pytree import tree_leaves, tree_map
from transformers import LlamaConfig
from transformers.generation import logits_process as hf
from transformers.models.gptj import modeling_gptj
from transformers.models.llama import modeling_llama

from thalweg.hal import noise, ops
from thalweg.hal.ops.sampling import gumbel, row_keys
from thalweg.hal.step import ON_DEVICE
from thalweg.hal.testing import cases

I32 = torch.int32


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_rms_norm_rounds_as_the_published_llama_does(dtype: torch.dtype) -> None:
    x, norm = torch.randn(9, 64, dtype=dtype) * 3, modeling_llama.LlamaRMSNorm(64, 1e-5).to(dtype)
    norm.weight.data.uniform_(0.5, 1.5)
    assert torch.equal(ops.rms_norm(x, norm.weight, eps=1e-5), norm(x))


def test_add_rms_norm_is_the_sum_and_its_norm() -> None:
    x, r, w = torch.randn(4, 32), torch.randn(4, 32), torch.rand(32)
    normed, total = ops.add_rms_norm(x, r, w, eps=1e-6)
    assert torch.equal(total, x + r)
    assert torch.equal(normed, ops.rms_norm(x + r, w, eps=1e-6))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("mean", [0.0, 5.0])
def test_layer_norm_is_torch_s_in_float64(dtype: torch.dtype, mean: float) -> None:
    x, w, b = (torch.randn(9, 64) + mean).to(dtype), torch.rand(64).to(dtype), torch.randn(64).to(dtype)
    want = torch.nn.functional.layer_norm(x.double(), (64,), w.double(), b.double(), 1e-5)
    near = 2e-6 if dtype == torch.float32 else 1e-2
    torch.testing.assert_close(ops.layer_norm(x, w, b, eps=1e-5).double(), want, rtol=near, atol=near)


def test_mean_pool_is_each_sequence_s_mean() -> None:
    x, query = torch.randn(12, 16), torch.tensor([3, 0, 8, 1], dtype=I32)
    seq = torch.repeat_interleave(torch.arange(4), query.long()).int()
    want = torch.stack([torch.nan_to_num(rows.double().mean(0)) for rows in x.split(query.tolist())]).float()
    assert torch.equal(ops.mean_pool(x, seq, query), want)
    assert torch.equal(ops.mean_pool(x[3:11], torch.zeros(8, dtype=I32), query[2:3]), want[2:3])


def _table(rotary_dim: int, length: int = 64) -> torch.Tensor:
    angle = torch.arange(length)[:, None] / 10000 ** (torch.arange(0, rotary_dim, 2) / rotary_dim)
    return torch.cat([angle.cos(), angle.sin()], 1)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_rope_rotates_and_rounds_as_the_published_llama_does(dtype: torch.dtype) -> None:
    q, k = torch.randn(7, 4, 32, dtype=dtype), torch.randn(7, 2, 32, dtype=dtype)
    positions = torch.randint(0, 64, (7,), dtype=I32)
    embed = modeling_llama.LlamaRotaryEmbedding(LlamaConfig(hidden_size=128, num_attention_heads=4, head_dim=32))
    cos, sin = embed(q, positions[None].long())
    want = modeling_llama.apply_rotary_pos_emb(q.transpose(0, 1)[None], k.transpose(0, 1)[None], cos, sin)
    inv = embed.inv_freq.float()
    angle = torch.arange(64).float()[:, None] * inv
    got = ops.rope(q, k, positions, torch.cat([angle.cos(), angle.sin()], 1), rotary_dim=32)
    for g, w in zip(got, want, strict=True):
        assert torch.equal(g, w[0].transpose(0, 1))


def test_interleaved_partial_rope_is_gptj_s() -> None:
    q, positions, table = torch.randn(7, 4, 32), torch.randint(0, 64, (7,), dtype=I32), _table(16)
    got, _ = ops.rope(q, q, positions, table, rotary_dim=16, interleaved=True)
    cos, sin = table[positions.long()].chunk(2, -1)
    want = modeling_gptj.apply_rotary_pos_emb(q[None, ..., :16], sin[None], cos[None])[0]
    torch.testing.assert_close(got[..., :16], want)
    assert torch.equal(got[..., 16:], q[..., 16:])


@pytest.mark.parametrize("act", ["silu", "gelu", "gelu_tanh"])
def test_gated_activation_is_the_activation_of_one_half_times_the_other(act: str) -> None:
    x = torch.randn(5, 64).to(torch.bfloat16)
    name = {"silu": "silu", "gelu": "gelu", "gelu_tanh": "gelu_pytorch_tanh"}[act]
    from transformers.activations import ACT2FN

    gate, up = x.chunk(2, -1)
    torch.testing.assert_close(ops.act_and_mul(x, act=act), ACT2FN[name](gate.contiguous()) * up)


def test_an_unknown_activation_is_named() -> None:
    with pytest.raises(ValueError, match=r"relu6.*silu"):
        ops.act_and_mul(torch.zeros(1, 2), act="relu6")


@pytest.mark.parametrize("rows", [1, 3, 16, 50])
def test_linear_is_a_matrix_product_in_float64_rounded(rows: int) -> None:
    x, w, b = torch.randn(rows, 48), torch.randn(20, 48), torch.randn(20)
    torch.testing.assert_close(ops.linear(x, w, b), (x.double() @ w.double().T + b).float(), rtol=1e-5, atol=1e-5)
    assert ops.linear(x.view(rows, 1, 48), w).shape == (rows, 1, 20)


def test_history_resolves_what_an_earlier_step_left_there() -> None:
    history = torch.zeros(3, 5, dtype=I32)
    history = ops.history_write(
        history, torch.tensor([1, 2], dtype=I32), torch.tensor([4, 0], dtype=I32), torch.tensor([8, 9], dtype=I32)
    )
    got = ops.resolve_tokens(
        torch.tensor([ON_DEVICE, 3, ON_DEVICE], dtype=I32),
        history,
        torch.tensor([1, 1, 2], dtype=I32),
        torch.tensor([4, 1, 0], dtype=I32),
    )
    assert got.tolist() == [8, 3, 9]


def test_history_sends_what_does_not_fit_to_scratch() -> None:
    history = torch.zeros(2, 3, dtype=I32)
    out = ops.history_write(
        history, torch.tensor([1, 0], dtype=I32), torch.tensor([3, 2], dtype=I32), torch.tensor([7, 7], dtype=I32)
    )
    assert out[1].tolist() == [0, 0, 0]
    assert out[0].tolist() == [7, 0, 0]


def _penalised(logits: np.ndarray, prompt: list[int], output: list[int], rep: float, pres: float, freq: float) -> np.ndarray:
    out = logits.astype(np.float64).copy()
    for t in set(prompt + output):
        out[t] = out[t] / rep if out[t] > 0 else out[t] * rep
    for t in set(output):
        out[t] -= freq * output.count(t) + pres
    return out


def test_penalties_follow_the_field_s_formulas() -> None:
    rng = np.random.default_rng(0)
    logits, history = rng.normal(size=(4, 30)).astype(np.float32), rng.integers(0, 30, (6, 20)).astype(np.int32)
    slots, lengths, prompt = [3, 5, 1, 2], [20, 7, 1, 12], [5, 7, 0, 11]
    rep, pres, freq = [1.0, 1.7, 0.6, 1.2], [0.5, 0.0, -0.3, 0.1], [0.2, 0.1, 0.0, -0.4]
    got = ops.penalties(
        *map(torch.tensor, (logits, history, slots, lengths, prompt)), *(torch.tensor(x) for x in (rep, pres, freq))
    )
    for i, s in enumerate(slots):
        tokens = history[s, : lengths[i]].tolist()
        want = _penalised(logits[i], tokens[: prompt[i]], tokens[prompt[i] :], rep[i], pres[i], freq[i])
        np.testing.assert_allclose(got[i], want, rtol=1e-5, atol=1e-6)
    alone = hf.RepetitionPenaltyLogitsProcessor(1.7)(torch.from_numpy(history[5:6, :7]).long(), torch.from_numpy(logits[1:2]))
    again = ops.penalties(
        *map(torch.tensor, (logits[1:2], history, [5], [7], [7])), torch.tensor([1.7]), torch.tensor([0.0]), torch.tensor([0.0])
    )
    torch.testing.assert_close(again, alone)


def test_bad_words_ban_what_transformers_bans() -> None:
    rng = np.random.default_rng(1)
    words = [[3], [1, 2], [2, 1, 0], [0, 0], [1, 1, 1, 1]]
    wide = max(map(len, words))
    padded = torch.tensor([[-1] * (wide - len(w)) + w for w in words], dtype=I32)
    for length in (1, 2, 3, 9):
        tokens, logits = rng.integers(0, 4, length), torch.randn(1, 6)
        want = hf.NoBadWordsLogitsProcessor(words)(torch.from_numpy(tokens)[None], logits.clone())
        history = torch.zeros(2, 12, dtype=I32)
        history[1, :length] = torch.from_numpy(tokens)
        got = ops.bad_words(
            logits,
            history,
            torch.tensor([1], dtype=I32),
            torch.tensor([length], dtype=I32),
            torch.zeros(len(words), dtype=I32),
            padded,
        )
        assert torch.equal(torch.isinf(got), torch.isinf(want)), tokens


def test_mask_bits_are_lowest_first() -> None:
    rng = np.random.default_rng(2)
    words = rng.integers(0, 2**32, (3, 4), dtype=np.uint32)
    allowed = np.unpackbits(words.view(np.uint8), axis=1, bitorder="little")[:, :100].astype(bool)
    got = ops.token_mask(torch.zeros(3, 100), torch.from_numpy(words.view(np.int32)))
    np.testing.assert_array_equal(np.isinf(got.numpy()), ~allowed)


@pytest.mark.parametrize(("k", "p", "m"), [(5, 1, 0), (0, 0.8, 0), (0, 1, 0.1), (7, 0.6, 0.02), (1, 0.01, 1), (500, 0.999, 0)])
def test_truncation_keeps_what_transformers_keeps(k: int, p: float, m: float) -> None:
    logits = torch.randn(20, 150) * 3
    want = logits
    for warp in (
        hf.MinPLogitsWarper(m) if m else None,
        hf.TopKLogitsWarper(min(k, 150)) if k else None,
        hf.TopPLogitsWarper(p) if p < 1 else None,
    ):
        want = warp(None, want) if warp else want
    full = torch.full
    got = ops.truncate(logits, full((20,), k, dtype=I32), full((20,), float(p)), full((20,), float(m)))
    # The two add the tail up in different orders: a token whose tail is 1 - p to the last bit may fall either way.
    tail = torch.stack([logits.softmax(1).double().masked_fill(logits > cut, 0).sum(1) for cut in logits.split(1, 1)], 1)
    on_the_edge = (tail - (1 - p)).abs() < 1e-6 if p < 1 else torch.zeros_like(logits, dtype=torch.bool)
    assert torch.equal(got.masked_fill(on_the_edge, 0), want.masked_fill(on_the_edge, 0))
    assert on_the_edge.float().mean() < 0.02


def test_truncation_of_equals() -> None:
    logits = torch.tensor([[1.0, 3, 3, 3, 0], [2.0, 2, 2, 2, 2]])
    off = (torch.tensor([1.0, 1.0]), torch.zeros(2))
    keeps_equals = ops.truncate(logits, torch.tensor([2, 1], dtype=I32), *off)
    assert torch.isfinite(keeps_equals).tolist() == [[False, True, True, True, False], [True] * 5]
    lowest_ids = ops.truncate(logits, torch.zeros(2, dtype=I32), torch.tensor([0.4, 0.5]), torch.zeros(2))
    assert torch.isfinite(lowest_ids).tolist() == [[False, True, True, False, False], [True, True, True, False, False]]


def test_torch_noise_is_the_numpy_definition() -> None:
    rng = np.random.default_rng(3)
    seed = rng.integers(-(2**31), 2**31, (40, 2)).astype(np.int32)
    position, tokens = rng.integers(0, 2**20, 40).astype(np.int32), np.arange(5000, dtype=np.int32)
    k0, k1 = row_keys(torch.from_numpy(seed), torch.from_numpy(position))
    got = gumbel(k0[:, None], k1[:, None], torch.from_numpy(tokens)).numpy()
    want = noise.noise(seed, position, tokens)
    np.testing.assert_allclose(got, want, rtol=1e-5, atol=2e-6)
    assert want.min() >= noise.LOWEST
    assert want.max() <= noise.HIGHEST


def test_noise_bounds_hold_for_the_extreme_hashes() -> None:
    low, high = np.float32(2.0**-33), np.float32(1 - 2.0**-24)
    assert -np.log(-np.log1p(-low)) <= noise.HIGHEST
    assert -np.log(-np.log1p(-high)) >= noise.LOWEST


def _chi_square_p(counts: np.ndarray, p: np.ndarray) -> float:
    """Probability of a chi-square at least this large: Wilson and Hilferty's normal approximation (1931)."""
    n, df = counts.sum(), len(p) - 1
    x = float(((counts - n * p) ** 2 / (n * p)).sum())
    z = ((x / df) ** (1 / 3) - (1 - 2 / (9 * df))) / math.sqrt(2 / (9 * df))
    return 0.5 * math.erfc(z / math.sqrt(2))


@pytest.mark.parametrize("vary", ["position", "low seed", "high seed"])
def test_draws_are_distributed_as_softmax(vary: str) -> None:
    n, logits = 40_000, torch.linspace(-3, 2, 12)
    count = np.arange(n, dtype=np.int32)
    zero = np.zeros(n, np.int32)
    seed = np.stack([count if vary == "low seed" else zero + 5, count if vary == "high seed" else zero], 1)
    position = count if vary == "position" else zero + 17
    got = ops.sample(logits.expand(n, -1), torch.ones(n), torch.from_numpy(seed), torch.from_numpy(position), random=True)
    p = torch.softmax(logits.double(), 0).numpy()
    assert _chi_square_p(np.bincount(got.numpy(), minlength=12), p) > 1e-4


def test_consecutive_positions_and_seeds_are_independent() -> None:
    n = 20_000
    seed = torch.stack([torch.arange(n, dtype=I32), torch.zeros(n, dtype=I32)], 1)
    logits, one = torch.zeros(n, 8), torch.ones(n)
    a, b = (ops.sample(logits, one, seed, torch.full((n,), p, dtype=I32), random=True).long() for p in (6, 7))
    for x, y in ((a, b), (a[1:], a[:-1])):
        counts = torch.bincount(x * 8 + y, minlength=64).numpy()
        assert _chi_square_p(counts, np.full(64, 1 / 64)) > 1e-4


def test_a_draw_is_the_definition_in_numpy() -> None:
    rng = np.random.default_rng(4)
    logits = (rng.normal(size=(50, 300)) * 2).astype(np.float32)
    seed, position = rng.integers(-(2**31), 2**31, (50, 2)).astype(np.int32), rng.integers(0, 999, 50).astype(np.int32)
    got = ops.sample(*map(torch.from_numpy, (logits, np.ones(50, np.float32), seed, position)), random=True)
    want = (logits + noise.noise(seed, position, np.arange(300, dtype=np.int32))).argmax(1)
    np.testing.assert_array_equal(got, want)


def test_greedy_takes_the_lowest_of_equals_even_among_random_rows() -> None:
    logits = torch.tensor([[1.0, 5, 5, 0], [9.0, 9, 9, 9]])
    seed, position = torch.zeros(2, 2, dtype=I32), torch.zeros(2, dtype=I32)
    assert ops.sample(logits, torch.zeros(2), seed, position, random=True).tolist() == [1, 0]


def test_logprobs_of_the_chosen_and_the_best() -> None:
    logits, tokens = torch.randn(6, 40), torch.randint(0, 40, (6,), dtype=I32)
    ids, values, ranks = ops.logprobs(logits, tokens, k=3, normalise=True)
    want = torch.log_softmax(logits.double(), -1)
    assert torch.equal(ids[:, 0], tokens)
    assert torch.equal(ids[:, 1:].long(), logits.topk(3).indices)
    torch.testing.assert_close(values.double(), want.gather(1, ids.long()), rtol=1e-5, atol=1e-6)
    order = logits.argsort(descending=True)
    assert ranks.tolist() == [order[i].tolist().index(tokens[i]) + 1 for i in range(6)]
    assert torch.equal(ops.logprobs(logits, tokens, k=3, normalise=False)[1], logits.gather(1, ids.long()))


EVERY = [(o, s) for o in ops.all_ops().values() for s in o.samples]


@pytest.mark.parametrize(("op", "sample"), EVERY, ids=[f"{o.name}-{s.name}" for o, s in EVERY])
@pytest.mark.sampled(4)
def test_bodies_trace_without_values_and_leave_their_arguments_alone(op: object, sample: object) -> None:
    args = cases.body_arguments(op, sample, cases.host_arguments(op, sample, "float32"))
    static = {k: v for k, v in sample.static.items() if k in op.static}
    before = copy.deepcopy(args)
    real = op.reference(*args, **static)
    for a, b in zip(tree_leaves(args), tree_leaves(before), strict=True):
        torch.testing.assert_close(a, b, rtol=0, atol=0, equal_nan=True)
    with FakeTensorMode() as mode:  # raises on .item() and on shapes that depend on values
        traced = op.reference(*tree_map(mode.from_tensor, args), **static)
    real, traced = (x if isinstance(x, tuple) else (x,) for x in (real, traced))
    assert [(x.shape, x.dtype) for x in real] == [(x.shape, x.dtype) for x in traced]
