"""A key that is absent from config.json means what the family's configuration class of transformers makes of it."""

from __future__ import annotations

import pytest
from zoo import ALL

from thalweg.checkpoint.spelling import settled
from thalweg.models import registry

SAID = (
    "vocab_size", "hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads", "num_key_value_heads",
    "max_position_embeddings",
)  # fmt: skip
"""What published files of these families say."""
MORE_SAID = {"opt": ("ffn_dim",), "ministral3": ("rope_parameters",), "glm4_moe": ("head_dim",)}
"""The same of single families, by model_type."""


@pytest.mark.parametrize("kind", sorted({kind for kind, _ in ALL.values()}, key=lambda kind: kind.__name__))
def test_an_absent_key_means_what_it_means_to_transformers(kind) -> None:
    # Of Gemma 3n's the last 15 read earlier ones' caches. Gemma 4 names layers by numbers, which are padded beyond 10.
    layers = 25 if kind.model_type in ("gemma3n_text", "gemma4_text") else 9
    made = {"num_hidden_layers": layers} | ({"head_dim": 128} if kind.model_type == "glm4_moe" else {})
    whole = settled(kind(**made).to_dict())
    name = f"{kind.__name__.removesuffix('Config').removesuffix('Text')}ForCausalLM"
    name = {"GPT2ForCausalLM": "GPT2LMHeadModel"}.get(name, name)
    said = {
        "architectures": [name],
        **{key: whole[key] for key in (*SAID, *MORE_SAID.get(whole["model_type"], ())) if key in whole},
    }
    whole["architectures"] = [name]
    assert registry.family(said)(said) == registry.family(whole)(whole)
