"""What `build` decides: KV groups, the plan it leaves behind, and what it refuses."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
from rig import Rig
from zoo import make_checkpoint

from thalweg.checkpoint.config import read_config
from thalweg.errors import ConfigError, DeviceError
from thalweg.hal import ops
from thalweg.hal.comm import Mesh
from thalweg.hal.discovery import load
from thalweg.hal.op import Binder
from thalweg.hal.platform import Place
from thalweg.llm import LLM
from thalweg.models.build import build
from thalweg.models.step import make_state
from thalweg.models.weights import shard_shape
from thalweg.params import SamplingParams

DEVICE = load("reference").open(Place())


def model(path, *, max_len: int = 64, binder: Binder | None = None, attention=None, block_tokens: int = 4):
    return build(
        read_config(path), binder=binder or Binder(()), attention=DEVICE.attention if attention is None else attention,
        mesh=Mesh(), dtype="float32", max_len=max_len, block_tokens=block_tokens,
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
    assert {c.op for c in binder.bindings} == {
        "attention",
        "embed",
        "linear",
        "rms_norm",
        "add_rms_norm",
        "rope",
        "act_and_mul",
    }
    (attention,) = (c for c in binder.bindings if c.op == "attention")
    assert attention.spec["window"] == 12
    assert attention.kernel == DEVICE.attention[0].name


class Turns(type(DEVICE.attention[0])):
    """Attention that does the norms and positions of q and k by the ops' bodies, or says why not."""

    name = "fuses"

    def __init__(self, why=None):
        self.why, self.calls = why, 0

    def fuses(self, spec, prologue):
        return self.why

    def attend_fused(self, q, k, v, kv, batch, group, spec, prologue, cos_sin, weights=None, sinks=None):
        self.calls += 1
        q, k = (
            (ops.rms_norm(x, w, eps=prologue.eps, offset=prologue.offset) for x, w in zip((q, k), weights, strict=True))
            if weights
            else (q, k)
        )
        q, k = ops.rope(q, k, batch.positions, cos_sin, rotary_dim=prologue.rotary_dim, interleaved=prologue.interleaved)
        return self.attend(q, k, v, kv, batch, group, spec, sinks)


@pytest.mark.parametrize("name", ["mistral", "qwen3"])
def test_attention_that_turns_q_and_k_gets_them_as_they_are_and_no_op_is_bound_for_it(tmp_path, monkeypatch, name):
    path, backend = make_checkpoint(name, tmp_path, tokenizer=False), Turns()
    want = Rig(path).generate([[5, 6, 7, 8, 9]], 4, chunk=3, budget=3)[0]
    monkeypatch.setattr(DEVICE, "attention", (backend,))
    monkeypatch.setattr("rig.load", lambda platform: SimpleNamespace(open=lambda place: DEVICE))
    got = Rig(path).generate([[5, 6, 7, 8, 9]], 4, chunk=3, budget=3)[0]
    assert backend.calls
    assert (got.tokens, got.logprobs) == (want.tokens, want.logprobs)
    binder = Binder(())
    heads = model(path, binder=binder).attention[0][1]
    lines = {c.op: c for c in binder.bindings if c.op in ("rope", "attend_fused") or c.spec.get("size") == heads.head_dim}
    assert set(lines) == {"attend_fused"}
    assert lines["attend_fused"].kernel == "fuses"
    assert (lines["attend_fused"].spec["eps"] is not None) == (name == "qwen3")


def test_what_attention_does_not_turn_is_said_in_the_plan_and_done_by_ops(tmp_path):
    path, binder = make_checkpoint("qwen3", tmp_path, tokenizer=False), Binder(())
    model(path, binder=binder, attention=(Turns("angles are wide"),))
    (line,) = (c for c in binder.bindings if c.op == "attend_fused")
    assert (line.kernel, line.refused) == ("ops", (("fuses", "angles are wide"),))
    assert "rope" in {c.op for c in binder.bindings}


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
        shard_shape((10, 3), 0, 4)


def test_state_has_a_cache_per_layer_of_its_groups_size(tmp_path):
    m = model(make_checkpoint("qwen3-windowed", tmp_path, tokenizer=False))
    state = make_state(m, DEVICE, blocks=[5, 9], slots=3, max_len=64)
    assert [kv.shape[0] for kv in state["kv"]] == [5, 9, 5]
    assert tuple(state["history"].shape) == (3, 65)
    with pytest.raises(ValueError, match="1 block counts for 2 KV groups"):
        make_state(m, DEVICE, blocks=[5], slots=3, max_len=64)


def test_attention_is_chosen_by_name():
    texts, used = [], []
    for name in ("auto", "TORCH_SDPA", "torch-paged"):
        llm = LLM(device="cpu", dtype="float32", attention_backend=name, max_model_len=64, num_gpu_blocks_override=16)
        used.append(" ".join(line for line in llm.kernel_plan if "attention" in line))
        texts.append(llm.generate("3 + 4 =", SamplingParams(temperature=0, max_tokens=6), use_tqdm=False)[0].outputs[0].text)
        llm.shutdown()
    assert len(set(texts)) == 1
    assert ["torch-paged" in plan for plan in used[1:]] == [True, True]
    error = r"attention_backend: 'FLASHINFER' is not available on this device; supported: .*torch-paged"
    with pytest.raises(ConfigError, match=error):
        LLM(device="cpu", attention_backend="FLASHINFER")
