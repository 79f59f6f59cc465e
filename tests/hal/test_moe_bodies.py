"""Routing, experts and attention sinks as defined here, against transformers' modules."""

from __future__ import annotations

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from transformers import DeepseekV3Config, GptOssConfig, MixtralConfig, Qwen3MoeConfig
from transformers.models.deepseek_v3 import modeling_deepseek_v3 as deepseek
from transformers.models.gpt_oss import modeling_gpt_oss as gpt_oss
from transformers.models.mixtral import modeling_mixtral as mixtral
from transformers.models.qwen3_moe import modeling_qwen3_moe as qwen

from thalweg.hal import ops
from thalweg.hal.attention import AttnSpec
from thalweg.hal.testing import sequences as seq

HIDDEN, FFN, EXPERTS, K = 32, 24, 8, 3


def _router(made: torch.nn.Module) -> tuple[torch.nn.Module, torch.Tensor]:
    torch.manual_seed(0)
    for p in made.parameters():
        torch.nn.init.normal_(p)
    return made, torch.randn(11, HIDDEN)


def _same(got: tuple[torch.Tensor, torch.Tensor], weights: torch.Tensor, ids: torch.Tensor) -> None:
    """The same experts with the same weights, in whatever order."""
    for (i, w), (j, v) in zip(zip(*got, strict=True), zip(ids, weights, strict=True), strict=True):
        assert dict(zip(i.tolist(), w.tolist(), strict=True)) == pytest.approx(dict(zip(j.tolist(), v.tolist(), strict=True)))


def test_routing_is_that_of_mixtral() -> None:
    config = MixtralConfig(hidden_size=HIDDEN, num_local_experts=EXPERTS, num_experts_per_tok=K)
    router, x = _router(mixtral.MixtralTopKRouter(config))
    logits, weights, ids = router(x)
    _same(ops.route(logits, k=K, scores="softmax", renormalise=True), weights, ids)


@pytest.mark.parametrize("renormalise", [False, True])
def test_routing_is_that_of_qwen3(renormalise: bool) -> None:
    config = Qwen3MoeConfig(hidden_size=HIDDEN, num_experts=EXPERTS, num_experts_per_tok=K, norm_topk_prob=renormalise)
    router, x = _router(qwen.Qwen3MoeTopKRouter(config))
    _, weights, ids = router(x)
    _same(ops.route(F.linear(x, router.weight), k=K, scores="softmax", renormalise=renormalise), weights, ids)


@pytest.mark.parametrize("renormalise", [False, True])
def test_grouped_routing_is_that_of_deepseek_v3(renormalise: bool) -> None:
    config = DeepseekV3Config(
        hidden_size=HIDDEN, n_routed_experts=16, num_experts_per_tok=K, n_group=4, topk_group=2,
        norm_topk_prob=renormalise, routed_scaling_factor=2.5,
    )  # fmt: skip
    router, x = _router(deepseek.DeepseekV3TopkRouter(config))
    router.e_score_correction_bias.copy_(torch.randn(16) / 2)
    logits, weights, ids = router(x)
    got = ops.route(
        logits,
        router.e_score_correction_bias,
        k=K,
        scores="sigmoid",
        renormalise=renormalise,
        scale=2.5,
        groups=4,
        top_groups=2,
    )
    _same(got, weights, ids)


def test_routing_with_normalised_weights_is_that_of_gpt_oss() -> None:
    """It takes the softmax of the chosen logits."""
    config = GptOssConfig(hidden_size=HIDDEN, num_local_experts=EXPERTS, num_experts_per_tok=K)
    router, x = _router(gpt_oss.GptOssTopKRouter(config))
    logits, weights, ids = router(x)
    _same(ops.route(logits, k=K, scores="softmax", renormalise=True), weights, ids)


def test_equal_scores_go_to_the_lower_expert() -> None:
    ids, weights = ops.route(torch.zeros(2, 6), k=3, scores="softmax", renormalise=True)
    assert ids.tolist() == [[0, 1, 2]] * 2
    assert weights.flatten().tolist() == pytest.approx([1 / 3] * 6)


def test_experts_are_those_of_mixtral() -> None:
    config = MixtralConfig(hidden_size=HIDDEN, intermediate_size=FFN, num_local_experts=EXPERTS, num_experts_per_tok=K)
    config._experts_implementation = "eager"
    made, x = _router(mixtral.MixtralExperts(config))
    ids = torch.stack([torch.randperm(EXPERTS)[:K] for _ in x])
    weights = torch.rand(x.shape[0], K)
    want = made(x, ids, weights)
    flat = (made.gate_up_proj.reshape(-1, HIDDEN), made.down_proj.reshape(-1, FFN))
    got = ops.experts(x, ids.to(torch.int32), weights, *flat, experts=EXPERTS)
    torch.testing.assert_close(got, want, rtol=1e-4, atol=1e-4)


def test_sinks_are_those_of_gpt_oss() -> None:
    """The kit's dense attention, to which every backend is held, against the published module's."""
    spec = AttnSpec(4, 2, 16, 0.25, "float32", sinks=True)
    s = seq.story(np.random.default_rng(0), spec, 9, 9)
    q, k, v = (torch.from_numpy(a).transpose(0, 1)[None] for a in (s.q, s.k, s.v))
    module = torch.nn.Module()
    module.num_key_value_groups, module.sinks = 2, torch.from_numpy(seq.sinks(spec))
    module.eval()
    mask = torch.full((9, 9), float("-inf")).triu(1)[None, None]
    want, _ = gpt_oss.eager_attention_forward(module, q, k, v, mask, scaling=0.25, dropout=0.0)
    np.testing.assert_allclose(seq.dense(s, spec, torch.float32), want[0].detach().numpy(), rtol=1e-5, atol=1e-5)
