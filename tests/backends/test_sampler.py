"""The tail of a step on both host platforms: order of its parts, log probabilities, invalid rows, the history."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch

from thalweg.backends.torch_native import KERNELS
from thalweg.hal.op import Binder
from thalweg.hal.parts.bad_words import BadWords
from thalweg.hal.parts.bias import Bias
from thalweg.hal.parts.drafts import Drafts
from thalweg.hal.parts.mask import Mask
from thalweg.hal.parts.penalties import Penalties
from thalweg.hal.step import SamplingArrays, StepBatch
from thalweg.models.sampler import Sampler

V = 64


@pytest.fixture(params=["reference", "torch_native"])
def binder(request: pytest.FixtureRequest) -> Binder:
    return Binder(KERNELS if request.param == "torch_native" else ())


def _batch(rows: int, k: int = -1, **sampling: Any) -> StepBatch:
    i32 = np.int32
    s = SamplingArrays.greedy(rows)
    for name, value in sampling.items():
        setattr(s, name, np.asarray(value, getattr(s, name).dtype))
    batch = StepBatch(
        tokens=np.zeros(rows, i32), token_seq=np.arange(rows, dtype=i32), positions=np.full(rows, 4, i32),
        slots=np.arange(1, rows + 1, dtype=i32), context=np.full(rows, 4, i32), query=np.ones(rows, i32),
        last_row=np.arange(rows, dtype=i32), emit=np.ones(rows, bool), block_tables=(np.zeros((rows, 1), i32),), sampling=s,
    )  # fmt: skip
    batch.features = batch.infer_features(logprobs=k)
    return batch


def _run(binder: Binder, logits: torch.Tensor, batch: StepBatch, mode: str = "raw_logprobs", history: Any = None) -> Any:
    history = torch.zeros(len(batch.slots) + 1, 8, dtype=torch.int32) if history is None else history
    return Sampler(binder, vocab=V, logprobs_mode=mode)(logits, history, batch.map(torch.from_numpy))


def test_the_token_lands_in_the_history_only_where_a_row_emits(binder: Binder) -> None:
    logits = torch.randn(3, V)
    batch = _batch(3)
    batch.emit[1] = False
    result, history = _run(binder, logits, batch)
    assert result.counts.tolist() == [1, 0, 1]
    best = logits.argmax(1).tolist()
    assert result.tokens[:, 0].tolist() == best
    assert history[1:, 5].tolist() == [best[0], 0, best[2]]


@pytest.mark.parametrize("mode", ["raw_logprobs", "processed_logprobs", "raw_logits", "processed_logits"])
def test_logprobs_are_taken_before_or_after_everything(binder: Binder, mode: str) -> None:
    logits = torch.randn(2, V)
    batch = _batch(2, k=2, temperature=[0.5, 0.5], top_k=[3, 3], seed=[[1, 2], [3, 4]])
    batch = replace(batch, parts=(Bias(np.array([0], np.int32), np.array([7], np.int32), np.array([99], np.float32)),))
    batch.features = batch.infer_features(logprobs=2)
    got = _run(binder, logits, batch, mode)[0].logprobs
    want = logits.clone()
    if mode.startswith("processed"):
        want[0, 7] += 99
        want /= 0.5
        want = want.masked_fill(want < want.topk(3).values[:, 2:], float("-inf"))
    if mode.endswith("logprobs"):
        want = torch.log_softmax(want, -1)
    torch.testing.assert_close(got.values, want.gather(1, got.tokens.long()))
    assert torch.equal(got.tokens[:, 1:].long(), want.topk(2).indices)


def test_rows_with_nan_or_infinity_are_called_invalid_and_others_are_not(binder: Binder) -> None:
    logits = torch.randn(4, V)
    logits[0, 3], logits[1, 5], logits[2, 9] = float("nan"), float("inf"), float("-inf")
    result, _ = _run(binder, logits, _batch(4, temperature=[1, 1, 1, 1]))
    assert result.invalid.tolist() == [True, True, False, False]
    assert ((result.tokens >= 0) & (result.tokens < V)).all()


def test_a_ban_beats_a_bias_and_a_mask_beats_both(binder: Binder) -> None:
    logits = torch.zeros(1, V)
    i32 = np.int32
    batch = _batch(1)
    mask = np.zeros((1, 2), np.uint32)
    mask[0, 1] = 1 << 3 | 1 << 5  # tokens 35 and 37
    batch = replace(
        batch, parts=(
            Mask(mask.view(i32), mask[:0].view(i32)),
            Bias(np.zeros(3, i32), np.array([2, 37, 35], i32), np.array([50, 5, -np.inf], np.float32)),
        ),
    )  # fmt: skip
    batch.features = batch.infer_features()
    assert _run(binder, logits, batch)[0].tokens.item() == 37


def test_bad_words_look_at_the_history(binder: Binder) -> None:
    logits = torch.zeros(1, V)
    logits[0, 9], logits[0, 4] = 5, 3
    history = torch.zeros(2, 8, dtype=torch.int32)
    history[1, 3:5] = torch.tensor([6, 7])
    batch = replace(_batch(1), parts=(BadWords(np.zeros(1, np.int32), np.array([[6, 7, 9]], np.int32)),))
    batch.features = batch.infer_features()
    assert _run(binder, logits, batch, history=history)[0].tokens.item() == 4
    history[1, 3] = 0
    history[1, 5] = 0
    assert _run(binder, logits, batch, history=history)[0].tokens.item() == 9


def test_a_seed_draws_the_same_token_in_any_row_of_any_batch(binder: Binder) -> None:
    logits = torch.randn(5, V)
    seeds = np.random.default_rng(0).integers(0, 2**31, (5, 2))
    all_five, _ = _run(binder, logits, _batch(5, temperature=[1] * 5, seed=seeds))
    order = [3, 0, 4]
    some, _ = _run(binder, logits[order], _batch(3, temperature=[1] * 3, seed=seeds[order], top_p=[1, 1, 1]))
    assert some.tokens[:, 0].tolist() == all_five.tokens[order, 0].tolist()


def test_an_unknown_mode_is_refused(binder: Binder) -> None:
    with pytest.raises(ValueError, match="logprobs_mode"):
        Sampler(binder, vocab=V, logprobs_mode="cooked")


def test_a_step_made_for_drafts_serves_a_batch_without_any(binder: Binder) -> None:
    """As of any part: an executable may be made for more than a batch asks for."""
    logits = torch.randn(3, V)
    batch = _batch(3)
    plain, history = _run(binder, logits, batch)
    wide, same = _run(binder, logits, batch.under(batch.features.plus(Drafts, 4).plus(Bias)))
    assert wide.tokens.tolist() == plain.tokens.tolist()
    assert wide.counts.tolist() == plain.counts.tolist()
    assert torch.equal(history, same)


def test_the_row_before_a_draft_has_the_tokens_before_it_and_no_other(binder: Binder) -> None:
    """Penalties, bad words, biases and logprobs of a step with drafts are those of steps of one token."""
    i32, f32, drafts = np.int32, np.float32, [9, 20, 9]
    logits = torch.randn(4, V)
    logits[:, [9, 20]] += torch.tensor([4.0, 3.0])
    history = torch.zeros(2, 12, dtype=torch.int32)
    history[1, :8] = torch.tensor([1, 2, 3, 9, 4, *drafts])
    penalties = Penalties(np.ones(1, f32), np.zeros(1, f32), np.full(1, 1.2, f32), np.full(1, 2, i32))
    words, ban = np.array([[9, 20]], i32), np.full(1, -7, f32)

    def parts(rows: list[int]) -> tuple[Any, ...]:
        n, row = len(rows), np.array(rows, i32)
        return penalties, BadWords(row, words.repeat(n, 0)), Bias(row, np.full(n, 9, i32), ban.repeat(n))

    each = []
    for at in range(4):
        batch = replace(_batch(1), parts=parts([0]), context=np.full(1, 4 + at, i32))
        batch.features = batch.infer_features(logprobs=1)
        each.append(_run(binder, logits[at : at + 1], batch, "processed_logprobs", history.clone())[0])
    pick = np.array([[0, 1, 2, -1]], i32)
    verify = replace(
        _batch(1), tokens=np.array([4, *drafts], i32), token_seq=np.zeros(4, i32), positions=np.arange(4, 8, dtype=i32),
        query=np.full(1, 4, i32), last_row=np.full(1, 3, i32),
        parts=(Drafts(np.arange(1, 4, dtype=i32), pick, level=3), *parts([0, -1, -2, -3])),
    )  # fmt: skip
    verify.features = verify.infer_features(logprobs=1)
    rows = logits[[3, 0, 1, 2]]
    got, _ = _run(binder, rows, verify, "processed_logprobs", history.clone())
    assert got.tokens[0].tolist() == [r.tokens.item() for r in each]
    assert torch.equal(got.logprobs.values, torch.cat([r.logprobs.values for r in each]))
