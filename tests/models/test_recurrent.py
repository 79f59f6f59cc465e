"""Recurrent layers: what a sequence's state depends on, and what it does not. The text itself is held against transformers with
every other family (test_families.py, tests/integration)."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from rig import Rig, Seq
from zoo import VOCAB, edit_config, make_checkpoint

from thalweg.checkpoint.config import read_config
from thalweg.checkpoint.safetensors import open_checkpoint
from thalweg.errors import CheckpointError, UnsupportedModelError
from thalweg.hal import ops
from thalweg.hal.testing import cases
from thalweg.models import registry

NAMES = ["qwen3-next", "qwen3.5", "nemotron-h", "jamba", "lfm2", "kimi-linear", "minimax", "rwkv-4", "xlstm", "zamba", "zaya"]
QUICK = {
    ("qwen3-next", "cpu"),
    ("qwen3.5", "cpu"),
    ("qwen3.5", "reference"),
    ("nemotron-h", "cpu"),
    ("jamba", "cpu"),
    ("lfm2", "cpu"),
    ("kimi-linear", "cpu"),
    ("minimax", "cpu"),
}
OPS = {
    "causal_conv": (2, (0,)), "delta_rule": (5, (0, 1, 2, 3, 4)), "selective_scan": (8, (0, 1, 2, 3, 4)),
    "channel_delta_rule": (5, (0, 1, 2, 3, 4)),
    "ssd_scan": (7, (0, 1, 2, 3)),
    "decaying_average": (4, (0, 1)),
    "matrix_lstm": (5, (0, 1, 2, 3, 4)),
    "general_delta_rule": (6, (0, 1, 2, 3, 4, 5)),
}  # fmt: skip
"""Of each: the argument that is its cache, which those of the batch follow, and those that have a row for each token."""
PLATFORMS = ["reference", "cpu"]


def tokens(seed: int, n: int) -> list[int]:
    return np.random.default_rng(seed).integers(0, VOCAB, n).tolist()


def states(rig: Rig, s: Seq) -> list[torch.Tensor]:
    """What every recurrent layer keeps of a sequence now."""
    out = []
    for layer, group in enumerate(rig.model.layer_group):
        cache = rig.box.value["kv"][layer]
        if isinstance(cache, tuple):
            block = rig._table(group, rig.tables[group][[s.slot - 1]], np.array([s.slot]))[0, 0]
            out += [part[block].clone() for part in cache]
    return out


@pytest.mark.parametrize(
    ("name", "platform"),
    [pytest.param(n, p, marks=() if (n, p) in QUICK else pytest.mark.slow) for n in NAMES for p in PLATFORMS],
)
@pytest.mark.slow
def test_however_a_sequence_is_cut_into_steps_its_state_and_logprobs_are_the_same_bits(name, platform, tmp_path):
    """In one piece, token by token, in uneven chunks, and beside others that come and go."""
    path, prompt = make_checkpoint(name, tmp_path, tokenizer=False), tokens(1, 23)
    found = []
    for cuts in ([23], [1] * 23, [2, 9, 1, 7, 4], [16, 7]):
        rig = Rig(path, platform=platform, invariant=True)
        s = Seq(3, list(prompt), len(prompt))
        for i, n in enumerate(cuts):
            others = [Seq(slot, tokens(slot, 9), 9) for slot in (1, 2, 5)[: len(cuts) % 4]] if i == 0 else []
            rig.step([*((o, 2 + o.slot) for o in others), (s, n)], score=True)
        found.append((s.scores, s.logprobs, states(rig, s)))
    scores, logprobs, held = found[0]
    assert len(held) >= 3
    for other in found[1:]:
        assert all(torch.equal(a, b) for a, b in zip(held, other[2], strict=True))
        assert (scores, logprobs) == other[:2]


@pytest.mark.parametrize("platform", PLATFORMS)
def test_a_sequence_begins_from_zeros_whatever_its_block_holds(platform, tmp_path):
    """The rig's caches begin as NaN; here a block is another sequence's, and the sequence before wrote it."""
    path, prompt = make_checkpoint("qwen3-next", tmp_path, tokenizer=False), tokens(1, 12)
    fresh, used = Rig(path, platform=platform, invariant=True), Rig(path, platform=platform, invariant=True)
    for n in (7, 5, 3):
        used.step([(Seq(1, tokens(n, n), n), n)])
    want, got = Seq(1, list(prompt), 12), Seq(1, list(prompt), 12)
    used.steps[:] = 0
    for rig, s in ((fresh, want), (used, got)):
        rig.step([(s, 12)], score=True)
        rig.step([(s, 1)])
    assert got.tokens == want.tokens
    assert (got.scores, got.logprobs) == (want.scores, want.logprobs)
    assert all(torch.equal(a, b) for a, b in zip(states(fresh, want), states(used, got), strict=True))


@pytest.mark.parametrize("platform", PLATFORMS)
def test_a_state_that_is_read_and_not_written_stays_as_it_is(platform, tmp_path):
    """Two sequences go on from one snapshot, into blocks of their own."""
    rig = Rig(make_checkpoint("qwen3-next", tmp_path, tokenizer=False), platform=platform, invariant=True)
    shared, more = tokens(1, 8), (tokens(2, 3), tokens(3, 3))
    first = Seq(1, [*shared, *more[0]], 11)
    rig.step([(first, 8)])
    snapshot = states(rig, first)
    rig.step([(first, 3)])  # from the block that holds 8 tokens to another (the rig's second step)
    at = [i for i, g in enumerate(rig.model.groups) if g.kind == "state"]
    other = Seq(2, [*shared, *more[1]], 11, done=8)
    for g, t in enumerate(rig.tables):
        t[1] = t[0]  # keys and values are looked at, the state is read
        if g in at:
            t[1, 1] = t[2, 0]
    rig.steps[2] = 1
    rig.step([(other, 3)])
    rig.steps[1] = 1
    assert all(torch.equal(a, b) for a, b in zip(snapshot, states(rig, first), strict=True))
    alone = Rig(make_checkpoint("qwen3-next", tmp_path, tokenizer=False), platform=platform, invariant=True)
    s = Seq(1, [*shared, *more[1]], 11)
    alone.step([(s, 11)])
    assert (other.tokens[11:], other.logprobs) == (s.tokens[11:], s.logprobs)


@pytest.mark.parametrize("name", OPS)
@pytest.mark.parametrize("platform", PLATFORMS)
@pytest.mark.sampled(2)
def test_the_rows_of_other_sequences_change_no_bit(name, platform):
    """Each sequence of the op's samples alone, against all of them together."""
    op, device, at = ops.all_ops()[name], cases_device(platform), OPS[name][0] + 1
    for sample in op.samples:
        args = cases.host_arguments(op, sample, "float32")
        for kernel in cases.kernels_of(device, op):
            bound = cases.bind(op, sample, args, "float32", kernel)
            if kernel and bound.choice.kernel != kernel.name:
                continue
            whole, held = cases.run(device, bound, cases.put(device, op, bound, args))
            for s in range(args[at + 4].max() + 1):
                alone, kept = cases.run(device, bound, cases.put(device, op, bound, _only(op, args, s)))
                np.testing.assert_array_equal(alone, whole[(args[at + 4] == s).numpy()])
                block = int(args[at][s, 1])
                np.testing.assert_array_equal(kept[block], held[block])


def _only(op, args: list[torch.Tensor], s: int) -> list[torch.Tensor]:
    at, per_token = OPS[op.name]
    table, context, query, _, token_seq = args[at + 1 : at + 6]
    mine = token_seq == s
    out = [a[mine] if i in per_token else a for i, a in enumerate(args[: at + 1])]
    query = query[s : s + 1]
    batch = [table[s : s + 1], context[s : s + 1], query, query - 1, torch.zeros(int(mine.sum()), dtype=torch.int32)]
    return [*out, *batch, *args[at + 6 :]]


def cases_device(platform: str):
    from thalweg.hal.discovery import load
    from thalweg.hal.platform import Place

    return load(platform).open(Place())


def test_layers_that_guess_tokens_ahead_are_left_out_by_name(tmp_path):
    """A file with more than the model is refused, but for what the family names."""
    from safetensors.torch import load_file, save_file

    path = make_checkpoint("qwen3-next", tmp_path, tokenizer=False)
    (file,) = path.glob("*.safetensors")
    held = load_file(file)
    save_file({**held, "mtp.layers.0.input_layernorm.weight": torch.ones(48)}, file)
    Rig(path)
    save_file({**held, "mtx.weight": torch.ones(48)}, file)
    with pytest.raises(CheckpointError, match=r"mtx\.weight"):
        Rig(path)


def test_a_checkpoint_of_a_multimodal_wrapper_is_read_by_its_prefix(tmp_path):
    from safetensors.torch import load_file, save_file

    path = make_checkpoint("qwen3.5", tmp_path, tokenizer=False)
    want = Rig(path).generate([tokens(1, 9)], 3, 9, 9)[0]
    (file,) = path.glob("*.safetensors")
    held = {n.replace("model.", "model.language_model.", 1): t for n, t in load_file(file).items()}
    save_file({**held, "model.visual.patch_embed.weight": torch.ones(3, 3)}, file)
    assert Rig(path).generate([tokens(1, 9)], 3, 9, 9)[0].logprobs == want.logprobs
    assert any(n.startswith("model.language_model.") for n in open_checkpoint(path).names)


@pytest.mark.parametrize(
    ("changes", "error", "words"),
    [
        ({"linear_num_value_heads": 5}, CheckpointError, "linear_num_value_heads"),
        ({"linear_conv_kernel_dim": 1}, CheckpointError, "linear_conv_kernel_dim"),
        ({"layer_types": ["full_attention"]}, CheckpointError, "layer_types"),
        ({"layer_types": ["mamba"] * 7}, UnsupportedModelError, "'mamba'"),
        ({"num_experts_per_tok": 9}, CheckpointError, "num_experts_per_tok"),
    ],
)
def test_a_configuration_that_cannot_be_is_refused_by_its_field(changes, error, words, tmp_path):
    path = make_checkpoint("qwen3-next", tmp_path, tokenizer=False)
    edit_config(path, **changes)
    config = read_config(path)
    with pytest.raises(error, match=words):
        registry.family(config)(config)


def test_layers_follow_the_interval_where_no_list_names_them(tmp_path):
    path = make_checkpoint("qwen3-next", tmp_path, tokenizer=False)
    edit_config(path, layer_types=None, full_attention_interval=3)
    config = read_config(path)
    kinds = [type(each.mixer).__name__ for each in registry.family(config)(config).layers]
    assert kinds == ["DeltaNet", "DeltaNet", "Attention", "DeltaNet", "DeltaNet", "Attention", "DeltaNet"]
