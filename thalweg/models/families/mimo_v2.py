"""MiMo-V2-Flash, and MiMo-V2.5 and 2.6 for text: values narrower than keys, sliding windows with sinks and more KV heads on
five of six layers, sigmoid routers with expert bias on all layers but the first."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from thalweg.checkpoint.config import Config, flag, integer, real
from thalweg.errors import CheckpointError, UnsupportedModelError
from thalweg.models.families.common import attention, decoder, eps, layer_count, layer_types, mlp, pre_norms, rope
from thalweg.models.families.mixtures import sigmoid_mixture, sparse
from thalweg.models.families.multimodal import blind
from thalweg.models.spec import Attention, Layer, ModelSpec, MTPSpec, Names, Norm, Norms, Rows

FULL, WINDOW = "full_attention", "sliding_attention"
SINKS = ((".self_attn.sinks", ".self_attn.attention_sink_bias"),)
_SAME = (("swa_num_attention_heads", "num_attention_heads"), ("swa_head_dim", "head_dim"), ("swa_v_head_dim", "v_head_dim"))


def mimo_v2_flash(config: Config) -> ModelSpec:
    """Both spellings: that of the published files, and transformers'."""
    config = {"n_group": 1, "topk_group": 1, "head_dim": 192, "v_head_dim": 128, "sliding_window": 129, **config}
    if config.get("n_shared_experts"):
        raise UnsupportedModelError("config.json: n_shared_experts: this family has none")
    for key, other in _SAME:
        if config.get(key, config.get(other)) != config.get(other):
            raise UnsupportedModelError(f"config.json: {key}: this version has the same {other} on all layers")
    default = real(config, "layernorm_epsilon", 0, 1, default=1e-5)
    config = {
        "num_key_value_heads": 4, "n_routed_experts": 256, "num_experts_per_tok": 8, "moe_intermediate_size": 2048, **config,
        "n_shared_experts": None, "rms_norm_eps": eps(config, default=default), "num_nextn_predict_layers": None,
    }  # fmt: skip
    types = layer_types(config, _absent(config))
    mixers = {kind: _attention(config, kind) for kind in dict.fromkeys(types)}
    moe, plain, norms = sigmoid_mixture(config), mlp(config), pre_norms(config)
    parts = [moe if mixed else plain for mixed in _mixtures(config)]
    spec = decoder(
        config, [Layer(mixers[kind], part, norms) for kind, part in zip(types, parts, strict=True)],
        names=Names(skip=("model.mtp.",), inside=SINKS),
    )  # fmt: skip
    return replace(spec, mtp=_module(config, spec.hidden, mixers[WINDOW])) if WINDOW in mixers else spec


def mimo_v2(config: Config) -> ModelSpec:
    """MiMo-V2.5 and 2.6, for text. `attention_projection_layout` "fused_qkv": q, k and v are in one tensor."""
    layout = config.get("attention_projection_layout")
    if layout not in (None, "split", "fused_qkv"):
        raise UnsupportedModelError(f"config.json: attention_projection_layout: {layout!r:.80} is not supported; fused_qkv is")
    if layout == "fused_qkv" and (config.get("quantization_config") or flag(config, "attention_bias", False)):
        raise UnsupportedModelError(
            "config.json: attention_projection_layout: fused_qkv is only supported without quantisation and biases: convert "
            "the checkpoint to bfloat16"
        )
    result = mimo_v2_flash(config)
    return blind(result, "audio_encoder.", "audio_tower.", "audio_tokenizer.", "speech_embeddings.")


def _rows(heads: Attention, groups: int) -> Attention:
    """With q, k and v in one tensor: of so many groups of heads in turn."""
    sizes = heads.heads * heads.head_dim, heads.kv_heads * heads.head_dim, heads.kv_heads * (heads.value_dim or heads.head_dim)
    if heads.heads % groups or heads.kv_heads % groups:
        raise CheckpointError(f"config.json: num_key_value_heads: {groups} groups do not divide the heads of each layer")
    q, k, v = (size // groups for size in sizes)
    every = q + k + v
    rows = Rows("qkv_proj", 0, q, every), Rows("qkv_proj", q, k, every), Rows("qkv_proj", q + k, v, every)
    return replace(heads, rows=rows)


def _module(config: Config, hidden: int, window: Attention) -> MTPSpec:
    """The first module. Published checkpoints have three, whose configurations do not count them."""
    e = eps(config)
    norms = Norms(mixer=Norm("input_layernorm", hidden, e), ffn=Norm("pre_mlp_layernorm", hidden, e))
    return MTPSpec(
        vocab=integer(config, "vocab_size"), hidden=hidden, layers=(Layer(window, mlp(config), norms),),
        norm=Norm("final_layernorm", hidden, e), token_norm=Norm("enorm", hidden, e), hidden_norm=Norm("hnorm", hidden, e),
        proj="eh_proj", hidden_first=False, root="model.mtp.layers.0.", names=Names(inside=SINKS),
    )  # fmt: skip


def _attention(config: Config, kind: str) -> Attention:
    head_dim, window = integer(config, "head_dim"), kind == WINDOW
    ropes: Any = config.get("rope_parameters")
    for key in ("rope_parameters", "rope_scaling"):
        section = config.get(key)
        scaling = section.get("rope_type", section.get("type", "default")) if isinstance(section, dict) else "default"
        if scaling != "default":
            raise UnsupportedModelError(
                f"config.json: {key}: this family has a scaling per layer type, not {scaling!r:.80} for all"
            )
    if not isinstance(ropes, dict):
        thetas = {FULL: real(config, "rope_theta", default=5e6),
                  WINDOW: real(config, "swa_rope_theta", 1e-3, 1e15, default=1e4)}  # fmt: skip
        ropes = {each: {"rope_type": "default", "rope_theta": theta} for each, theta in thetas.items()}
    share = real(config, "partial_rotary_factor", default=0.334)
    ropes = {each: {"partial_rotary_factor": share, **section} for each, section in ropes.items() if isinstance(section, dict)}
    kv = groups = integer(config, "num_key_value_heads")
    if window:
        kv = integer(config, "swa_num_key_value_heads", high=1 << 16, default=2 * kv)
    width = integer(config, "v_head_dim", high=head_dim)
    sinks = flag(config, "add_swa_attention_sink_bias", True) if window else flag(config, "add_full_attention_sink_bias", False)
    read = {**config, "rope_parameters": ropes, "rope_scaling": None, "num_key_value_heads": kv}
    scale = real(config, "attention_value_scale", 1e-6, 1e6, default=1.0 if "attention_value_scale" in config else 0.707)
    result = attention(
        read, head_dim=head_dim, rope=rope(read, head_dim, kind=kind, partial=True),
        window=_window(config) if window else 0, value_dim=0 if width == head_dim else width,
        value_scale=scale,
        bias=flag(config, "attention_bias", False), sinks="attention_sink_bias" if sinks else "",
    )  # fmt: skip
    return _rows(result, groups) if config.get("attention_projection_layout") == "fused_qkv" else result


def _window(config: Config) -> int:
    """`sliding_window_size` does not count the token itself."""
    size = config.get("sliding_window_size")
    return integer(config, "sliding_window") if size is None else integer(config, "sliding_window_size") + 1


def _absent(config: Config) -> list[str]:
    """Types of layers where `layer_types` is absent: by `hybrid_layer_pattern`, in which 1 is a window, or every sixth."""
    count, pattern = layer_count(config), config.get("hybrid_layer_pattern")
    if pattern is None:
        return [FULL if i == 0 or (i + 1) % 6 == 0 else WINDOW for i in range(count)]
    if not isinstance(pattern, list) or len(pattern) != count or set(pattern) - {0, 1}:
        raise CheckpointError(f"config.json: hybrid_layer_pattern: must be a list of {count} numbers, each 0 or 1")
    return [WINDOW if each else FULL for each in pattern]


def _mixtures(config: Config) -> list[bool]:
    """Which layers have a mixture: by `moe_layer_freq` of published files, else `mlp_layer_types`, else all but the first."""
    pattern = config.get("moe_layer_freq")
    if not isinstance(pattern, list):
        return sparse(config, 1)
    if len(pattern) != layer_count(config) or set(pattern) - {0, 1}:
        raise CheckpointError(f"config.json: moe_layer_freq: must be a list of {layer_count(config)} numbers, each 0 or 1")
    return [bool(each) for each in pattern]
