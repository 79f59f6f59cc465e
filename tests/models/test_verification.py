"""A step with drafts against steps of one token: the same tokens, greedy and random, whatever is guessed and however padded."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from rig import Rig, Seq

from thalweg.checkpoint.hub import resolve_model
from thalweg.hal.parts.drafts import Drafts
from thalweg.hal.parts.mask import Mask
from thalweg.hal.step import Features, StepBatch, StepShape

PROMPTS = ["Reverse the word: lantern", "12 + 30 = ", "one two one two one"]
MOST = 4
RANDOM = {"temperature": 0.9, "top_k": 40, "top_p": 0.95}


@pytest.fixture(scope="module", params=["reference", "cpu"])
def rig(request: pytest.FixtureRequest) -> Rig:
    return Rig(Path(resolve_model("thalweg-nano")), platform=request.param, max_len=96)


def sampling(batch: StepBatch, random: bool) -> StepBatch:
    """The batch without logprobs; every other row random, each with a seed of its slot."""
    s = batch.sampling
    for i, slot in enumerate(batch.slots.tolist() if random else ()):
        s.seed[i] = [slot * 7919, slot]
        if slot % 2:
            s.temperature[i], s.top_k[i], s.top_p[i] = RANDOM.values()
    batch.features = batch.infer_features()
    return batch


def one_by_one(rig: Rig, seqs: list[Seq], new: int, random: bool) -> None:
    for _ in range(new):
        result = rig.run(sampling(rig.batch([(s, len(s.tokens) - s.done) for s in seqs]), random)).result()
        for i, s in enumerate(seqs):
            s.done = len(s.tokens)
            s.tokens.append(int(result.tokens[i, 0]))


def with_drafts(batch: StepBatch, drafts: list[int]) -> StepBatch:
    """The last `drafts` tokens of each row are guesses."""
    counts = np.array(drafts)
    column = np.arange(MOST + 1)
    picked = column < counts[:, None]
    pick = np.where(picked, (np.cumsum(counts) - counts)[:, None] + column, -1).astype(np.int32)
    rows = ((batch.last_row + 1 - counts)[:, None] + column)[picked].astype(np.int32)
    made = replace(batch, parts=(Drafts(rows, pick, level=MOST),), emit=np.ones(len(drafts), bool))
    made.features = made.infer_features()
    made.check()
    return made


@pytest.mark.parametrize(
    ("padded", "random"),
    [(False, False), (True, True), *(pytest.param(*case, marks=pytest.mark.slow) for case in ((False, True), (True, False)))],
)
@pytest.mark.parametrize("wrong", [0, pytest.param(1, marks=pytest.mark.slow), 2, pytest.param(3, marks=pytest.mark.slow), 4])
@pytest.mark.sampled(8)
def test_tokens_are_those_of_single_steps_up_to_the_first_wrong_draft(rig: Rig, wrong: int, padded: bool, random: bool) -> None:
    """Row i has i + 2 drafts, and of each the one at place `wrong` is wrong."""
    truth = [Seq(i + 1, [3 + i, *p.encode()], 0) for i, p in enumerate(PROMPTS)]
    one_by_one(rig, truth, 1 + MOST + 1, random)
    seqs = [Seq(i + 4, t.tokens[: -1 - MOST], 0) for i, t in enumerate(truth)]
    for s in seqs:
        s.slot -= 3  # the same slots: seeds and blocks are those of before
    first = rig.run(sampling(rig.batch([(s, len(s.tokens) - 1) for s in seqs]), random)).result()
    assert not first.counts.any()
    known = [len(s.tokens) for s in seqs]
    for i, (s, t) in enumerate(zip(seqs, truth, strict=True)):
        s.done = known[i] - 1
        s.tokens = t.tokens[: known[i] + i + 2]
        if wrong < i + 2:
            s.tokens[known[i] + wrong] = (s.tokens[known[i] + wrong] + 1) % rig.model.vocab
    batch = with_drafts(sampling(rig.batch([(s, i + 3) for i, s in enumerate(seqs)]), random), [2, 3, 4])
    if padded:
        batch = batch.pad(StepShape(32, 5, batch.block_tables[0].shape[1] + 1))
        batch.metadata = rig.model.metadata(batch, None)
    result = rig.run(batch).result()
    history = np.asarray(rig.box.value["history"])
    for i, t in enumerate(truth):
        right = min(wrong, i + 2)
        assert int(result.counts[i]) == right + 1
        said = np.asarray(result.tokens)[i, : right + 1].tolist()
        assert said == t.tokens[known[i] : known[i] + right + 1]
        assert history[i + 1, known[i] : known[i] + right + 1].tolist() == said
    assert not np.asarray(result.invalid)[:3].any()


def test_what_is_no_number_counts_only_where_it_is_accepted(rig: Rig) -> None:
    """A wrong draft may lead anywhere."""
    import torch

    from thalweg.hal.op import Binder
    from thalweg.models.sampler import Sampler

    seqs = [Seq(1, [5, 6, 7, 8], 0), Seq(2, [5, 6, 7, 8], 0)]
    batch = with_drafts(sampling(rig.batch([(s, 4) for s in seqs]), False), [2, 2])
    logits = torch.zeros(2 + 4, 10)
    logits[[2, 3, 4, 5], [7, 8, 9, 8]] = 1.0  # the first is right twice, the second wrong at once
    logits[[1, 5]] = float("nan")  # after both of its drafts, and after its wrong one
    device = batch.map(lambda a: torch.from_numpy(np.asarray(a)))
    sampler = Sampler(Binder(rig.device.kernels), vocab=10, logprobs_mode="raw_logprobs")
    result, _ = sampler(logits, torch.zeros(3, 20, dtype=torch.int32), device)
    assert result.counts.tolist() == [3, 1]
    assert result.invalid.tolist() == [False, False]
    logits[3] = float("nan")
    result, _ = sampler(logits, torch.zeros(3, 20, dtype=torch.int32), device)
    assert result.invalid.tolist() == [True, False]
    assert isinstance(batch.features, Features)


def test_each_draft_has_a_mask_of_its_own(rig: Rig) -> None:
    """The token in a draft's place is drawn under its mask, the one after all of them under the sequence's."""
    import torch

    from thalweg.hal.op import Binder
    from thalweg.models.sampler import Sampler

    batch = with_drafts(sampling(rig.batch([(Seq(1, [5, 6, 7, 8], 0), 4), (Seq(2, [5, 6, 3, 8], 0), 4)]), False), [2, 2])
    every, words = 0xFFFFFFFF, lambda *rows: np.array([[row] for row in rows], np.uint32)
    mask = Mask(words(1 << 9, every), words(1 << 7, 1 << 8, every, 1 << 8))
    batch = replace(batch, parts=(*batch.parts, mask))
    batch.check()
    logits = torch.zeros(2 + 4, 10)
    logits[:, 1] = 1.0
    logits[4, 3] = 2.0
    device = batch.map(lambda a: torch.from_numpy(np.asarray(a).view(np.int32) if a.dtype == np.uint32 else np.asarray(a)))
    sampler = Sampler(Binder(rig.device.kernels), vocab=10, logprobs_mode="raw_logprobs")
    result, _ = sampler(logits, torch.zeros(3, 20, dtype=torch.int32), device)
    assert result.counts.tolist() == [3, 3]
    assert result.tokens[:, :3].tolist() == [[7, 8, 9], [3, 8, 1]]
