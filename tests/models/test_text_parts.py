"""Models that also see, served for text: the whole checkpoint, its own class of transformers asked with text alone."""

from __future__ import annotations

import copy
import functools
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import transformers
from rig import Rig
from safetensors.torch import load_file, save_file
from test_families import greedy, prompts
from zoo import ALL, SMALL, make_checkpoint, spread
from zoo_more import GEMMA4_ROPES, GEMMA4_TYPES

from thalweg.checkpoint.config import read_config
from thalweg.models import registry

NEW = 6
HOST = "thalweg.backends.torch_gpu.testing:HostGpuPlatform"
TEXT = {**SMALL, "head_dim": 16, "pad_token_id": 0}
MROPE = {"rope_type": "default", "rope_theta": 10000.0, "mrope_section": [2, 3, 3]}
SIGLIP = {
    "hidden_size": 16, "intermediate_size": 24, "num_hidden_layers": 1, "num_attention_heads": 2, "image_size": 32,
    "patch_size": 16, "model_type": "siglip_vision_model",
}  # fmt: skip
PIXTRAL = {
    "hidden_size": 32, "intermediate_size": 24, "num_hidden_layers": 1, "num_attention_heads": 2, "image_size": 28,
    "patch_size": 14, "head_dim": 16, "model_type": "pixtral",
}  # fmt: skip
QWEN = {
    "depth": 1, "hidden_size": 16, "intermediate_size": 24, "num_heads": 2, "out_hidden_size": 48, "patch_size": 4,
    "deepstack_visual_indexes": [0], "num_position_embeddings": 16,
}  # fmt: skip
GEMMA4 = {
    "hidden_size": 16, "intermediate_size": 24, "num_hidden_layers": 1, "num_attention_heads": 2, "num_key_value_heads": 2,
    "head_dim": 8, "patch_size": 4, "position_embedding_size": 64,
}  # fmt: skip
GEMMA4_TEXT = {
    "num_hidden_layers": 6, "global_head_dim": 32, "sliding_window": 10, "layer_types": GEMMA4_TYPES,
    "rope_parameters": GEMMA4_ROPES,
}  # fmt: skip
HEARS = {
    "hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "output_proj_dims": 16,
    "subsampling_conv_channels": [4, 4],
}  # fmt: skip
LLAMA4 = {
    "hidden_size": 16, "intermediate_size": 64, "num_hidden_layers": 1, "num_attention_heads": 2, "image_size": 28,
    "patch_size": 14, "vision_output_dim": 16, "projector_input_dim": 16, "projector_output_dim": 16,
}  # fmt: skip
YARN = {
    "rope_type": "yarn", "rope_theta": 1000.0, "factor": 16.0, "original_max_position_embeddings": 16, "beta_fast": 4.0,
    "beta_slow": 0.5, "mscale": 1.0, "mscale_all_dim": 1.0, "llama_4_scaling_beta": 0.4,
}  # fmt: skip
LATENT = {
    "num_hidden_layers": 3, "num_key_value_heads": 4, "q_lora_rank": 40, "kv_lora_rank": 32, "qk_nope_head_dim": 24,
    "qk_rope_head_dim": 16, "v_head_dim": 20, "first_k_dense_replace": 1, "n_routed_experts": 8, "n_group": 4, "topk_group": 2,
    "num_experts_per_tok": 3, "moe_intermediate_size": 24, "routed_scaling_factor": 1.7,
}  # fmt: skip
MOON = {
    "hidden_size": 32, "intermediate_size": 24, "num_hidden_layers": 1, "num_attention_heads": 2, "patch_size": 14,
    "pos_emb_height": 4, "pos_emb_width": 4,
}  # fmt: skip
SEEING: dict[str, tuple[Any, dict[str, Any], dict[str, Any]]] = {
    "gemma3": (
        transformers.Gemma3Config, {"sliding_window": 10, "query_pre_attn_scalar": 24, "model_type": "gemma3_text"}, SIGLIP
    ),
    "gemma4": (
        functools.partial(transformers.Gemma4Config, audio_config=HEARS),
        {
            **GEMMA4_TEXT, "num_kv_shared_layers": 2, "hidden_size_per_layer_input": 8, "vocab_size_per_layer_input": 288,
            "attention_k_eq_v": True, "num_global_key_value_heads": 1, "model_type": "gemma4_text",
        },
        GEMMA4,
    ),
    "gemma4-unified": (
        functools.partial(transformers.Gemma4UnifiedConfig, audio_config={"audio_embed_dim": 16}),
        {**GEMMA4_TEXT, "model_type": "gemma4_unified_text"},
        {"patch_size": 4, "mm_embed_dim": 16, "mm_posemb_size": 8, "output_proj_dims": 16},
    ),
    "llama4": (
        transformers.Llama4Config,
        {
            "num_hidden_layers": 5, "intermediate_size": 24, "intermediate_size_mlp": 80, "num_local_experts": 4,
            "attention_chunk_size": 12, "floor_scale": 8, "interleave_moe_layer_step": 2, "model_type": "llama4_text",
        },
        LLAMA4,
    ),
    "mistral-small": (transformers.Mistral3Config, {"sliding_window": None, "model_type": "mistral"}, PIXTRAL),
    "ministral3": (transformers.Mistral3Config, {"rope_parameters": YARN, "model_type": "ministral3"}, PIXTRAL),
    "mistral-large-4": (
        transformers.MistralLarge4Config,
        {
            **{key: value for key, value in LATENT.items() if key != "q_lora_rank"}, "num_hidden_layers": 5, "index_topk": 9,
            "index_n_heads": 16, "index_head_dim": 24, "no_rope_layers": [1, 0, 1, 0, 1], "final_logit_softcapping": 4.0,
            "indexer_types": ["full", "full", "shared", "full", "full"], "model_type": "mistral_large4_text",
            "rope_parameters": {
                "rope_type": "yarn", "rope_theta": 1000.0, "factor": 16.0, "original_max_position_embeddings": 16,
                "beta_fast": 4.0, "beta_slow": 0.5, "attention_factor": 1.0,
            },
        },
        PIXTRAL,
    ),
    "mistral-small-4": (
        transformers.Mistral3Config, {**LATENT, "rope_parameters": YARN, "model_type": "mistral4", "head_dim": 40}, PIXTRAL
    ),
    "kimi-k2.5": (transformers.Kimi_K25Config, {**LATENT, "model_type": "deepseek_v3"}, MOON),
    "minimax-m3": (
        transformers.MiniMaxM3VLConfig,
        {
            "num_hidden_layers": 4, "head_dim": 32,
            "rope_parameters": {"rope_type": "default", "rope_theta": 1e4, "partial_rotary_factor": 0.5},
            "num_local_experts": 6, "num_experts_per_tok": 2,
            "intermediate_size": 24, "dense_intermediate_size": 80, "shared_intermediate_size": 32,
            "index_n_heads": 2, "index_head_dim": 24, "index_block_size": 3, "index_topk_blocks": 4,
            "layer_types": ["full_attention", "minimax_m3_sparse", "full_attention", "minimax_m3_sparse"],
            "mlp_layer_types": ["dense", "sparse", "sparse", "sparse"],
        },
        {"hidden_size": 16, "intermediate_size": 24, "num_hidden_layers": 1, "num_attention_heads": 2, "patch_size": 4},
    ),
    "glm5-next": (
        transformers.Glm5NextConfig,
        {
            **LATENT, "num_hidden_layers": 5, "qk_rope_head_dim": 0, "n_group": 2, "topk_group": 1, "linear_head_dim": 12,
            "linear_num_heads": 3, "linear_conv_kernel_dim": 3, "index_n_heads": 16, "index_head_dim": 24, "index_topk": 12,
            "index_kpool": 4, "swiglu_limit": 0.8, "hc_mult": 3, "hc_sinkhorn_iters": 5,
            "layer_types": [
                "linear_attention", "indexed_attention", "linear_attention", "indexed_attention", "indexed_attention"
            ],
            "indexer_types": ["full", "full", "full", "full", "shared"],
            "mlp_layer_types": ["dense", "sparse", "sparse", "dense", "sparse"],
        },
        {"hidden_size": 16, "intermediate_size": 24, "depth": 1, "num_heads": 2, "patch_size": 4, "out_hidden_size": 48},
    ),
    "dots3-note": (
        functools.partial(transformers.Dots3NoteConfig, audio_config={
            "hidden_size": 16, "intermediate_size": 24, "num_hidden_layers": 1, "num_attention_heads": 2, "feature_size": 16,
            "downsample_hidden_size": 4, "adapter_input_size": 16, "adapter_out_dim": 48}),
        {**ALL["dots3-note"][1], "model_type": "dots3_note_text"},
        {
            "hidden_size": 16, "intermediate_size": 24, "moe_intermediate_size": 24, "num_hidden_layers": 1,
            "num_attention_heads": 2, "mlp_layer_types": ["dense"], "adapter_in_dim": 16, "adapter_out_dim": 48,
        },
    ),
    "lfm3-vl": (
        transformers.Lfm3VlConfig,
        {
            "num_hidden_layers": 5, "sliding_window": 9, "conv_L_cache": 3, "model_type": "lfm3", "tie_word_embeddings": False,
            "rope_parameters": {
                "full_attention": {"rope_type": "proportional", "rope_theta": 1e4, "partial_rotary_factor": 0.5},
                "sliding_attention": {"rope_type": "default", "rope_theta": 1e3},
            },
        },
        {
            "hidden_size": 16, "intermediate_size": 24, "num_hidden_layers": 2, "num_attention_heads": 2,
            "num_key_value_heads": 1, "patch_size": 4, "layer_types": ["conv", "full_attention"],
        },
    ),
    "muse-glimmer": (
        transformers.MuseGlimmerConfig,
        {
            "num_hidden_layers": 5, "sliding_window": 9, "qk_scale_factor": 1.7, "output_multiplier": 0.6, "rope_theta": 1e3,
            "final_logit_softcapping": 4.0,
        },
        {"hidden_size": 16, "intermediate_size": 24, "num_hidden_layers": 1, "num_attention_heads": 2, "patch_size": 4},
    ),
    "muse-spark": (
        functools.partial(transformers.MuseSparkConfig, audio_config={
            "patch_sizes": [16, 8], "hidden_sizes": [8, 16], "depths": [1, 1], "num_hidden_layers": 2, "out_hidden_size": 48}),
        {
            "num_hidden_layers": 5, "sliding_window": 9, "qk_scale_factor": 1.7, "output_multiplier": 0.6, "rope_theta": 1e3,
            "final_logit_softcapping": 4.0, "num_local_experts": 6, "num_experts_per_tok": 2, "moe_intermediate_size": 24,
            "moe_hidden_size": 32, "mlp_layer_types": ["dense", "sparse", "sparse", "sparse", "sparse"],
            "model_type": "muse_spark_text", "routed_scaling_factor": 1.7,
        },
        {"hidden_size": 16, "intermediate_size": 24, "num_hidden_layers": 1, "num_attention_heads": 2, "patch_size": 4},
    ),
    "step-3.7": (
        transformers.Step3p7Config,
        {
            "num_hidden_layers": 4, "n_routed_experts": 6, "num_experts_per_tok": 2, "moe_intermediate_size": 24,
            "share_expert_dim": 32, "moe_router_scaling_factor": 1.7, "sliding_window": 9, "swiglu_limits": [0, 0, 0.4, 7.0],
            "swiglu_limits_shared": [0, 0.3, 0.2, 0], "num_sliding_attention_heads": 6, "moe_layers_enum": "1,2,3",
            "layer_types": ["full_attention", "sliding_attention", "sliding_attention", "full_attention"],
            "rope_theta": [5e4, 1e4, 1e4, 5e4], "partial_rotary_factors": [0.5, 1.0, 1.0, 0.5],
            "rope_scaling": {
                "rope_type": "llama3", "factor": 2.0, "low_freq_factor": 1.0, "high_freq_factor": 32.0,
                "original_max_position_embeddings": 64,
            },
        },
        {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "image_size": 28, "patch_size": 14},
    ),
    "qwen2.5-vl": (
        transformers.Qwen2_5_VLConfig, {"rope_parameters": {**MROPE, "mrope_section": [2, 2, 2]}, "head_dim": 12},
        QWEN | {"fullatt_block_indexes": [0]},
    ),
    "qwen3-vl": (transformers.Qwen3VLConfig, {"rope_parameters": MROPE}, QWEN),
    "qwen3.5": (
        transformers.Qwen3_5Config,
        {
            "num_hidden_layers": 4, "linear_num_key_heads": 2, "linear_num_value_heads": 4, "linear_key_head_dim": 24,
            "linear_value_head_dim": 16, "rope_parameters": {**MROPE, "partial_rotary_factor": 0.5, "mrope_section": [2, 1, 1]},
        },
        QWEN,
    ),
    "qwen3.5-moe": (
        transformers.Qwen3_5MoeConfig,
        {
            "num_hidden_layers": 4, "linear_num_key_heads": 2, "linear_num_value_heads": 4, "linear_key_head_dim": 24,
            "linear_value_head_dim": 16, "rope_parameters": {**MROPE, "partial_rotary_factor": 0.5, "mrope_section": [2, 1, 1]},
            "num_experts": 5, "num_experts_per_tok": 2, "moe_intermediate_size": 24, "shared_expert_intermediate_size": 32,
        },
        QWEN,
    ),
}  # fmt: skip
"""Name -> (configuration class, of its text part what differs from TEXT, its vision part)."""


@pytest.mark.parametrize(("name", "device"), [*((name, "cpu") for name in sorted(SEEING)), ("minimax-m3", HOST)])
@pytest.mark.sampled(2)
def test_text_of_a_model_that_sees_is_that_of_transformers(name: str, device: str, tmp_path: Path) -> None:
    kind, text, vision = SEEING[name]
    config = kind(  # what stands for an image is no token that a text may have
        text_config=copy.deepcopy({**TEXT, **text}),  # transformers changes nested settings in place
        vision_config=vision,
        image_token_id=500,
        video_token_id=501,
        tie_word_embeddings=False,
        **{"gemma3": {"mm_tokens_per_image": 4}, "kimi-k2.5": {"projection_hidden_size": 32}}.get(name, {}),
    )
    model = transformers.AutoModelForImageTextToText.from_config(
        config, dtype=torch.float32, attn_implementation="eager"
    ).eval()
    spread(model, 7)
    model.save_pretrained(tmp_path)
    asked = [[5 + t % 250 for t in p] for p in prompts()[:3]]
    for s in Rig(tmp_path, platform=device).generate(asked, NEW, chunk=6, budget=17):
        ids, logp = greedy(model, s.tokens[: s.prompt], NEW)
        assert s.tokens == ids
        chosen = logp[torch.arange(len(ids) - 1), torch.tensor(ids[1:])].numpy()
        np.testing.assert_allclose(s.logprobs, chosen[s.prompt - 1 :], atol=1e-4)


def test_the_text_of_a_whole_gemma_3n_is_that_of_its_text_model(tmp_path: Path) -> None:
    """Its own class needs timm. Published files have projections that layers with another's cache do not use."""
    text = make_checkpoint("gemma3n", tmp_path / "text", tokenizer=False)
    held = load_file(text / "model.safetensors")
    for name in ("k_proj", "v_proj", "k_norm"):
        held[f"model.layers.5.self_attn.{name}.weight"] = torch.full((3, 5), torch.nan)
    whole = {f"model.language_model.{name.removeprefix('model.')}": values for name, values in held.items()}
    others = ("vision_tower.timm_model.stem", "audio_tower.conformer.0", "embed_vision.projection", "embed_audio.projection")
    config = {"architectures": ["Gemma3nForConditionalGeneration"], "model_type": "gemma3n"}
    (tmp_path / "config.json").write_text(json.dumps({**config, "text_config": json.loads((text / "config.json").read_text())}))
    save_file(whole | {f"model.{name}.weight": torch.zeros(2) for name in others}, tmp_path / "model.safetensors")
    (want,), (got,) = (Rig(path, platform="cpu").generate(prompts()[:1], 3, 99, 99) for path in (text, tmp_path))
    assert (got.tokens, got.logprobs) == (want.tokens, want.logprobs)


def test_the_text_part_of_a_configuration_may_leave_sizes_out(tmp_path: Path) -> None:
    """As Gemma 3's published files do."""
    whole = {**transformers.Gemma3Config().to_dict(), "architectures": ["Gemma3ForConditionalGeneration"]}
    del whole["vision_config"]
    said = {"architectures": whole["architectures"], "text_config": {"model_type": "gemma3_text"}, "eos_token_id": [1, 106]}
    read = []
    for config in (whole, said):
        (tmp_path / "config.json").write_text(json.dumps(config))
        read.append(read_config(tmp_path, overrides={"text_config": {"num_hidden_layers": 7, "layer_types": None}}))
    assert read[1]["eos_token_id"] == [1, 106]
    assert registry.family(read[0])(read[0]) == registry.family(read[1])(read[1])


@pytest.mark.parametrize(("kind", "heads"), [("llama", 32), ("mistral", 32)])
def test_llava_leaves_sizes_of_its_text_part_out(kind: str, heads: int, tmp_path: Path) -> None:
    """As its published files do; the sizes are those of transformers' configuration class."""
    said = {
        "architectures": ["LlavaForConditionalGeneration"], "model_type": "llava", "image_token_index": 9,
        "text_config": {"model_type": kind, "vocab_size": 320}, "vision_config": {"model_type": "pixtral"},
        "vision_feature_layer": -1,
    }  # fmt: skip
    (tmp_path / "config.json").write_text(json.dumps(said))
    read = read_config(tmp_path)
    theirs = transformers.LlavaConfig.from_pretrained(tmp_path).text_config
    for key in ("hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads", "max_position_embeddings"):
        assert read[key] == getattr(theirs, key)
    assert read.get("num_key_value_heads", heads) == theirs.num_key_value_heads
    assert registry.family(read)(read).vision is not None


@pytest.mark.parametrize(
    ("name", "architecture", "others"),
    [
        (
            "deepseek-v4",
            "DeepseekV4ForConditionalGeneration",
            ("vision.embed.weight", "aligner.w1.weight", "image_end"),
        ),
        (
            "mimo-v2-flash",
            "MiMoV2OmniForCausalLM",
            ("visual.norm.weight", "audio_tokenizer.0.weight", "speech_embeddings.0"),
        ),
    ],
)
def test_tensors_of_other_parts_are_left_unread(name: str, architecture: str, others: tuple[str, ...], tmp_path: Path) -> None:
    text, whole = make_checkpoint(name, tmp_path / "text", tokenizer=False), tmp_path / "whole"
    whole.mkdir()
    config = {**json.loads((text / "config.json").read_text()), "architectures": [architecture]}
    (whole / "config.json").write_text(json.dumps(config))
    held = load_file(text / "model.safetensors")
    save_file(held | {name: torch.zeros(2) for name in others}, whole / "model.safetensors", {"format": "pt"})
    (want,), (got,) = (Rig(path, platform="cpu").generate(prompts()[:1], 3, 99, 99) for path in (text, whole))
    assert (got.tokens, got.logprobs) == (want.tokens, want.logprobs)
