"""Latent attention: what a token does not depend on, how checkpoints hold its up-projections, and what configurations say of it
and of its mixtures. The text itself is held against transformers in test_families.py and tests/integration."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from rig import Rig, Seq
from safetensors.torch import load_file, save_file
from zoo import VOCAB, edit_config, make_checkpoint

from thalweg.checkpoint.config import read_config
from thalweg.errors import CheckpointError, UnsupportedModelError
from thalweg.hal.weights import QTensor, WeightFormat
from thalweg.models import registry
from thalweg.models.files import _undone
from thalweg.models.spec import MLP

NAME = "deepseek-v3"
KV_B = "model.layers.{}.self_attn.kv_b_proj"


def tokens(seed: int, n: int) -> list[int]:
    return np.random.default_rng(seed).integers(0, VOCAB, n).tolist()


def logprobs(path, platform="cpu") -> list[float]:
    (s,) = Rig(path, platform=platform).generate([tokens(1, 9)], 3, 9, 9)
    return s.scores + s.logprobs


def rewrite(path, change) -> None:
    (file,) = path.glob("*.safetensors")
    held = load_file(file)
    change(held)
    save_file({n: t.contiguous() for n, t in held.items()}, file, {"format": "pt"})


@pytest.mark.parametrize("platform", [pytest.param("reference", marks=pytest.mark.slow), "cpu"])
@pytest.mark.parametrize("name", [NAME, "glm-moe-dsa", "deepseek-v4", "qwen4-exp", "hy-v4"])
def test_however_a_sequence_is_cut_into_steps_its_logprobs_are_the_same_bits(name, platform, tmp_path):
    """The second and the last choose what their tokens read, and the others pool windows of them."""
    path, prompt, found = make_checkpoint(name, tmp_path, tokenizer=False), tokens(1, 23), []
    for cuts in ([23], [1] * 23, [2, 9, 1, 7, 4]):
        rig, s = Rig(path, platform=platform, invariant=True), Seq(3, list(prompt), 23)
        for i, n in enumerate(cuts):
            others = [Seq(slot, tokens(slot, 19), 19) for slot in (1, 2, 5)[: len(cuts) % 4]] if i == 0 else []
            rig.step([*((o, 13 + o.slot) for o in others), (s, n)], score=True)
        found.append((s.scores, s.logprobs))
    assert found[1] == found[0]
    assert found[2] == found[0]


def test_up_projections_may_be_stored_apart(tmp_path):
    path = make_checkpoint(NAME, tmp_path, tokenizer=False)
    want = logprobs(path)

    def part(held):
        for i in range(3):
            both = held.pop(f"{KV_B.format(i)}.weight").view(4, 24 + 20, 32)
            for name, each in (("k_b_proj", both[:, :24]), ("v_b_proj", both[:, 24:])):
                held[f"{KV_B.format(i).replace('kv_b_proj', name)}.weight"] = each.flatten(0, 1)

    rewrite(path, part)
    assert logprobs(path) == want
    rewrite(path, lambda held: held.pop("model.layers.1.self_attn.v_b_proj.weight"))
    with pytest.raises(CheckpointError, match=r"lacks model\.layers\.1\.self_attn\.kv_b_proj\.weight"):
        Rig(path)


def test_what_quantised_products_do_to_their_inputs_becomes_part_of_the_dense_matrix():
    codes, scales = torch.randint(-8, 8, (6, 8), dtype=torch.int8), torch.rand(6, 1)
    perm, by, x = torch.randperm(8), torch.rand(8), torch.randn(3, 8)
    data = {"codes": codes, "scales": scales, "perm": perm.to(torch.int32)[None], "in_scale": by[None]}
    w = QTensor(WeightFormat("int", 4), (6, 8), data)
    want = (x[:, perm] * by) @ (codes * scales).T
    torch.testing.assert_close(x @ _undone(w).T, want)


def test_layers_that_guess_tokens_ahead_are_left_out_by_number(tmp_path):
    path = make_checkpoint(NAME, tmp_path, tokenizer=False)
    rewrite(path, lambda held: held.update({"model.layers.3.eh_proj.weight": torch.ones(48, 96)}))
    Rig(path)
    edit_config(path, num_nextn_predict_layers=0, num_mtp_layers=None)
    with pytest.raises(CheckpointError, match=r"layers\.3\.eh_proj"):
        Rig(path)


def _spec(path, **changes):
    edit_config(path, **changes)
    config = read_config(path)
    return registry.family(config)(config)


@pytest.mark.parametrize(
    ("name", "changes", "error", "words"),
    [
        ("deepseek-v3", {"kv_lora_rank": 0}, CheckpointError, "kv_lora_rank"),
        ("deepseek-v3", {"n_group": 3}, CheckpointError, "n_group"),
        ("deepseek-v3", {"topk_group": 5}, CheckpointError, "topk_group"),
        ("deepseek-v3", {"scoring_func": "softmax"}, UnsupportedModelError, "scoring_func"),
        ("deepseek-v2", {"topk_method": "noaux_tc"}, UnsupportedModelError, "topk_method"),
        ("deepseek-v2", {"qk_rope_head_dim": 15}, CheckpointError, "head_dim"),
        ("glm-moe-dsa", {"indexer_types": ["shared", "full", "full", "full"]}, CheckpointError, "indexer_types"),
        ("glm-moe-dsa", {"indexer_types": None, "index_topk_pattern": "FSX"}, CheckpointError, "indexer_types"),
        ("glm-moe-dsa", {"index_topk": 0}, CheckpointError, "index_topk"),
        ("glm-moe-dsa", {"index_head_dim": 8}, CheckpointError, "index_head_dim"),
        ("glm4-moe-lite", {"mlp_layer_types": ["sparse", "dense"]}, CheckpointError, "mlp_layer_types"),
    ],
)
def test_a_configuration_that_cannot_be_is_refused_by_its_field(name, changes, error, words, tmp_path):
    path = make_checkpoint(name, tmp_path, tokenizer=False)
    with pytest.raises(error, match=words):
        _spec(path, **changes)


def test_which_layers_are_mixtures_and_what_scales_scores(tmp_path):
    path = make_checkpoint("deepseek-v2-lite", tmp_path, tokenizer=False)
    spec = _spec(path, num_hidden_layers=6, moe_layer_freq=2, n_shared_experts=0)
    assert [isinstance(each.ffn, MLP) for each in spec.layers] == [True, True, False, True, False, True]
    assert spec.layers[2].ffn.shared is None
    assert spec.layers[0].mixer.scale == pytest.approx(40**-0.5 * (0.07 * np.log(4) + 1) ** 2)
    plain = _spec(path, rope_parameters={"rope_type": "yarn", "rope_theta": 1e4, "factor": 4.0, "mscale": 0.7})
    assert plain.layers[0].mixer.scale == pytest.approx(40**-0.5)
