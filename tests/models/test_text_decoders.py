"""Settings of older decoders: what a configuration must say, and what is refused."""

from __future__ import annotations

from typing import Any

import pytest

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
