"""A key that is absent from config.json means what the family's configuration class of transformers makes of it."""

from __future__ import annotations

import pytest
from zoo import ALL

from thalweg.checkpoint.spelling import canonical_config
from thalweg.errors import UnsupportedModelError
from thalweg.models import registry

SAID = (
    "vocab_size", "hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads", "num_key_value_heads",
    "max_position_embeddings",
)  # fmt: skip
"""What published files of these families say."""
INDEXER_KEYS = ("indexer_n_heads", "indexer_kv_heads", "indexer_head_dim", "indexer_budget", "indexer_compress_ratio")
BART = (
    "bart", "bigbird_pegasus", "blenderbot", "blenderbot-small", "marian", "mbart", "mvp", "pegasus", "plbart", "trocr",
)  # fmt: skip
MORE_SAID = {
    "opt": ("ffn_dim",),
    "xglm": ("ffn_dim",),
    "cohere_compass_text": ("rope_parameters",),
    "ministral3": ("rope_parameters",),
    "glm4_moe": ("head_dim",),
    "nemotron_h": ("layers_block_type",),
    "hrm_text": ("num_layers_per_stack",),
    "deepseek_v2": ("num_experts_per_tok",),
    "qwen4_exp_text": INDEXER_KEYS,
    **dict.fromkeys(BART, ("decoder_attention_heads", "decoder_ffn_dim", "decoder_layers", "d_model")),
    **dict.fromkeys(("bert", "bert-generation", "roberta"), ("is_decoder",)),
}
"""The same of single families, by model_type."""
INDEXER = dict(zip(INDEXER_KEYS, (4, 1, 256, 64, 16), strict=True))
MADE = {
    "cohere_compass_text": {"rope_parameters": {"full_attention": {"rope_type": "default", "rope_theta": 1e4}}},
    "glm4_moe": {"head_dim": 128},
    "deepseek_v2": {"num_experts_per_tok": 6},
    "gpt_neo": {"num_hidden_layers": 24},
    "gemma3n_text": {"num_hidden_layers": 25},
    "gemma4_text": {"num_hidden_layers": 25},
    "qwen4_exp_text": INDEXER,
    "zamba2": {"num_hidden_layers": 54},
    **{kind: {"is_decoder": True} for kind in ("bert", "bert-generation", "roberta")},
}
"""Of these what has no default, or one that no file has. GPT-Neo names 24 layers. Of Gemma 3n's layers the last 15 read earlier
ones' caches. Gemma 4 names layers by numbers, which are padded beyond 10."""


@pytest.mark.parametrize("kind", sorted({kind for kind, _ in ALL.values()}, key=lambda kind: kind.__name__))
def test_an_absent_key_means_what_it_means_to_transformers(kind) -> None:
    whole = canonical_config(kind(**{"num_hidden_layers": 9} | MADE.get(kind.model_type, {})).to_dict())
    name = f"{kind.__name__.removesuffix('Config').removesuffix('Text')}ForCausalLM"
    name = name.replace("ForCausalLM", "LMHeadModel") if name.startswith(("GPT2", "OpenAIGPT", "BertFor")) else name
    name = name.replace("GenerationForCausalLM", "GenerationDecoder").replace("HrmFor", "HrmTextFor")
    said = {
        "architectures": [name],
        **{key: whole[key] for key in (*SAID, *MORE_SAID.get(whole["model_type"], ())) if key in whole},
    }
    whole["architectures"] = [name]
    whole.pop("pooling", None)  # `read_config` sets it where a model pools
    assert registry.family(said)(said) == registry.family(whole)(whole)


SIZES = {
    "vocab_size": 99, "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2, "num_attention_heads": 4,
    "max_position_embeddings": 64, "rms_norm_eps": 1e-5, "head_dim": 8,
}  # fmt: skip


@pytest.mark.parametrize(
    ("name", "said", "same"),
    [
        ("AquilaModel", {}, {}),
        ("AquilaForCausalLM", {}, {}),
        ("XverseForCausalLM", {}, {}),
        ("TeleChat3ForCausalLM", {}, {}),
        ("TeleFLMForCausalLM", {"use_mup": False, "input_mult": 3.0}, {}),
        ("TorchNativeLlamaForCausalLM", {}, {}),
        ("NanbeigeForCausalLM", {}, {}),
        ("IQuestCoderForCausalLM", {}, {}),
        ("InternLMForCausalLM", {"bias": True}, {"attention_bias": True}),
        ("PanguEmbeddedForCausalLM", {"bias": True}, {"attention_bias": True}),
        ("InternLM3ForCausalLM", {"qkv_bias": True, "bias": True}, {"attention_bias": True, "mlp_bias": True}),
        ("InternLM3ForCausalLM", {"qkv_bias": False, "bias": False}, {}),
    ],
)
def test_a_family_that_is_llama_by_another_name(name, said, same) -> None:
    """Its tensors have Llama's names: both declare the same model."""
    theirs, llama = {**SIZES, **said, "architectures": [name]}, {**SIZES, **same, "architectures": ["LlamaForCausalLM"]}
    assert registry.family(theirs)(theirs) == registry.family(llama)(llama)


def test_the_first_spelling_of_stablelm_means_the_same() -> None:
    sizes = {key: n for key, n in SIZES.items() if key not in ("rms_norm_eps", "head_dim")}
    old = {**sizes, "norm_eps": 1e-3, "rope_pct": 0.5, "use_qkv_bias": True}
    new = {**sizes, "layer_norm_eps": 1e-3, "partial_rotary_factor": 0.5, "use_qkv_bias": True}
    theirs, ours = ({**c, "architectures": [n]} for c, n in ((old, "StableLMEpochForCausalLM"), (new, "StableLmForCausalLM")))
    assert registry.family(theirs)(theirs) == registry.family(ours)(ours)


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ({"multi_query": True, "n_head": 4, "model_type": "RefinedWebModel"}, {"multi_query": True}),
        (
            {"n_head": 4, "n_head_kv": 2, "model_type": "RefinedWeb", "bias": True},
            {"num_kv_heads": 2, "new_decoder_architecture": True, "bias": True},
        ),
    ],
)
def test_the_first_name_of_falcon_means_the_same(old, new) -> None:
    sizes = {"vocab_size": 99, "hidden_size": 32, "alibi": False, "parallel_attn": True}
    theirs = canonical_config({**sizes, **old, "n_layer": 2, "architectures": ["RWForCausalLM"]})
    ours = {**sizes, **new, "num_hidden_layers": 2, "num_attention_heads": 4, "model_type": "falcon"}
    ours = canonical_config({**ours, "architectures": ["FalconForCausalLM"]})
    assert registry.family(theirs)(theirs) == registry.family(ours)(ours)


def test_the_published_spelling_of_minimax_means_the_same() -> None:
    sizes = {**SIZES, "num_local_experts": 4, "num_experts_per_tok": 2, "rope_theta": 1e7}
    old = {**sizes, "attn_type_list": [0, 1], "layernorm_linear_attention_alpha": 3.5, "layernorm_full_attention_beta": 0.5,
           "layernorm_mlp_alpha": 2.5, "postnorm": True, "rotary_dim": 4, "shared_intermediate_size": 0}  # fmt: skip
    new = {**sizes, "layer_types": ["linear_attention", "full_attention"], "linear_attn_alpha_factor": 3.5,
           "full_attn_beta_factor": 0.5, "mlp_alpha_factor": 2.5, "partial_rotary_factor": 0.5}  # fmt: skip
    theirs, ours = ({**c, "architectures": [n]} for c, n in ((old, "MiniMaxText01ForCausalLM"), (new, "MiniMaxForCausalLM")))
    assert registry.family(theirs)(theirs) == registry.family(ours)(ours)


def test_the_published_spelling_of_ling_3_means_the_same() -> None:
    """The factor of rotary positions has no effect. Layers after the last whole group have attention."""
    sizes = {**SIZES, "num_hidden_layers": 5, "num_experts": 8, "num_experts_per_tok": 2, "n_group": 2, "topk_group": 1,
             "rms_norm_eps": 1e-6, "layer_group_size": 2, "first_k_dense_replace": 1, "moe_intermediate_size": 16}  # fmt: skip
    old = {**sizes, "no_kda_lora": True, "gated_attention_proj_granularity_type": "head_wise", "partial_rotary_factor": 0.5,
           "rope_parameters": {"rope_type": "default", "rope_theta": 6e6, "partial_rotary_factor": 0.5},
           "expert_swiglu_limit_list": None, "num_shared_experts": 1, "q_lora_rank": None}  # fmt: skip
    kinds = ["linear_attention", "full_attention", "linear_attention", "full_attention", "full_attention"]
    new = {**sizes, "layer_types": kinds, "linear_head_dim": 8, "head_dim": 64, "n_shared_experts": 1}
    theirs, ours = (
        {**c, "architectures": [n]} for c, n in ((old, "BailingMoeV3ForCausalLM"), (new, "BailingHybridForCausalLM"))
    )
    assert registry.family(theirs)(theirs) == registry.family(ours)(ours)
    for wrong in ({"no_kda_lora": False}, {"value_norm": True}, {"gated_attention_proj_granularity_type": "odd"}):
        with pytest.raises(UnsupportedModelError, match=next(iter(wrong))):
            registry.family({**theirs, **wrong})({**theirs, **wrong})
    limits = {**theirs, "expert_swiglu_limit_list": [0, 7.0, None, 0, 0], "share_expert_swiglu_limit_list": [0, 0, 5.0, 0, 0]}
    mixtures = [layer.ffn for layer in registry.family(limits)(limits).layers[1:]]
    assert [(each.cut, each.shared.cut) for each in mixtures] == [(7, 0), (0, 5), (0, 0), (0, 0)]
