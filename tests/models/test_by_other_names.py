"""Families whose own code lies in checkpoints, and which compute what a class of transformers does: a tiny model of that class,
its tensors laid out and named as published files have them."""

from __future__ import annotations

import json
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import transformers
import zoo_text
from rig import Rig, Seq
from safetensors.torch import save_file
from torch import Tensor, nn
from transformers.models.deepseek_v2.modeling_deepseek_v2 import DeepseekV2Moe
from transformers.models.llama.modeling_llama import LlamaDecoderLayer, LlamaRMSNorm
from zoo import SMALL, VOCAB, spread
from zoo_text import LATENT

from thalweg.checkpoint.config import facts, max_len, read_config
from thalweg.errors import CheckpointError, UnsupportedModelError
from thalweg.models import registry

Tensors = dict[str, Tensor]
Renamed = Callable[[Tensors], Tensors]


def rename_pairs(*pairs: tuple[str, str]) -> Renamed:
    def change(tensors: Tensors) -> Tensors:
        out = {}
        for name, t in tensors.items():
            for theirs, ours in pairs:
                name = name.replace(theirs, ours)
            out[name] = t
        return out

    return change


def joined(tensors: Tensors, to: str, grouped: bool, kv_heads: int = 2, attention: str = "self_attn") -> Tensors:
    """q, k and v of every layer in one tensor; grouped: of each head of keys its heads of q, its k and its v."""
    out = dict(tensors)
    for name in [n for n in tensors if n.endswith(f"{attention}.q_proj.weight")]:
        at = name.removesuffix("q_proj.weight")
        parts = [out.pop(f"{at}{p}_proj.weight") for p in "qkv"]
        if grouped:
            parts = [torch.cat([p.view(kv_heads, -1, p.shape[-1]) for p in parts], 1).flatten(0, 1)]
        out[f"{at}{to}.weight"] = torch.cat(parts)
    return out


def internlm2(tensors: Tensors) -> Tensors:
    return rename_pairs(
        ("self_attn.", "attention."), ("o_proj", "wo"), ("mlp.gate_proj", "feed_forward.w1"),
        ("embed_tokens", "tok_embeddings"), ("mlp.up_proj", "feed_forward.w3"), ("mlp.down_proj", "feed_forward.w2"),
        ("input_layernorm", "attention_norm"),
        ("post_attention_layernorm", "ffn_norm"), ("lm_head", "output"),
    )(joined(tensors, "wqkv", grouped=True))  # fmt: skip


def bailing(tensors: Tensors) -> Tensors:
    return rename_pairs(
        ("self_attn.", "attention."), ("o_proj", "dense"), ("q_norm", "query_layernorm"), ("k_norm", "key_layernorm"),
        ("e_score_correction_bias", "expert_bias"), ("embed_tokens", "word_embeddings"),
    )(joined(tensors, "query_key_value", grouped=False))  # fmt: skip


exaone = rename_pairs(
    ("model.layers.", "transformer.h."), ("model.embed_tokens", "transformer.wte"), ("model.norm", "transformer.ln_f"),
    ("self_attn.", "attn.attention."), ("o_proj", "out_proj"), ("input_layernorm", "ln_1"),
    ("post_attention_layernorm", "ln_2"), ("mlp.gate_proj", "mlp.c_fc_0"),
    ("mlp.up_proj", "mlp.c_fc_1"), ("mlp.down_proj", "mlp.c_proj"),
)  # fmt: skip


def baichuan(tensors: Tensors) -> Tensors:
    return joined(tensors, "W_pack", grouped=False)


def chatglm(tensors: Tensors) -> Tensors:
    joined_up = joined(tensors, "query_key_value", grouped=False)
    for name in [n for n in joined_up if n.endswith("q_proj.bias")]:
        at = name.removesuffix("q_proj.bias")
        joined_up[f"{at}query_key_value.bias"] = torch.cat([joined_up.pop(f"{at}{p}_proj.bias") for p in "qkv"])
    tensors = rename_pairs(
        ("model.layers.", "transformer.encoder.layers."), ("model.embed_tokens", "transformer.embedding.word_embeddings"),
        ("model.norm", "transformer.encoder.final_layernorm"), ("lm_head", "transformer.output_layer"),
        ("self_attn.", "self_attention."), ("o_proj", "dense"), ("gate_up_proj", "dense_h_to_4h"),
        ("down_proj", "dense_4h_to_h"),
    )(joined_up)  # fmt: skip
    return tensors | {"transformer.rotary_pos_emb.inv_freq": torch.ones(6)}


_GPT = (
    ("model.layers.", "transformer.h."), ("model.embed_tokens", "transformer.wte"), ("model.norm", "transformer.ln_f"),
)  # fmt: skip


def qwen(tensors: Tensors) -> Tensors:
    out = joined(tensors, "c_attn", grouped=False)
    for name in [n for n in out if n.endswith("q_proj.bias")]:
        at = name.removesuffix("q_proj.bias")
        out[f"{at}c_attn.bias"] = torch.cat([out.pop(f"{at}{p}_proj.bias") for p in "qkv"])
    return rename_pairs(
        *_GPT, ("self_attn.", "attn."), ("o_proj", "c_proj"), ("input_layernorm", "ln_1"), ("post_attention_layernorm", "ln_2"),
        ("mlp.gate_proj", "mlp.w2"), ("mlp.up_proj", "mlp.w1"), ("mlp.down_proj", "mlp.c_proj"),
    )(out)  # fmt: skip


def telechat(tensors: Tensors) -> Tensors:
    """Keys and values of each head in turn."""
    out = dict(tensors)
    for name in [n for n in tensors if n.endswith("self_attn.k_proj.weight")]:
        at = name.removesuffix("k_proj.weight")
        k, v = (out.pop(f"{at}{p}_proj.weight").view(4, -1, 48) for p in "kv")
        out[f"{at}key_value.weight"] = torch.cat([k, v], 1).flatten(0, 1)
    return rename_pairs(
        *_GPT, ("wte", "word_embeddings"), ("q_proj", "query"), ("o_proj", "dense"), ("self_attn.", "self_attention.")
    )(out)


def mimo(tensors: Tensors) -> Tensors:
    return tensors | {"model.mtp_layers.0.input_proj.weight": torch.ones(4, 4)}


_MOE: dict[str, Any] = {
    "head_dim": 24, "num_experts_per_tok": 3, "moe_intermediate_size": 24, "n_group": 4, "topk_group": 2,
    "routed_scaling_factor": 1.7, "partial_rotary_factor": 0.5, "first_k_dense_replace": 1,
}  # fmt: skip
_V3: dict[str, Any] = {
    "q_lora_rank": 40, "first_k_dense_replace": 1, "n_group": 4, "topk_group": 2, "num_experts_per_tok": 3,
    "moe_intermediate_size": 24, "routed_scaling_factor": 1.7, "norm_topk_prob": True,
}  # fmt: skip
_LLAMA = {"head_dim": None, "attention_bias": None, "mlp_bias": None}
_ROPE = {"rope_parameters": None, "rope_theta": 10000.0}
CASES: dict[str, tuple[str, Any, dict[str, Any], Renamed, dict[str, Any]]] = {
    "internlm2": ("InternLM2ForCausalLM", transformers.LlamaConfig, {}, internlm2, {**_LLAMA, **_ROPE, "bias": False}),
    "internlm2-ve": (
        "InternLM2VEForCausalLM", transformers.LlamaConfig, {},
        lambda tensors: internlm2(tensors) | {"model.layers.1.feed_forward_ve.w1.weight": torch.ones(4, 4)},
        {**_LLAMA, **_ROPE, "bias": False},
    ),
    "quant-mixtral": (
        "QuantMixtralForCausalLM", transformers.MixtralConfig, {"num_local_experts": 4}, dict, {"sliding_window": None},
    ),
    "orion": (
        "OrionForCausalLM", transformers.StableLmConfig, {"partial_rotary_factor": 1.0, "rope_parameters": {
            "rope_type": "default", "rope_theta": 10000.0, "partial_rotary_factor": 1.0}}, dict, {
            "partial_rotary_factor": None, "rms_norm_eps": 1e-5, **_ROPE},
    ),
    "exaone": (
        "ExaoneForCausalLM", transformers.LlamaConfig, {}, exaone,
        {**_LLAMA, **_ROPE, "model_type": "exaone", "num_layers": 2, "num_hidden_layers": None, "rms_norm_eps": None,
         "layer_norm_epsilon": 1e-5, "activation_function": "silu", "hidden_act": None},
    ),
    "minicpm": (
        "MiniCPMForCausalLM", transformers.GraniteConfig,
        {"embedding_multiplier": 12.0, "residual_multiplier": 1.4 / 2**0.5, "logits_scaling": 48 / 32, "attention_multiplier":
         12**-0.5, "tie_word_embeddings": True}, dict,
        {"scale_emb": 12, "scale_depth": 1.4, "dim_model_base": 32, "tie_word_embeddings": None, **_ROPE, **dict.fromkeys((
            "embedding_multiplier", "residual_multiplier", "logits_scaling", "attention_multiplier"))},
    ),
    "teleflm": (
        "TeleFLMForCausalLM", transformers.GraniteConfig,
        {"embedding_multiplier": 3.0, "residual_multiplier": 1.0, "logits_scaling": 4.0, "attention_multiplier": 12**-0.5},
        dict,
        {"use_mup": True, "input_mult": 3.0, "output_mult": 0.5, "mup_scale_factor": 2.0, **_ROPE, **dict.fromkeys((
            "embedding_multiplier", "residual_multiplier", "logits_scaling", "attention_multiplier"))},
    ),
    "torch-native-phi3": ("TorchNativePhi3ForCausalLM", transformers.Phi3Config, {"pad_token_id": 0}, dict, {}),
    "mimo": ("MiMoForCausalLM", transformers.Qwen2Config, {}, mimo, {**_ROPE, "model_type": "mimo", "layer_types": None}),
    "baichuan-7b": (
        "BaiChuanForCausalLM", transformers.LlamaConfig, {"num_key_value_heads": 4}, baichuan,
        {**_LLAMA, **_ROPE, "model_type": "baichuan", "num_key_value_heads": None},
    ),
    "qwen": (
        "QWenLMHeadModel", transformers.Qwen2Config, {"num_key_value_heads": 4}, qwen,
        {"model_type": "qwen", "intermediate_size": 160, "kv_channels": 12, "layer_norm_epsilon": 1e-5, "seq_length": 192,
         "rotary_emb_base": 10000.0, "use_dynamic_ntk": True, "use_logn_attn": True, "no_bias": True, "layer_types": None,
         "rope_parameters": None, **dict.fromkeys(("rms_norm_eps", "num_key_value_heads", "hidden_act"))},
    ),
    "chatglm": (
        "ChatGLMModel", transformers.GlmConfig, {"head_dim": 12, "pad_token_id": 0, "rope_parameters": {
            "rope_type": "default", "rope_theta": 40_000.0, "partial_rotary_factor": 0.5}}, chatglm,
        {"model_type": "chatglm", "num_layers": 2, "padded_vocab_size": VOCAB, "ffn_hidden_size": 80, "kv_channels": 12,
         "seq_length": 256, "layernorm_epsilon": 1e-5, "rope_ratio": 4.0, "add_qkv_bias": True, "add_bias_linear": False,
         "multi_query_attention": True, "multi_query_group_num": 2, "original_rope": True, "rmsnorm": True,
         "rope_parameters": None, **dict.fromkeys((
             "num_hidden_layers", "vocab_size", "intermediate_size", "head_dim", "max_position_embeddings", "rms_norm_eps",
             "num_key_value_heads", "attention_bias"))},
    ),
    "sarvam-mla": (
        "SarvamMLAForCausalLM", transformers.DeepseekV3Config,
        {**LATENT, **_V3, "n_routed_experts": 8, "rope_parameters": {
            "rope_type": "yarn", "rope_theta": 10_000.0, "factor": 4.0, "original_max_position_embeddings": 64,
            "mscale_all_dim": 1.3, "mscale": 1.0}}, dict,
        {**_V3, "num_experts": 8, "num_shared_experts": 1, "n_routed_experts": None, "n_shared_experts": None,
         "rope_parameters": None, "rope_theta": 10_000.0, "rope_scaling": {
             "type": "deepseek_yarn", "factor": 4.0, "original_max_position_embeddings": 64, "mscale_all_dim": 1.3,
             "mscale": 1.0}},
    ),
    "sarvam-moe": (
        "SarvamMoEForCausalLM", transformers.Glm4MoeConfig,
        {**_MOE, "n_routed_experts": 8, "n_shared_experts": 1, "use_qk_norm": True, "pad_token_id": 0},
        lambda tensors: rename_pairs(("expert_bias", "e_score_correction_bias"))(bailing(tensors)),
        {**_MOE, **_ROPE, "num_experts": 8, "num_shared_experts": 1, "n_routed_experts": None, "n_shared_experts": None},
    ),
    "bailing": (
        "BailingMoeV2ForCausalLM", transformers.Glm4MoeConfig,
        {**_MOE, "n_routed_experts": 8, "n_shared_experts": 1, "use_qk_norm": True, "pad_token_id": 0}, bailing,
        {**_MOE, **_ROPE, "num_experts": 8, "num_shared_experts": 1, "n_routed_experts": None, "n_shared_experts": None,
         "num_nextn_predict_layers": 0, "moe_shared_expert_intermediate_size": 24, "norm_topk_prob": True},
    ),
}  # fmt: skip
"""Name -> (architecture, the class's configuration, what differs of it from `zoo.SMALL`, tensors as they are published, and
config.json's differences: None = it lacks the key)."""


def prompts() -> list[list[int]]:
    rng = np.random.default_rng(3)
    return [rng.integers(0, VOCAB, n).tolist() for n in (21, 1, 8)]


def write_published(path: Path, model: nn.Module, config: dict[str, Any], change: Renamed) -> None:
    path.mkdir()
    kept = {name: t.contiguous().clone() for name, t in model.state_dict().items()}
    if config.get("tie_word_embeddings", "tie_word_embeddings" not in config):
        kept.pop("lm_head.weight", None)
    save_file(change(apart(kept)), path / "model.safetensors", {"format": "pt"})
    (path / "config.json").write_text(json.dumps({k: v for k, v in config.items() if v is not None}))


def apart(tensors: Tensors) -> Tensors:
    """A tensor for each expert, as files have them."""
    out: Tensors = {}
    for name, t in tensors.items():
        if name.endswith("experts.gate_up_proj"):
            for e, both in enumerate(t):
                for part, half in zip(("gate", "up"), both.chunk(2), strict=True):
                    out[f"{name.removesuffix('gate_up_proj')}{e}.{part}_proj.weight"] = half.contiguous()
        elif name.endswith("experts.down_proj"):
            out |= {f"{name.removesuffix('down_proj')}{e}.down_proj.weight": each.contiguous() for e, each in enumerate(t)}
        else:
            out[name] = t
    return out


def compared(path: Path, oracle: Callable[[list[int]], Tensor]) -> None:
    """Greedy tokens and log-probabilities over mixed batches."""
    for s in Rig(path, platform="cpu").generate(prompts(), 6, chunk=6, budget=17):
        with torch.inference_mode():
            logp = oracle(s.tokens).float().log_softmax(-1)
        assert s.tokens[s.prompt :] == logp[s.prompt - 1 : -1].argmax(-1).tolist()
        chosen = logp[torch.arange(len(s.tokens) - 1), torch.tensor(s.tokens[1:])].numpy()
        np.testing.assert_allclose(s.scores + s.logprobs, chosen, atol=1e-4)


@pytest.mark.parametrize("name", CASES)
@pytest.mark.sampled(2)
def test_a_family_computes_what_the_class_does_that_it_is_by_another_name(name, tmp_path):
    architecture, kind, different, change, said = CASES[name]
    settings = kind(**{**SMALL, **different}, attn_implementation="eager")
    model = transformers.AutoModelForCausalLM.from_config(settings, dtype=torch.float32).eval()
    spread(model, zlib.crc32(name.encode()))
    config = {**settings.to_dict(), **said, "architectures": [architecture]}
    write_published(tmp_path / name, model, config, change)
    compared(tmp_path / name, lambda ids: model(torch.tensor([ids])).logits[0])


def test_telechat_has_biases_after_attention_and_mlp_only(tmp_path):
    sizes = {**SMALL, "num_key_value_heads": 4, "attention_bias": True, "mlp_bias": True}
    settings = transformers.LlamaConfig(**sizes, attn_implementation="eager")
    model = transformers.AutoModelForCausalLM.from_config(settings, dtype=torch.float32).eval()
    spread(model, 4)
    absent = tuple(f"{part}_proj.bias" for part in ("q", "k", "v", "gate", "up"))
    with torch.no_grad():
        for name, p in model.named_parameters():
            if name.endswith(absent):
                p.zero_()
    config = {
        "architectures": ["TeleChat2ForCausalLM"], "model_type": "telechat", "vocab_size": VOCAB, "hidden_size": 48,
        "ffn_hidden_size": 80, "n_layer": 2, "n_head": 4, "seq_length": 256, "layer_norm_epsilon": 1e-5, "rope_theta": 10000.0,
        "tie_word_embeddings": False, "embed_layernorm": False,
    }  # fmt: skip
    write_published(
        tmp_path / "t", model, config, lambda held: telechat({n: t for n, t in held.items() if not n.endswith(absent)})
    )
    compared(tmp_path / "t", lambda ids: model(torch.tensor([ids])).logits[0])


@pytest.mark.parametrize("skips", [False, True])
def test_nanbeige_runs_its_layers_twice_with_the_last_norm_between(skips, tmp_path):
    settings = transformers.LlamaConfig(**SMALL, attn_implementation="eager")
    model = transformers.AutoModelForCausalLM.from_config(settings, dtype=torch.float32).eval()
    spread(model, 3)
    config = {**settings.to_dict(), "architectures": ["NanbeigeForCausalLM"], "model_type": "nanbeige", "num_loops": 2}
    write_published(tmp_path / "n", model, config | {"skip_loop_final_norm": skips}, dict)
    inner = model.model

    def logits(ids: list[int]) -> Tensor:
        x, at = inner.embed_tokens(torch.tensor([ids])), torch.arange(len(ids))[None]
        mask = torch.full((len(ids), len(ids)), -torch.inf).triu(1)[None, None]
        for last in (False, True):
            for layer in inner.layers:
                x = layer(x, attention_mask=mask, position_ids=at, position_embeddings=inner.rotary_emb(x, at))
            x = x if skips and not last else inner.norm(x)
        return model.lm_head(x)[0]

    compared(tmp_path / "n", logits)
    wrong = {**config, "enable_mhc": True}
    with pytest.raises(UnsupportedModelError, match="enable_mhc"):
        registry.family(wrong)(wrong)


def test_qwens_longest_sequence_is_the_one_without_scaled_frequencies(tmp_path):
    (tmp_path / "config.json").write_text(json.dumps({
        "architectures": ["QWenLMHeadModel"], "model_type": "qwen", "vocab_size": 99, "hidden_size": 32, "seq_length": 64,
        "intermediate_size": 48, "num_hidden_layers": 1, "num_attention_heads": 4, "max_position_embeddings": 256,
        "rotary_emb_base": 5000,
    }))  # fmt: skip
    config = read_config(tmp_path)
    assert max_len(config) == 64
    (rope,) = registry.family(config)(config).ropes
    assert rope.parameters["rope_theta"] == 5000


def test_mimo_v2_has_groups_of_heads_in_one_tensor(tmp_path):
    different = zoo_text.TEXT["mimo-v2-flash"][1] | {"attention_bias": False}
    settings = transformers.MiMoV2FlashConfig(**{**SMALL, **different}, attn_implementation="eager")
    model = transformers.AutoModelForCausalLM.from_config(settings, dtype=torch.float32).eval()
    spread(model, 2)
    config = {**settings.to_dict(), "architectures": ["MiMoV2ForCausalLM"], "attention_projection_layout": "fused_qkv"}

    def fuse(tensors: Tensors) -> Tensors:
        out = {name.replace(".sinks", ".attention_sink_bias"): t for name, t in tensors.items()}
        for name in [n for n in out if n.endswith("q_proj.weight")]:
            at = name.removesuffix("q_proj.weight")
            parts = [out.pop(f"{at}{p}_proj.weight").view(2, -1, 48) for p in "qkv"]  # two groups, also of more KV heads
            out[f"{at}qkv_proj.weight"] = torch.cat(parts, 1).flatten(0, 1)
        return out | {"visual.patch_embed.weight": torch.ones(4, 4), "audio_encoder.norm.weight": torch.ones(4)}

    write_published(tmp_path / "m", model, config, fuse)
    compared(tmp_path / "m", lambda ids: model(torch.tensor([ids])).logits[0])
    for key, wrong in (("attention_projection_layout", "odd"), ("quantization_config", {"quant_method": "fp8"})):
        with pytest.raises(UnsupportedModelError, match="attention_projection_layout"):
            registry.family(config)({**config, key: wrong})


def test_the_larger_baichuan_tells_positions_by_scores_alone(tmp_path):
    """Llama whose positions do not turn, with a mask that falls with distance."""
    settings = transformers.LlamaConfig(**{**SMALL, "num_key_value_heads": 4}, attn_implementation="eager")
    model = transformers.AutoModelForCausalLM.from_config(settings, dtype=torch.float32).eval()
    spread(model, 5)
    model.model.rotary_emb.inv_freq.zero_()
    config = {**settings.to_dict(), "architectures": ["BaichuanForCausalLM"], "model_type": "baichuan", "head_dim": None}
    config |= {"model_max_length": 256, "max_position_embeddings": None}
    write_published(tmp_path / "b", model, config, baichuan)

    def logits(ids: list[int]) -> Tensor:
        at = torch.arange(len(ids))
        falls = torch.tensor([2.0 ** (-2 * (h + 1)) for h in range(4)])[:, None, None] * (at[None] - at[:, None])
        return model(torch.tensor([ids]), attention_mask=falls.masked_fill(at[None] > at[:, None], -torch.inf)[None]).logits[0]

    compared(tmp_path / "b", logits)


def test_the_second_baichuan_divides_rows_of_its_output_matrix(tmp_path, monkeypatch):
    monkeypatch.setattr("thalweg.models.families.baichuan.NORMED", VOCAB)
    settings = transformers.LlamaConfig(**{**SMALL, "num_key_value_heads": 4}, attn_implementation="eager")
    model = transformers.AutoModelForCausalLM.from_config(settings, dtype=torch.float32).eval()
    spread(model, 6)
    config = {**settings.to_dict(), "architectures": ["BaiChuanForCausalLM"], "model_type": "baichuan", **_ROPE}
    config |= {"num_key_value_heads": None, "attention_bias": None, "mlp_bias": None}
    write_published(tmp_path / "b", model, config, baichuan)
    with torch.no_grad():
        model.lm_head.weight.copy_(nn.functional.normalize(model.lm_head.weight))
    compared(tmp_path / "b", lambda ids: model(torch.tensor([ids])).logits[0])


@pytest.mark.parametrize("name", ["deepseek", "bailing-1"])
def test_llamas_heads_with_mixtures_of_the_second_deepseek(name, tmp_path):
    settings = transformers.LlamaConfig(**SMALL, attn_implementation="eager")
    model = transformers.AutoModelForCausalLM.from_config(settings, dtype=torch.float32)
    sizes = {"num_experts_per_tok": 2, "moe_intermediate_size": 24, "routed_scaling_factor": 1.0}
    mixed = {**sizes, "n_routed_experts": 6, "n_shared_experts": 2}
    model.model.layers[1].mlp = moe = DeepseekV2Moe(transformers.DeepseekV2Config(**SMALL, **mixed, topk_method="greedy"))
    model.eval()
    spread(model, 8)
    config = {**settings.to_dict(), **_ROPE, "head_dim": None, "attention_bias": None, "first_k_dense_replace": 1}
    if name == "deepseek":
        config |= {**mixed, "architectures": ["DeepseekForCausalLM"], "norm_topk_prob": False, "scoring_func": "softmax"}
    else:
        config |= {**sizes, "architectures": ["BailingMoeForCausalLM"], "num_experts": 6, "num_shared_experts": 2}
        config |= {"norm_topk_prob": True, "use_bias": False, "use_qkv_bias": False, "norm_head": False}
        route = moe.gate.forward

        def renormalised(x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
            logits, weights, chosen = route(x)
            return logits, weights / weights.sum(-1, keepdim=True), chosen

        moe.gate.forward = renormalised
    write_published(tmp_path / "m", model, config, dict if name == "deepseek" else bailing)
    compared(tmp_path / "m", lambda ids: model(torch.tensor([ids])).logits[0])


def test_rewards_of_internlm2_are_those_of_one_matrix_more(tmp_path):
    settings = transformers.LlamaConfig(**SMALL, attn_implementation="eager")
    model = transformers.AutoModelForCausalLM.from_config(settings, dtype=torch.float32).eval()
    spread(model, 9)
    config = {**settings.to_dict(), **_LLAMA, **_ROPE, "architectures": ["InternLM2ForRewardModel"], "bias": False}
    matrix = torch.randn(1, 48, generator=torch.Generator().manual_seed(9))

    def change(tensors: Tensors) -> Tensors:
        return {n: t for n, t in internlm2(tensors).items() if n != "output.weight"} | {"v_head.weight": matrix}

    write_published(tmp_path / "r", model, config, change)
    rig, ids = Rig(tmp_path / "r", platform="cpu"), prompts()[0]
    batch = rig.batch([(Seq(1, ids, len(ids)), len(ids))]).map(torch.from_numpy)
    x, _ = rig.model.forward(rig.params, batch, rig.box.value["kv"])
    with torch.inference_mode():
        want = model.model(torch.tensor([ids])).last_hidden_state[0] @ matrix.T
    np.testing.assert_allclose(rig.model.each(rig.params, x, torch.arange(len(ids))), want, atol=2e-5)


def step3p5(tensors: Tensors) -> Tensors:
    """All experts of a part in one tensor, and norms that one is added to."""
    out: Tensors = {}
    for name, t in rename_pairs(
        ("mlp.gate.e_score_correction_bias", "moe.router_bias"), ("mlp.gate.", "moe.gate."),
        ("mlp.shared_experts.", "share_expert."),
    )(tensors).items():  # fmt: skip
        if ".experts." not in name:
            out[name] = t - 1 if "norm" in name else t
    for at in {name.partition("mlp.experts.")[0] for name in tensors if ".experts." in name}:
        for part in ("gate_proj", "up_proj", "down_proj"):
            each = [tensors[f"{at}mlp.experts.{e}.{part}.weight"] for e in range(6)]
            out[f"{at}moe.{part}.weight"] = torch.stack(each)
    return out | {"model.layers.3.eh_proj.weight": torch.ones(4, 4)}


def cut(mlp: nn.Module, routed: float, shared: float) -> None:
    """Has what a mixture's experts activate cut off."""

    def through(gate: Tensor, up: Tensor, most: float) -> Tensor:
        return nn.functional.silu(gate).clamp(max=most) * up.clamp(-most, most)

    def experts(x: Tensor, chosen: Tensor, weights: Tensor) -> Tensor:
        out = torch.zeros_like(x)
        for e in range(6):
            rows, k = torch.where(chosen == e)
            gate, up = (x[rows] @ mlp.experts.gate_up_proj[e].T).chunk(2, -1)
            out.index_add_(0, rows, through(gate, up, routed) @ mlp.experts.down_proj[e].T * weights[rows, k, None])
        return out

    always = mlp.shared_experts
    mlp.experts.forward = experts
    always.forward = lambda x: always.down_proj(through(always.gate_proj(x), always.up_proj(x), shared))


def test_step_is_laguna_with_sigmoids_for_gates_and_limits(tmp_path, monkeypatch):
    kinds, sizes = ["full_attention", "sliding_attention", "sliding_attention"], {**SMALL, "num_hidden_layers": 3}
    ropes = {
        "full_attention": {"rope_type": "default", "rope_theta": 50_000.0, "partial_rotary_factor": 0.5},
        "sliding_attention": {"rope_type": "default", "rope_theta": 10_000.0, "partial_rotary_factor": 1.0},
    }
    settings = transformers.LagunaConfig(
        **sizes, head_dim=16, num_experts=6, num_experts_per_tok=2, moe_intermediate_size=24, rope_parameters=ropes,
        shared_expert_intermediate_size=32, moe_routed_scaling_factor=1.7, sliding_window=9, layer_types=kinds,
        num_attention_heads_per_layer=[4, 6, 6], attn_implementation="eager",
    )  # fmt: skip
    model = transformers.AutoModelForCausalLM.from_config(settings, dtype=torch.float32).eval()
    spread(model, 10)
    cut(model.model.layers[2].mlp, 0.4, 0.2)
    monkeypatch.setattr(nn.functional, "softplus", torch.sigmoid)
    config = {key: settings.to_dict()[key] for key in (*sizes, "head_dim", "sliding_window", "moe_intermediate_size")}
    config |= {
        "architectures": ["Step3p5ForCausalLM"], "model_type": "step3p5", "num_attention_groups": 2, "moe_num_experts": 6,
        "moe_top_k": 2, "share_expert_dim": 32, "moe_router_scaling_factor": 1.7, "moe_layers_enum": "1,2",
        "use_moe_router_bias": True, "norm_expert_weight": True, "use_head_wise_attn_gate": True, "zero_centered": True,
        "attention_other_setting": {"num_attention_heads": 6, "num_attention_groups": 2}, "layer_types": [*kinds, kinds[1]],
        "rope_theta": [50_000.0, 10_000.0, 10_000.0, 10_000.0], "partial_rotary_factors": [0.5, 1.0, 1.0, 1.0],
        "rope_scaling": {"rope_type": "llama3", "factor": 2.0, "low_freq_factor": 1.0, "high_freq_factor": 32.0,
                         "original_max_position_embeddings": 64}, "yarn_only_types": ["none"],
        "swiglu_limits": [0.0, 0.0, 0.4, 7.0], "swiglu_limits_shared": [0.0, None, 0.2, 0.0], "num_nextn_predict_layers": 1,
        "num_key_value_heads": None, "tie_word_embeddings": False,
    }  # fmt: skip
    write_published(tmp_path / "s", model, config, step3p5)
    compared(tmp_path / "s", lambda ids: model(torch.tensor([ids])).logits[0])
    config = read_config(tmp_path / "s")
    assert facts(config, tmp_path / "s").max_len == 256
    for said, error, words in (
        ({"layer_types": kinds[:2]}, CheckpointError, "layer_types"), ({"moe_layers_enum": "1;2"}, CheckpointError, "commas"),
        ({"use_rope_layers": [True, False, True]}, UnsupportedModelError, "use_rope_layers"),
    ):  # fmt: skip
        with pytest.raises(error, match=words):
            registry.family({**config, **said})({**config, **said})


class _Lightning(nn.Module):
    """Linear attention as a sum over all tokens before: a score falls by a fixed factor per token."""

    def __init__(self, layer: int, layers: int) -> None:
        super().__init__()
        self.query_key_value = nn.Linear(48, 3 * 96, bias=False)
        self.g_proj, self.dense = nn.Linear(48, 96, bias=False), nn.Linear(96, 48, bias=False)
        self.query_layernorm, self.key_layernorm = LlamaRMSNorm(32, 1e-5), LlamaRMSNorm(32, 1e-5)
        self.g_norm = LlamaRMSNorm(96, 1e-5)
        self.falls = torch.tensor([2**-4.0, 2**-8.0, 2**-2.0]) * (1 - (layer - 1) / (layers - 1) + 1e-5)

    def forward(self, hidden_states: Tensor, position_embeddings: tuple[Tensor, Tensor], **more: Any) -> tuple[Tensor, None]:
        x, n = hidden_states[0], hidden_states.shape[1]
        q, k, v = (part.view(n, 3, 32) for part in self.query_key_value(x).chunk(3, -1))
        cos, sin = (t[0, :, None] for t in position_embeddings)
        turned = []
        for each, norm in ((q, self.query_layernorm), (k, self.key_layernorm)):
            first, rest = norm(each).split(16, -1)
            turned.append(torch.cat((first * cos + torch.cat((-first[..., 8:], first[..., :8]), -1) * sin, rest), -1))
        at = torch.arange(n)
        kept = torch.exp(-self.falls[:, None, None] * (at[:, None] - at)).tril()
        out = torch.einsum("hqk,khd->qhd", torch.einsum("qhd,khd->hqk", *turned) * 32**-0.5 * kept, v).reshape(n, 2, 48)
        out = (out * torch.rsqrt(out.square().mean(-1, keepdim=True) + 1e-5)).flatten(1) * self.g_norm.weight
        return self.dense(out * torch.sigmoid(self.g_proj(x)))[None], None


def test_ling_2_5_is_deepseek_v3_with_linear_attention_on_most_layers(tmp_path):
    """The definition: modeling_bailing_moe_v2_5.py of the checkpoints."""
    moe = {**_V3, "q_lora_rank": None}
    settings = transformers.DeepseekV3Config(
        **{**SMALL, **LATENT, **moe, "num_attention_heads": 3, "num_key_value_heads": 3, "num_hidden_layers": 5},
        n_routed_experts=8, rope_theta=6e5, attn_implementation="eager",
    )  # fmt: skip
    model = transformers.AutoModelForCausalLM.from_config(settings, dtype=torch.float32)
    for i in (0, 2):
        model.model.layers[i].self_attn = _Lightning(i, 5)
    model.eval()
    spread(model, 12)
    config = {**settings.to_dict(), "architectures": ["BailingMoeV2_5ForCausalLM"], "model_type": "bailing_moe_linear"}
    config |= {"num_experts": 8, "num_shared_experts": 1, "n_routed_experts": None, "n_shared_experts": None, "head_dim": 32}
    config |= {"layer_group_size": 2, "group_norm_size": 2, "partial_rotary_factor": 0.5, "linear_silu": False}
    config |= {"rope_parameters": None, "rope_theta": 6e5, "num_nextn_predict_layers": 0}
    write_published(tmp_path / "l", model, config, rename_pairs(
        ("self_attn.", "attention."), ("o_proj", "dense"), ("embed_tokens", "word_embeddings"),
        ("e_score_correction_bias", "expert_bias"),
    ))  # fmt: skip
    compared(tmp_path / "l", lambda ids: model(torch.tensor([ids])).logits[0])
    with pytest.raises(UnsupportedModelError, match="linear_silu"):
        registry.family(config)({**config, "linear_silu": True})


def test_apertus_1_5_has_rows_of_its_embedding_that_no_text_reads(tmp_path):
    settings = transformers.ApertusConfig(**SMALL, pad_token_id=0, attn_implementation="eager")
    model = transformers.AutoModelForCausalLM.from_config(settings, dtype=torch.float32).eval()
    spread(model, 13)
    text = {**settings.to_dict(), "model_type": "apertus1p5_text", "vocab_size": VOCAB + 40, "output_vocab_size": VOCAB}
    config = {"architectures": ["Apertus1p5ForConditionalGeneration"], "model_type": "apertus1p5", "text_config": text,
              "vision_config": {}, "tie_word_embeddings": False, "image_token_id": 79}  # fmt: skip

    def change(tensors: Tensors) -> Tensors:
        out = rename_pairs(("model.", "model.language_model."))(tensors)
        rows = out["model.language_model.embed_tokens.weight"]
        out["model.language_model.embed_tokens.weight"] = torch.cat((rows, torch.full((40, 48), torch.nan)))
        return out | {f"model.{part}_tokenizer.encoder.weight": torch.ones(3) for part in ("vision", "audio")}

    write_published(tmp_path / "a", model, config, change)
    compared(tmp_path / "a", lambda ids: model(torch.tensor([ids])).logits[0])
    assert facts(read_config(tmp_path / "a"), tmp_path / "a").vocab == VOCAB


def test_layers_that_are_gone_through_several_times(tmp_path):
    settings = transformers.LlamaConfig(**SMALL, attn_implementation="eager")
    model = transformers.AutoModelForCausalLM.from_config(settings, dtype=torch.float32).eval()
    inner = model.model
    for layer in inner.layers:
        layer.input_layernorm_2, layer.post_attention_layernorm_2 = LlamaRMSNorm(48, 1e-5), LlamaRMSNorm(48, 1e-5)
    spread(model, 11)
    config = {**settings.to_dict(), **_ROPE, "head_dim": None, "architectures": ["OuroForCausalLM"], "total_ut_steps": 3}
    write_published(tmp_path / "o", model, config, lambda tensors: tensors | {"model.early_exit_gate.bias": torch.ones(1)})

    def logits(ids: list[int]) -> Tensor:
        x, n = inner.embed_tokens(torch.tensor([ids])), len(ids)
        places, mask = inner.rotary_emb(x, torch.arange(n)[None]), torch.full((1, 1, n, n), -torch.inf).triu(1)
        for _ in range(3):
            for each in inner.layers:
                found = each.self_attn(each.input_layernorm(x), position_embeddings=places, attention_mask=mask)[0]
                x = x + each.input_layernorm_2(found)
                x = x + each.post_attention_layernorm_2(each.mlp(each.post_attention_layernorm(x)))
            x = inner.norm(x)
        return model.lm_head(x)[0]

    compared(tmp_path / "o", logits)


class _Nothing(nn.Module):
    """In place of an attention that is not there."""

    def forward(self, hidden_states: Tensor, **more: Any) -> tuple[Tensor, None]:
        return torch.zeros_like(hidden_states), None


class _NoMLP(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return torch.zeros_like(x)


def test_layers_of_a_searched_architecture_differ(tmp_path):
    """Llama's layers, of which one has fewer heads of keys, one no attention, one no MLP, and one neither."""
    shapes = [(2, 3.0), (1, 6.0), (None, 3.0), (2, None), (None, None)]
    sizes = {**SMALL, "num_hidden_layers": len(shapes), "intermediate_size": 256}
    settings = transformers.LlamaConfig(**sizes, attn_implementation="eager")
    model = transformers.AutoModelForCausalLM.from_config(settings, dtype=torch.float32).eval()
    for i, (kv, wide) in enumerate(shapes):
        inner = {3.0: 256, 6.0: 256, None: 256}[wide]
        own = transformers.LlamaConfig(
            **{**sizes, "num_key_value_heads": kv or 2, "intermediate_size": inner}, attn_implementation="eager"
        )
        layer = LlamaDecoderLayer(own, i)
        if kv is None:
            layer.self_attn, layer.input_layernorm = _Nothing(), nn.Identity()
        if wide is None:
            layer.mlp, layer.post_attention_layernorm = _NoMLP(), nn.Identity()
        model.model.layers[i] = layer
    model.eval()
    spread(model, 7)
    blocks = [
        {
            "attention": {"no_op": kv is None, "n_heads_in_group": kv and 4 // kv, "replace_with_linear": False},
            "ffn": {"no_op": wide is None, "ffn_mult": wide, "replace_with_linear": False},
        }
        for kv, wide in shapes
    ]
    config = {**settings.to_dict(), "architectures": ["DeciLMForCausalLM"], "model_type": "nemotron-nas"}
    config |= {"block_configs": blocks, "num_key_value_heads": None, "intermediate_size": None}
    write_published(tmp_path / "d", model, config, dict)
    compared(tmp_path / "d", lambda ids: model(torch.tensor([ids])).logits[0])
    for change, error in (
        ({"replace_with_linear": True}, UnsupportedModelError),
        ({"n_heads_in_group": None}, CheckpointError),
    ):
        odd = {
            **read_config(tmp_path / "d"),
            "block_configs": [{**b, "attention": {**b["attention"], **change}} for b in blocks],
        }
        with pytest.raises(error, match="block_configs: 0: attention"):
            registry.family(odd)(odd)
