"""Settings of older decoders: what a configuration must say, and what is refused."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import transformers
from test_by_other_names import compared, published, renamed
from transformers.models.deepseek_v2.modeling_deepseek_v2 import DeepseekV2Moe
from zoo import SMALL, spread

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
    published(tmp_path / "x", model, config, renamed(("mlp.gate.weight", "mlp.router.weight")))
    compared(tmp_path / "x", lambda ids: model(torch.tensor([ids])).logits[0])
