"""Attention to a choice of tokens: what it costs where there is nothing to choose, and which layers choose. What its bits do
not depend on, and which configurations are refused, is in test_latent.py. The text is held against transformers in
test_families.py and tests/integration."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from rig import Rig, Seq
from test_latent import tokens
from zoo import VOCAB, edit_config, make_checkpoint

from thalweg.checkpoint.config import read_config
from thalweg.engine.control.parts.builder import FOREVER, Setup, StepRows
from thalweg.engine.control.parts.sparse import SparseBuilder
from thalweg.errors import ConfigError
from thalweg.hal.comm import Mesh
from thalweg.hal.op import Binder
from thalweg.hal.parts.sparse import Sparse
from thalweg.models import registry, sizes
from thalweg.models.build import build

NAME = "glm-moe-dsa"
TOP = 9


def test_where_no_token_sees_more_than_it_reads_it_is_latent_attention_and_costs_no_more(tmp_path):
    path = make_checkpoint(NAME, tmp_path, tokenizer=False)
    prompt, told = tokens(4, TOP - 1), []
    for max_len, top in ((64, TOP), (TOP, TOP), (64, 64)):
        edit_config(path, index_topk=top)
        rig = Rig(path, platform="cpu", max_len=max_len)
        told.append((rig, rig.generate([prompt], 1, 4, 9)[0]))
    for _, s in told:
        assert (s.tokens, s.scores, s.logprobs) == (told[0][1].tokens, told[0][1].scores, told[0][1].logprobs)
    long, short, wide = (rig.model.groups for rig, _ in told)
    assert [g.top for g in long] == [TOP, TOP]  # layers with an indexer, and those that follow one
    assert [g.top for g in (*short, *wide)] == [0, 0]
    each = 4 * (32 + 16) * 4
    assert sum(g.bytes_per_block for g in long) == 4 * each + 2 * 4 * 24 * 4
    assert sum(g.bytes_per_block for g in short) == 4 * each


def test_a_step_without_its_part_is_refused_not_computed_otherwise(tmp_path):
    rig = Rig(make_checkpoint(NAME, tmp_path, tokenizer=False), platform="cpu")
    batch = rig.batch([(Seq(1, tokens(1, 20), 20), 20), (Seq(2, tokens(2, 5), 5), 5)])
    part = batch.get(Sparse)
    assert part is not None
    assert part.row.tolist() == list(range(TOP, 20))
    assert part.pick[:, 0].tolist() == [-1] * TOP + list(range(20 - TOP)) + [-1] * 5
    with pytest.raises(ValueError, match="Sparse is missing"):
        rig.model.metadata(replace(batch, parts=()), None)


def test_the_part_is_made_anew_when_a_sequence_grows_beyond_what_it_reads():
    builder = SparseBuilder(Setup(4, 64, VOCAB, top=TOP))

    def built(*context: int) -> tuple[Sparse | None, int]:
        held = np.array(context, np.int32)
        return builder.build(StepRows(None, held, held, np.ones_like(held), 0))

    assert built(3, 7) == (None, TOP - 7)
    part, lasts = built(8, 12, TOP)
    assert part is not None
    assert (part.row.tolist(), part.pick[:, 0].tolist(), lasts) == ([1, 2], [-1, 0, 1], 1)
    assert built(12, TOP)[1] == FOREVER
    assert not SparseBuilder(Setup(4, 64, VOCAB)).is_active(StepRows(None, None, None, None, 0))


def test_which_layers_have_an_indexer(tmp_path):
    path = make_checkpoint(NAME, tmp_path, tokenizer=False)
    for changes, want in (
        ({"index_topk_pattern": "FSSF"}, [True, False, False, True]),
        ({"index_topk_pattern": None, "index_topk_freq": 3, "index_skip_topk_offset": 1}, [True, False, False, True]),
        ({"index_topk_freq": None}, [True] * 4),
    ):
        edit_config(path, indexer_types=None, **changes)
        config = read_config(path)
        assert [each.mixer.indexer is not None for each in registry.family(config)(config).layers] == want


def test_caches_of_another_type_are_refused_where_tokens_are_chosen(tmp_path):
    config = {**read_config(make_checkpoint(NAME, tmp_path, tokenizer=False))}
    device = Rig(tmp_path / NAME, platform="cpu").device
    said = {"binder": Binder(device.kernels), "attention": device.attention, "mesh": Mesh(), "dtype": "float32"}
    with pytest.raises(ConfigError, match=r"kv_cache_dtype.*max_model_len to at most 9"):
        build(config, **said, max_len=64, block_tokens=4, kv_dtype="int8")
    assert build(config, **said, max_len=TOP, block_tokens=4, kv_dtype="int8").groups[0].top == 0


def test_a_step_at_long_contexts_reads_the_index_of_all_and_latents_of_the_chosen(tmp_path):
    config = read_config(make_checkpoint(NAME, tmp_path, tokenizer=False))
    spec = registry.family(config)(config)
    work = [sizes.step_work(spec, "float32", sizes.DENSE_FORMATS, 1, 1, context).bytes for context in (100, 200, 300)]
    assert work[2] - work[1] == work[1] - work[0] == 100 * 2 * 24 * 4
