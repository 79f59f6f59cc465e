"""Mistral Large 4, for text: its settings, its names of tensors, and the engine under pressure, against transformers."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from definitions import compare, compare_under_pressure
from safetensors.torch import load_file, save_file
from test_text_parts import PIXTRAL, SEEING, TEXT
from zoo import VOCAB, spread

from thalweg.checkpoint.spelling import canonical_config
from thalweg.errors import CheckpointError, UnsupportedModelError
from thalweg.models import registry

NAME = "MistralLarge4ForConditionalGeneration"


def save(path: Path) -> Any:
    """A checkpoint, and token ids -> logits [T, vocab] of its class of transformers."""
    config = transformers.MistralLarge4Config(
        text_config=copy.deepcopy({**TEXT, **SEEING["mistral-large-4"][1]}), vision_config=PIXTRAL, image_token_id=500
    )
    model = transformers.AutoModelForImageTextToText.from_config(
        config, dtype=torch.float32, attn_implementation="eager"
    ).eval()
    spread(model, 5)
    model.save_pretrained(path)

    @torch.inference_mode()
    def logits(ids: list[int]) -> torch.Tensor:
        return model(torch.tensor([ids])).logits[0].float()

    return logits


@pytest.mark.slow
def test_chunks_preemption_and_prefix_hits_change_nothing(tmp_path: Path) -> None:
    compare_under_pressure(tmp_path, save(tmp_path), VOCAB)


def test_names_as_transformers_has_them_in_memory(tmp_path: Path) -> None:
    """`save_pretrained` writes those of published files."""
    logits = save(tmp_path)
    held = load_file(tmp_path / "model.safetensors")
    assert {"lerope.alpha", "layers.0.attention.wq.weight", "layers.2.experts.0.w1.weight"} <= {*held}
    pairs = (
        (".attention.ssmax_scaling.s", ".self_attn.softmax_scaling.scale"), (".attention.", ".self_attn."),
        (".ssmax_scaling.s", ".softmax_scaling.scale"), (".ssmax_scaling.b", ".softmax_scaling.bias"),
        (".gate.weight", ".mlp.gate.weight"), (".shared_experts.", ".mlp.shared_experts."), (".experts.", ".mlp.experts."),
        (".feed_forward.", ".mlp."), (".attention_norm.", ".input_layernorm."), (".ffn_norm.", ".post_attention_layernorm."),
        (".wq.", ".q_proj."), (".wkv_a_with_mqa.", ".kv_a_proj_with_mqa."), (".wkv_b.", ".kv_b_proj."), (".wo.", ".o_proj."),
        (".kv_a_norm.", ".kv_a_layernorm."), (".w1.", ".gate_proj."), (".w2.", ".down_proj."), (".w3.", ".up_proj."),
    )  # fmt: skip
    roots = {"tok_embeddings": "embed_tokens", "lerope": "rotary_emb", "layers": "layers", "norm": "norm"}
    renamed = {}
    for name, tensor in held.items():
        root, _, rest = name.partition(".")
        if root == "output":
            renamed["lm_head.weight"] = tensor
        elif root in roots:
            rest = f".{rest}"
            for old, new in pairs:
                rest = rest.replace(old, new)
            renamed[f"model.language_model.{roots[root]}{rest}"] = tensor
    save_file(renamed, tmp_path / "model.safetensors", {"format": "pt"})
    compare(tmp_path, logits, VOCAB)


SIZES = {
    "vocab_size": 99, "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 6, "num_attention_heads": 4,
    "num_key_value_heads": 4, "max_position_embeddings": 64, "model_type": "mistral_large4_text",
}  # fmt: skip


@pytest.mark.parametrize(
    "said",
    [
        {},
        {"no_rope_layer_interval": 3, "index_topk_freq": 2, "index_skip_topk_offset": 1},
        {"no_rope_layers": [0, 1, 1, 0, 1, 1], "first_k_dense_replace": 2, "n_group": 4, "topk_group": 2},
    ],
)
def test_an_absent_key_means_what_it_means_to_transformers(said: dict[str, Any]) -> None:
    whole = {**transformers.MistralLarge4TextConfig(**{**SIZES, **said}).to_dict(), "architectures": [NAME]}
    ours = {**SIZES, **said, "architectures": [NAME]}
    read = [canonical_config(each) for each in (whole, ours)]
    assert registry.family(read[0])(read[0]) == registry.family(read[1])(read[1])


@pytest.mark.parametrize(
    ("said", "error", "match"),
    [
        ({"kv_source_layers": [0, 0, 2, 3, 4, 5]}, UnsupportedModelError, "kv_source_layers"),
        ({"attention_bias": True}, UnsupportedModelError, "attention_bias"),
        ({"no_rope_layers": [1]}, CheckpointError, "no_rope_layers"),
        ({"index_head_dim": 32}, CheckpointError, "index_head_dim"),
    ],
)
def test_what_is_refused(said: dict[str, Any], error: type[Exception], match: str) -> None:
    config = {**SIZES, **said, "architectures": [NAME]}
    with pytest.raises(error, match=match):
        registry.family(config)(config)
