"""Rules for layers' names, of every kind that quantised checkpoints use: one table."""

from __future__ import annotations

import pytest

from thalweg.errors import UnsupportedModelError
from thalweg.quantization.formats import patterns

Q, UP, HEAD = "model.layers.3.self_attn.q_proj", "model.layers.3.mlp.up_proj", "lm_head"
GATE = "model.layers.3.mlp.gate_proj"
EXPERT = "model.layers.3.mlp.experts.11.up_proj"
TABLE = [
    # whole names, modules, classes, and "re:" from the start of the name
    ("matches", "lm_head", HEAD, True),
    ("matches", "head", HEAD, False),
    ("matches", "Linear", Q, True),
    ("matches", Q, Q, True),
    ("matches", "model.layers.3.self_attn", Q, True),
    ("matches", "model.layers.3.self", Q, False),
    ("matches", "model.layers.3.mlp.experts.1", EXPERT, False),
    ("matches", "model.layers.3.mlp.experts", EXPERT, True),
    ("matches", "q_proj", Q, False),
    ("matches", "re:.*q_proj", Q, True),
    ("matches", "re:q_proj", Q, False),
    ("matches", "re:.*layers.3[.]mlp[.].*", UP, True),
    ("matches", "re:.*mlp[.]gate$", GATE, False),
    # of products that are computed at once
    ("matches", "model.layers.3.self_attn.qkv_proj", Q, True),
    ("matches", "model.layers.3.mlp.gate_up_proj", UP, True),
    ("matches", "re:.*gate_up_proj", "model.layers.3.mlp.down_proj", False),
    ("matches", "re:.*qkv_proj$", "model.layers.3.self_attn.o_proj", False),
    ("contains", "qkv_proj", "model.layers.3.self_attn.v_proj", True),
    ("ends", "qkv_proj", Q, True),
    ("globs", "*.qkv_proj", "model.layers.3.self_attn.k_proj", True),
    ("searches", r"qkv_proj$", Q, True),
    ("matches", "re:.*up_proj", GATE, False),
    ("matches", "re:.*gate_up_proj", GATE, True),
    ("contains", "up_proj", GATE, False),
    ("contains", "gate_up_proj", GATE, True),
    ("ends", "up_proj", GATE, False),
    ("globs", "*up_proj", GATE, False),
    ("globs", "*gate_up*", GATE, True),
    ("searches", "up_proj", GATE, False),
    ("dynamic_override", {"-:.*up_proj": {}}, GATE, {}),
    # of a multimodal model's text part
    ("matches", "model.language_model.layers.3.mlp.up_proj", UP, True),
    ("matches", "language_model.model.layers.3.mlp.gate_up_proj", UP, True),
    ("matches", "language_model.lm_head", HEAD, True),
    ("matches", "re:^model\\.language_model\\.layers\\.3\\.", Q, True),
    ("matches", "re:model.visual.*", Q, False),
    ("globs", "model.language_model.layers.*.self_attn.*", Q, True),
    ("globs", "language_model.*", UP, True),
    # parts of names
    ("contains", "self_attn", Q, True),
    ("contains", "layers.3.", UP, True),
    ("contains", "layers.33.", UP, False),
    ("contains", "gate", GATE, True),
    ("contains", "visual", Q, False),
    # ends of names, by whole words
    ("ends", "q_proj", Q, True),
    ("ends", "proj", Q, False),
    ("ends", "mlp.up_proj", UP, True),
    ("ends", "mlp.up_proj", EXPERT, False),
    ("ends", "model.layers.3", Q, False),
    # fnmatch
    ("globs", "*self_attn*", Q, True),
    ("globs", "lm_head", HEAD, True),
    ("globs", "*lm_head*", HEAD, True),
    ("globs", "model.layers.?.mlp.*", UP, True),
    ("globs", "model.layers.[12].mlp.*", UP, False),
    ("globs", "model.layers.3.self_attn", Q, True),
    ("globs", "layers.3*", Q, False),
    ("globs", "*.Q_PROJ", Q, False),
    ("globs", "*mlp.gate", GATE, False),
    # regular expressions that may begin anywhere
    ("searches", r"layers\.(1|3)\.mlp", UP, True),
    ("searches", r"^layers", UP, False),
    ("searches", r"experts\.\d+\.", EXPERT, True),
    # signed: the first that matches from the start decides
    ("dynamic_override", {r"+:.*\.up_proj": {"bits": 8}}, UP, {"bits": 8}),
    ("dynamic_override", {r".*\.up_proj": {"bits": 8}}, UP, {"bits": 8}),
    ("dynamic_override", {r"-:.*\.up_proj": {}}, UP, None),
    ("dynamic_override", {r"-:.*\.up_proj": {}}, Q, {}),
    ("dynamic_override", {r"+:\.up_proj": {"bits": 8}}, UP, {}),
    ("dynamic_override", {r"+:.*gate_up_proj": {"bits": 8}}, UP, {"bits": 8}),
    ("dynamic_override", {r"-:.*qkv_proj": {}}, Q, None),
    ("dynamic_override", {r"+:model\.layers\.3\..*": {"group_size": 32}, r"-:.*up_proj": {}}, UP, {"group_size": 32}),
    ("dynamic_override", {r"-:.*up_proj": {}, r"+:model\.layers\.3\..*": {"group_size": 32}}, UP, None),
    ("dynamic_override", {r"+:model\.language_model\.layers\.3\.mlp.*": {"bits": 8}}, UP, {"bits": 8}),
]


@pytest.mark.parametrize(("kind", "rule", "layer", "expected"), TABLE)
def test_a_rule_means_these_layers(kind, rule, layer, expected):
    rules = rule if kind == "dynamic_override" else ["nothing.like.it", rule]
    assert getattr(patterns, kind)(layer, rules) == expected


@pytest.mark.parametrize("kind", ["matches", "contains", "ends", "globs", "searches"])
def test_no_rules_mean_no_layer(kind):
    assert getattr(patterns, kind)(Q, []) is False


def test_what_is_no_regular_expression_is_named():
    with pytest.raises(UnsupportedModelError, match=r"'\(q_proj' is no regular expression: missing \)"):
        patterns.matches(Q, ["re:(q_proj"])
