"""What `build` decides: KV groups, the plan it leaves behind, and what it refuses."""

from __future__ import annotations

import pytest
from zoo import make_checkpoint

from thalweg.checkpoint.config import read_config
from thalweg.errors import ConfigError, DeviceError
from thalweg.hal.comm import Solo
from thalweg.hal.discovery import load
from thalweg.hal.op import Binder
from thalweg.hal.platform import Place
from thalweg.models.build import build
from thalweg.models.spec import divided
from thalweg.models.step import make_state

DEVICE = load("reference").open(Place())


def model(path, *, max_len: int = 64, binder: Binder | None = None, attention=None, block_tokens: int = 4):
    return build(
        read_config(path), binder=binder or Binder(()), attention=DEVICE.attention if attention is None else attention,
        comm=Solo(), dtype="float32", max_len=max_len, block_tokens=block_tokens,
    )  # fmt: skip


def test_layers_that_keep_the_same_tokens_share_a_group(tmp_path):
    m = model(make_checkpoint("qwen3-windowed", tmp_path, tokenizer=False))
    assert [(g.kind, g.window, g.layers) for g in m.groups] == [("window", 8, (0, 2)), ("full", 0, (1,))]
    assert m.layer_group == (0, 1, 0)
    # Two layers of k and v, 2 heads of 12 float32, 4 tokens.
    assert m.groups[0].bytes_per_block == 2 * (2 * 2 * 12 * 4 * 4)
    assert len(m.attention) == 2


def test_a_window_no_sequence_outgrows_is_no_window(tmp_path):
    path = make_checkpoint("qwen3-windowed", tmp_path, tokenizer=False)
    assert [(g.kind, g.layers) for g in model(path, max_len=8).groups] == [("full", (0, 1, 2))]
    assert [g.kind for g in model(path, max_len=9).groups] == ["window", "full"]


def test_the_plan_names_the_attention_and_every_op(tmp_path):
    binder = Binder(())
    model(make_checkpoint("mistral", tmp_path, tokenizer=False), binder=binder)
    assert {c.op for c in binder.plan} == {"attention", "embed", "linear", "rms_norm", "add_rms_norm", "rope", "act_and_mul"}
    (attention,) = (c for c in binder.plan if c.op == "attention")
    assert attention.facts["window"] == 12
    assert attention.kernel == DEVICE.attention[0].name


def test_a_device_without_fitting_attention_is_refused_in_words(tmp_path):
    with pytest.raises(DeviceError, match="no attention backend of this device supports"):
        model(make_checkpoint("llama", tmp_path, tokenizer=False), attention=())


def test_sizes_that_make_no_sense_are_refused(tmp_path):
    path = make_checkpoint("llama", tmp_path, tokenizer=False)
    with pytest.raises(ConfigError, match="max_len: must be at least 1, not 0"):
        model(path, max_len=0)
    with pytest.raises(ConfigError, match="block_tokens: must be at least 1"):
        model(path, block_tokens=-4)
    with pytest.raises(ValueError, match="does not divide among 4"):
        divided((10, 3), 0, 4)


def test_state_has_a_cache_per_layer_of_its_groups_size(tmp_path):
    m = model(make_checkpoint("qwen3-windowed", tmp_path, tokenizer=False))
    state = make_state(m, DEVICE, blocks=[5, 9], slots=3, max_len=64)
    assert [kv.shape[0] for kv in state["kv"]] == [5, 9, 5]
    assert tuple(state["history"].shape) == (3, 65)
    with pytest.raises(ValueError, match="1 block counts for 2 KV groups"):
        make_state(m, DEVICE, blocks=[5], slots=3, max_len=64)
