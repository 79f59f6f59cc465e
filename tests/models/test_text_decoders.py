"""Settings of older decoders: what a configuration must say, and what is refused."""

from __future__ import annotations

from functools import partial
from typing import Any

import pytest
import torch
import transformers
from test_by_other_names import compared, rename_pairs, write_published
from transformers.models.deepseek_v2.modeling_deepseek_v2 import DeepseekV2Moe
from zoo import SMALL, spread
from zoo_text import LATENT

from thalweg.errors import UnsupportedModelError
from thalweg.models import registry

BERT: dict[str, Any] = {
    "vocab_size": 99, "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2, "num_attention_heads": 4,
    "max_position_embeddings": 64,
}  # fmt: skip


@pytest.mark.parametrize("name", ["BertLMHeadModel", "RobertaForCausalLM", "BertGenerationDecoder"])
def test_a_bert_that_attends_to_both_sides_generates_no_text(name):
    config = {**BERT, "architectures": [name]}
    with pytest.raises(UnsupportedModelError, match="is_decoder: false means bidirectional attention"):
        registry.family(config)(config)
    assert registry.family(config)({**config, "is_decoder": True}).causal


def test_heads_of_bert_by_the_names_of_older_files():
    """Those have a copy of the embedding, and of the bias."""
    config = {**BERT, "architectures": ["BertLMHeadModel"], "is_decoder": True}
    spec = registry.family(config)(config)
    names = {
        "cls.predictions.bias": "cls.predictions.bias",
        "cls.predictions.decoder.bias": None,
        "cls.predictions.decoder.weight": None,
        "bert.pooler.dense.weight": None,
        "cls.seq_relationship.weight": None,
        "bert.encoder.layer.1.crossattention.self.query.weight": None,
        "bert.encoder.layer.1.attention.self.query.weight": "encoder.layer.1.attention.self.query.weight",
    }
    assert {name: spec.rename(name) for name in names} == names


@pytest.mark.parametrize("name", ["XverseForCausalLM", "XverseMoeForCausalLM"])
def test_xverse_has_a_mixture_in_every_layer(name, tmp_path):
    """Llama with DeepSeek V2's mixture: softmax over all experts, then the best ones, and shared ones."""
    settings = transformers.LlamaConfig(**SMALL, attn_implementation="eager")
    model = transformers.AutoModelForCausalLM.from_config(settings, dtype=torch.float32)
    mixed = {"n_routed_experts": 6, "n_shared_experts": 2, "num_experts_per_tok": 2, "moe_intermediate_size": 24}
    for layer in model.model.layers:
        layer.mlp = DeepseekV2Moe(
            transformers.DeepseekV2Config(**SMALL, **mixed, topk_method="greedy", routed_scaling_factor=1.0)
        )
    spread(model.eval(), 12)
    config = {
        **settings.to_dict(), "architectures": [name], "intermediate_size": 24, "num_experts": 6, "num_shared_experts": 2,
        "moe_top_k": 2, "head_dim": None, "attention_bias": None, "mlp_bias": None,
    }  # fmt: skip
    write_published(tmp_path / "x", model, config, rename_pairs(("mlp.gate.weight", "mlp.router.weight")))
    compared(tmp_path / "x", lambda ids: model(torch.tensor([ids])).logits[0])


@pytest.mark.parametrize("sandwich", [True, False])
def test_pangu_ultra_norms_before_and_after_each_part(sandwich, tmp_path):
    """DeepSeek V3 without groups and expert biases, and with more norms."""
    sizes = {**SMALL, **LATENT, "q_lora_rank": 40, "n_routed_experts": 8, "num_experts_per_tok": 3, "moe_intermediate_size": 24,
             "first_k_dense_replace": 1, "n_group": 1, "topk_group": 1, "routed_scaling_factor": 1.7}  # fmt: skip
    settings = transformers.DeepseekV3Config(**sizes, attn_implementation="eager")
    model = transformers.AutoModelForCausalLM.from_config(settings, dtype=torch.float32)
    norm = type(model.model.norm)
    for layer in model.model.layers if sandwich else ():
        layer.pre_mlp_layernorm, layer.post_mlp_layernorm = (norm(48, eps=1e-5) for _ in range(2))
        layer.forward = partial(_sandwich, layer)
    spread(model.eval(), 14)
    for name, buffer in model.named_buffers():
        if name.endswith("e_score_correction_bias"):
            buffer.zero_()
    config = {
        **settings.to_dict(), "architectures": ["PanguUltraMoEForCausalLM"], "sandwich_norm": sandwich, "rope_theta": 10000.0,
        "rope_parameters": None, "num_nextn_predict_layers": 0,
    }  # fmt: skip
    write_published(
        tmp_path / "p", model, config, lambda held: {n: t for n, t in held.items() if not n.endswith("correction_bias")}
    )  # fmt: skip
    compared(tmp_path / "p", lambda ids: model(torch.tensor([ids])).logits[0])
    with pytest.raises(UnsupportedModelError, match="use_mhc: parts of openPangu"):
        registry.family(config)({**config, "use_mhc": True})


def _sandwich(layer: Any, x: torch.Tensor, **more: Any) -> torch.Tensor:
    out = layer.self_attn(hidden_states=layer.input_layernorm(x), **more)[0]
    x = x + layer.post_attention_layernorm(out)
    return x + layer.post_mlp_layernorm(layer.mlp(layer.pre_mlp_layernorm(x)))
