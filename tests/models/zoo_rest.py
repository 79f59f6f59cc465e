"""More of `zoo_more.MORE`: families that came later."""

from __future__ import annotations

from typing import Any

import transformers

_EXPERTS = {"num_experts_per_tok": 3, "moe_intermediate_size": 24, "routed_scaling_factor": 1.7}
_GRANITE = {"embedding_multiplier": 3.0, "logits_scaling": 0.7, "residual_multiplier": 0.4, "attention_multiplier": 0.2}
_DECODER: dict[str, Any] = {
    "d_model": 48, "encoder_layers": 1, "decoder_layers": 2, "encoder_attention_heads": 3, "decoder_attention_heads": 4,
    "encoder_ffn_dim": 32, "decoder_ffn_dim": 80, "pad_token_id": 287,
}  # fmt: skip
REST: dict[str, tuple[Any, dict[str, Any]]] = {
    "afmoe": (
        transformers.AfmoeConfig,
        {"head_dim": 16, "num_experts": 6, "num_experts_per_tok": 2, "moe_intermediate_size": 24, "route_scale": 1.7,
         "sliding_window": 9, "num_hidden_layers": 5, "pad_token_id": 0},
    ),
    "apertus": (transformers.ApertusConfig, {"pad_token_id": 0}),
    "cohere2-moe": (
        transformers.Cohere2MoeConfig,
        {"head_dim": 16, "num_experts": 6, "num_experts_per_tok": 2, "intermediate_size": 24, "num_shared_experts": 2,
         "sliding_window": 9, "num_hidden_layers": 6, "first_k_dense_replace": 1, "prefix_dense_intermediate_size": 40,
         "logit_scale": 0.3, "expert_selection_fn": "sigmoid", "rms_norm_eps": None},
    ),
    "cwm": (transformers.CwmConfig, {"head_dim": 16, "sliding_window": 9, "num_hidden_layers": 5}),
    "dots1": (
        transformers.Dots1Config,
        {**_EXPERTS, "head_dim": 16, "n_routed_experts": 8, "n_shared_experts": 2, "first_k_dense_replace": 1, "n_group": 4,
         "topk_group": 2, "norm_topk_prob": True, "sliding_window": 9, "max_window_layers": 2, "num_hidden_layers": 3},
    ),
    "exaone-moe": (
        transformers.ExaoneMoeConfig, {**_EXPERTS, "num_experts": 6, "sliding_window": 9, "num_hidden_layers": 5}
    ),
    "flex-olmo": (
        transformers.FlexOlmoConfig,
        {"num_experts": 6, "num_experts_per_tok": 2, "intermediate_size": 24, "pad_token_id": 0},
    ),
    "gpt-bigcode": (transformers.GPTBigCodeConfig, {}),
    "gpt-bigcode-heads": (transformers.GPTBigCodeConfig, {"multi_query": False, "num_hidden_layers": 1}),
    "granite-moe-shared": (
        transformers.GraniteMoeSharedConfig,
        {**_GRANITE, "num_local_experts": 5, "intermediate_size": 24, "shared_intermediate_size": 32},
    ),
    "hunyuan-moe": (
        transformers.HunYuanMoEV1Config, {"head_dim": 16, "num_experts": 6, "moe_topk": 2, "intermediate_size": 24}
    ),
    "hy-v3": (
        transformers.HYV3Config,
        {**_EXPERTS, "head_dim": 16, "num_experts": 6, "num_shared_experts": 2, "router_scaling_factor": 1.4},
    ),
    "hyperclovax": (transformers.HyperCLOVAXConfig, {**_GRANITE, "attention_multiplier": None}),
    "jais2": (transformers.Jais2Config, {}),
    "olmo": (transformers.OlmoConfig, {}),
    "phimoe": (
        transformers.PhimoeConfig,
        {"num_local_experts": 6, "intermediate_size": 24, "attention_bias": True, "lm_head_bias": True,
         "router_jitter_noise": 0.4},
    ),
    "phimoe-longrope": (
        transformers.PhimoeConfig,
        {"num_local_experts": 4, "intermediate_size": 24,
         "rope_parameters": {"rope_type": "longrope", "rope_theta": 1e6, "original_max_position_embeddings": 128,
                             "short_factor": [1.0 + i / 9 for i in range(6)], "long_factor": [4.0 + i for i in range(6)],
                             "short_mscale": 1.4, "long_mscale": 1.7}},
    ),
    "solar-open": (
        transformers.SolarOpenConfig,
        {**_EXPERTS, "head_dim": 16, "n_routed_experts": 8, "n_group": 2, "topk_group": 1, "attention_bias": True},
    ),
    "vaultgemma": (
        transformers.VaultGemmaConfig,
        {"head_dim": 16, "num_hidden_layers": 3, "sliding_window": 10, "query_pre_attn_scalar": 24,
         "attn_logit_softcapping": 3.0, "final_logit_softcapping": 4.0},
    ),
    "cohere-compass": (
        transformers.CohereCompassTextConfig,
        {
            "num_hidden_layers": 3, "sliding_window": 9, "logit_scale": 0.7, "head_dim": 12,
            "layer_types": ["sliding_attention", "full_attention", "sliding_attention"],
            "rope_parameters": {"full_attention": None, "sliding_attention": {"rope_type": "default", "rope_theta": 1e4}},
        },
    ),
    "gpt-neo": (
        transformers.GPTNeoConfig,
        {
            "num_hidden_layers": 4, "num_attention_heads": 4, "attention_types": [[["global", "local"], 2]], "window_size": 9,
            "intermediate_size": None, "tie_word_embeddings": True,
        },
    ),
    "granite-swa": (
        transformers.GraniteSWAConfig,
        {
            "num_hidden_layers": 3, "head_dim": 16, "sliding_window": 9, "attention_multiplier": 0.3, "logits_scaling": 1.7,
            "embedding_multiplier": 2.0, "residual_multiplier": 0.6, "layer_rope_theta": [1000.0, 50.0, 0],
        },
    ),
    "lfm3": (
        transformers.Lfm3Config,
        {
            "num_hidden_layers": 4, "head_dim": 16, "sliding_window": 9, "tie_word_embeddings": True,
            "layer_types": ["conv", "sliding_attention", "full_attention", "conv"], "pad_token_id": 0,
        },
    ),
    "mellum": (
        transformers.MellumConfig,
        {
            "num_hidden_layers": 3, "head_dim": 16, "num_experts": 6, "num_experts_per_tok": 3, "moe_intermediate_size": 24,
            "sliding_window": 9, "layer_types": ["sliding_attention", "full_attention", "sliding_attention"],
            "mlp_layer_types": ["dense", "sparse", "sparse"], "rope_parameters": {
                "sliding_attention": {"rope_type": "default", "rope_theta": 1000.0},
                "full_attention": {
                    "rope_type": "yarn", "rope_theta": 10000.0, "factor": 4.0, "original_max_position_embeddings": 64,
                },
            },
        },
    ),
    "biogpt": (transformers.BioGptConfig, {"pad_token_id": 0}),
    "modernbert-decoder": (
        transformers.ModernBertDecoderConfig,
        {"num_hidden_layers": 4, "local_attention": 18, "pad_token_id": 0, "classifier_bias": True, "norm_bias": True},
    ),
    "jetmoe": (
        transformers.JetMoeConfig,
        {"kv_channels": 16, "num_local_experts": 5, "num_experts_per_tok": 3, "intermediate_size": 24, "rms_norm_eps": 1e-4},
    ),
    "bert-lm": (transformers.BertConfig, {"is_decoder": True, "pad_token_id": 0, "type_vocab_size": 3}),
    "bert-lm-untied": (transformers.BertConfig, {"is_decoder": True, "pad_token_id": 0, "tie_word_embeddings": False}),
    "bert-generation": (transformers.BertGenerationConfig, {"is_decoder": True, "pad_token_id": 0}),
    "roberta-lm": (
        transformers.RobertaConfig,
        {
            "is_decoder": True, "pad_token_id": 299, "max_position_embeddings": 556, "vocab_size": 300,
            "add_cross_attention": True,
        },
    ),
    **{
        f"{name}-decoder": (kind, {**_DECODER, **different})
        for name, kind, different in (
            ("bart", transformers.BartConfig, {}),
            ("mbart", transformers.MBartConfig, {"scale_embedding": True}),
            ("plbart", transformers.PLBartConfig, {}),
            ("mvp", transformers.MvpConfig, {}),
            ("blenderbot", transformers.BlenderbotConfig, {}),
            ("blenderbot-small", transformers.BlenderbotSmallConfig, {}),
            ("marian", transformers.MarianConfig, {"activation_function": "swish", "scale_embedding": True}),
            ("pegasus", transformers.PegasusConfig, {"activation_function": "relu", "tie_word_embeddings": True}),
            ("bigbird-pegasus", transformers.BigBirdPegasusConfig, {"use_bias": True}),
            ("trocr", transformers.TrOCRConfig, {"scale_embedding": True}),
            ("trocr-plain", transformers.TrOCRConfig, {"layernorm_embedding": False, "tie_word_embeddings": False}),
        )
    },
}  # fmt: skip
"""Name -> (configuration class, what differs from `zoo.SMALL`)."""
