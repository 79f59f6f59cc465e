"""Low-rank adapters in the state: sequences with different adapters in one batch, each as transformers computes it with that
adapter added to the weights."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from rig import Rig
from safetensors.torch import load_file, save_file
from zoo import ALL, CONFIGS, VOCAB, load_reference, make_checkpoint

from thalweg.models.adapters import HEAD, AdapterPlan
from thalweg.models.weights import Source

RANK, NEW = 4, 6
SEVERAL = ("falcon-h1", "bloom", "gpt2", "kimi-linear", "minimax", "gemma3n", "granite-moe", "lfm2")
"""Families whose linear layers are called where those of others are not."""
NAMES = sorted({*CONFIGS, *SEVERAL} & set(ALL))
CASES = [pytest.param(n, marks=() if n in ("llama", "qwen3") else pytest.mark.slow) for n in NAMES]


def prompts() -> list[list[int]]:
    rng = np.random.default_rng(5)
    return [rng.integers(0, VOCAB, n).tolist() for n in (13, 1, 18, 7)]


def fill(rig: Rig, slot: int, rank: int) -> dict[Source, torch.Tensor]:
    """A random adapter into a slot of the state. Returns what it adds to each matrix."""
    rng, changes = torch.Generator().manual_seed(slot), {}
    for name, target in rig.model.adapters.targets.items():
        if name == HEAD:  # of a tied model it is changed apart from the embedding
            continue
        pair = rig.box.value["adapters"][name]
        for i, (source, rows) in enumerate(zip(target.sources, target.rows, strict=True)):
            a = torch.randn(rank, target.inputs, generator=rng) / target.inputs**0.5
            b = torch.randn(rows, rank, generator=rng) * 0.05
            pair["a"][slot, i * RANK : i * RANK + rank] = a
            first = sum(target.rows[:i])
            pair["b"][slot, :rank, first : first + rows] = b.T
            pair["ranks"][slot, i] = rank
            changes[source] = b @ a
    return changes


def write_merged(path: Path, to: Path, rig: Rig, changes: dict[Source, torch.Tensor]) -> Path:
    """The checkpoint with the adapter added to its matrices."""
    to.mkdir()
    for file in path.iterdir():
        if file.suffix != ".safetensors":
            (to / file.name).write_bytes(file.read_bytes())
    tensors = load_file(path / "model.safetensors")
    stored = {rig.model.rename(name): tensor for name, tensor in tensors.items()}
    for source, change in changes.items():
        view = source.within
        if source.name in stored:
            stored[source.name][source.first : source.first + len(change)] += change
        else:  # within another tensor: where, a view of its elements' numbers says
            held = stored[view.name]
            where = view.take(torch.arange(held.numel()).view_as(held), source.shape[0])
            held.view(-1)[where.flatten()] += change.flatten()
    save_file({k: v.contiguous() for k, v in tensors.items()}, to / "model.safetensors", {"format": "pt"})
    return to


@pytest.mark.parametrize("name", CASES)
def test_each_sequence_of_a_batch_has_its_own_adapter(name, tmp_path):
    path = make_checkpoint(name, tmp_path / "base", tokenizer=False)
    rig = Rig(path, platform="reference", adapters=AdapterPlan(2, RANK))
    rig.adapter_of = {1: 1, 3: 2, 4: 1}  # the sequence in slot 2 has none
    merged = {0: path}
    for slot, rank in ((1, RANK), (2, RANK // 2)):
        merged[slot] = write_merged(path, tmp_path / str(slot), rig, fill(rig, slot, rank))
    for seq in rig.generate(prompts(), NEW, chunk=6, budget=17):
        oracle = load_reference(merged[rig.adapter_of.get(seq.slot, 0)], torch.float32)
        with torch.inference_mode():
            logp = oracle(torch.tensor([seq.tokens])).logits[0].float().log_softmax(-1)
        chosen = logp[torch.arange(len(seq.tokens) - 1), torch.tensor(seq.tokens[1:])].numpy()
        np.testing.assert_allclose(seq.scores, chosen[: seq.prompt - 1], atol=1e-4)
        np.testing.assert_allclose(seq.logprobs, chosen[seq.prompt - 1 :], atol=1e-4)


def test_a_step_without_adapters_is_that_of_a_model_without(tmp_path):
    path = make_checkpoint("llama", tmp_path, tokenizer=False)
    plain, planned = Rig(path), Rig(path, adapters=AdapterPlan(2, RANK))
    fill(planned, 1, RANK)
    for a, b in zip(*(r.generate(prompts(), NEW, chunk=6, budget=17) for r in (plain, planned)), strict=True):
        assert a.tokens == b.tokens
        assert (a.scores, a.logprobs) == (b.scores, b.logprobs)
