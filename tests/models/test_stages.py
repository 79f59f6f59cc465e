"""Models divided into pipeline stages: the same text, bit for bit, and each stage reads and keeps only what is its own."""

from __future__ import annotations

from pathlib import Path

import pytest
from rig import Rig, Seq, StagedRig
from test_families import prompts
from zoo import make_checkpoint

from thalweg.errors import ConfigError
from thalweg.models.stages import partition

KINDS = {
    "llama-tied": (1, 1),  # a matrix that both stages read
    "gemma3": (1, 2, 1),  # windows, and norms that end a layer's sum
    "deepseek-v3": (1, 2),  # a latent, and experts in some layers
    "qwen3-next": (2, 5),  # states and attention
    "nemotron-h": (),  # layers of one part
    "falcon-h1": (),
    "gpt-oss": (),
    "bloom": (),  # a norm of the embedding
    "cohere": (),  # parallel parts
}
"""A kind of layer each, and the layers of its stages; (): of two, as equal as can be."""


@pytest.mark.parametrize("name", KINDS)
@pytest.mark.sampled(2)
def test_stages_give_the_bits_of_the_whole_model(name: str, tmp_path: Path) -> None:
    path = make_checkpoint(name, tmp_path, tokenizer=False)
    whole, staged = Rig(path, dtype="bfloat16"), StagedRig(path, len(KINDS[name]) or 2, KINDS[name] or None, dtype="bfloat16")
    assert [len(rig.model.blocks) for rig in staged.chain] == [*(KINDS[name] or staged_sizes(whole))]
    for s, t in zip(generate(staged), generate(whole), strict=True):
        assert (s.tokens, s.logprobs, s.scores) == (t.tokens, t.logprobs, t.scores)
    caches = [[part for kv in rig.box.value["kv"] for part in (kv if isinstance(kv, tuple) else (kv,))] for rig in staged.chain]
    assert sum(map(len, caches)) == sum(1 if not isinstance(kv, tuple) else len(kv) for kv in whole.box.value["kv"])


def generate(rig: Rig) -> list[Seq]:
    return rig.generate(prompts(), 6, chunk=8, budget=24)


def staged_sizes(rig: Rig) -> list[int]:
    return [end - first for first, end in partition(len(rig.model.spec.layers), 2)]


def test_an_uneven_rest_goes_to_stages_before_the_last() -> None:
    assert partition(8, 4) == [(0, 2), (2, 4), (4, 6), (6, 8)]
    assert partition(10, 4) == [(0, 2), (2, 5), (5, 8), (8, 10)]
    assert partition(7, 2) == [(0, 4), (4, 7)]
    assert partition(7, 3, [1, 5, 1]) == [(0, 1), (1, 6), (6, 7)]
    with pytest.raises(ConfigError, match="pipeline_parallel_size: the model has 2 layers for 3 stages"):
        partition(2, 3)
    for sizes in ([3, 3], [7], [7, 0]):
        with pytest.raises(ConfigError, match=r"pipeline_layer_partition: .* does not give 2 stages .* the model's 7 layers"):
            partition(7, 2, sizes)
