"""Dots 3 Note, for text: latent attention (MLA) with a normed rotary key, scaled latents and a gate per head, sparse attention
(DSA) on some layers and sliding windows of other sizes on the others, sigmoid routers with expert bias."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from thalweg.checkpoint.config import Config, flag, integer, name_list, real, text
from thalweg.errors import CheckpointError, UnsupportedModelError
from thalweg.models.families.common import decoder, eps, hidden_size, layer_count, layer_types, mlp, pre_norms
from thalweg.models.families.deepseek import latent
from thalweg.models.families.mixtures import sigmoid_mixture
from thalweg.models.families.multimodal import blind
from thalweg.models.spec import Indexer, LatentAttention, Layer, ModelSpec

INDEXED, FULL, WINDOW = "indexed_attention", "full_attention", "sliding_attention"
SIZES = {
    "num_attention_heads": 64, "q_lora_rank": 1024, "kv_lora_rank": 1024, "head_dim": 256, "qk_nope_head_dim": 192,
    "v_head_dim": 128,
}  # fmt: skip
"""Of layers with a window, under keys that begin with swa_."""


def dots3_note(config: Config) -> ModelSpec:
    for key in ("attention_gate_type", "swa_attention_gate_type"):
        if text(config, key, "headwise") != "headwise":
            raise UnsupportedModelError(f"config.json: {key}: {config[key]!r:.80} is not supported; headwise is")
    if not flag(config, "apply_mla_qkv_lora_rescale", True):
        raise UnsupportedModelError("config.json: apply_mla_qkv_lora_rescale: this family has scaled latents")
    config = {
        "q_lora_rank": 1024, "n_routed_experts": 256, "moe_intermediate_size": 1536, "index_n_heads": 64, "rope_theta": 8e7,
        **config, "rms_norm_eps": eps(config, default=1e-5),
    }  # fmt: skip
    count, norms = layer_count(config), pre_norms(config)
    kinds = _kinds(config, count)
    mixers = {kind: _attention(config, kind, _sizes(config, kind, kinds)) for kind in dict.fromkeys(kinds)}
    inner = integer(config, "shared_experts_intermediate_size", default=1536)
    inner = integer(config, "moe_shared_expert_intermediate_size", default=inner)
    shared = mlp(config, inner=inner * integer(config, "n_shared_experts", default=1), name="shared_experts")
    moe, plain = replace(sigmoid_mixture(config), shared=shared), mlp(config)
    spec = decoder(
        config,
        [Layer(mixers[kind], moe if m else plain, norms) for kind, m in zip(kinds, _mixtures(config, count), strict=True)],
    )
    drafts = tuple(f"{root}.layers.{count}." for root in ("model", "model.language_model"))
    return blind(
        replace(spec, names=replace(spec.names, skip=drafts)),
        "vision_encoder.",
        "audio_encoder.",
        "audio_tower.",
        "audio_adapter.",
    )


def _kinds(config: Config, count: int) -> tuple[str, ...]:
    """Published files write "full_attention" of layers with sparse attention, unless `use_dsa` is false."""
    indexed = flag(config, "use_dsa", True) if "use_dsa" in config or "per_layer_config" not in config else None
    windows = flag(config, "use_sliding_window", True)
    absent = [WINDOW if windows and i >= 2 and i % 4 != 1 else FULL if indexed is False else INDEXED for i in range(count)]
    kinds = layer_types(config, absent, known=(INDEXED, FULL, WINDOW))
    if indexed is None:
        return kinds
    return tuple(kind if kind == WINDOW else INDEXED if indexed else FULL for kind in kinds)


def _sizes(config: Config, kind: str, kinds: tuple[str, ...]) -> dict[str, Any]:
    """The configuration with the sizes of these layers: as transformers writes them, or by the keys of published files."""
    section: Any = config.get("per_layer_config")
    if section is None and kind != WINDOW:
        return dict(config)
    if section is None:
        own = {key: integer(config, f"swa_{key}", high=1 << 20, default=size) for key, size in SIZES.items()}
        turned = own["head_dim"] - own["qk_nope_head_dim"]
        own["qk_rope_head_dim"] = integer(config, "swa_qk_rope_head_dim", high=1 << 16, default=max(1, turned))
        return {**config, **own}
    if not isinstance(section, dict) or not all(str(k).isdecimal() and isinstance(v, dict) for k, v in section.items()):
        raise CheckpointError("config.json: per_layer_config: must map the numbers of layers to objects")
    each = [section.get(str(i), section.get(i)) or {} for i, other in enumerate(kinds) if other == kind]
    if any(other != each[0] for other in each):
        raise UnsupportedModelError(f"config.json: per_layer_config: this family has one set of sizes for {kind} layers")
    odd = sorted({*each[0]} - {*SIZES, "num_key_value_heads", "qk_rope_head_dim"})
    if odd:
        raise UnsupportedModelError(f"config.json: per_layer_config: {odd[0]!r:.80} is not supported by this version")
    return {**config, **each[0]}


def _attention(config: Config, kind: str, sizes: Config) -> LatentAttention:
    """The scale of the latent of q is a factor of scores: no index changes with it."""
    section, hidden = config.get("rope_parameters") or config.get("rope_scaling"), hidden_size(config)
    parameters: Any = section.get(kind, section) if isinstance(section, dict) else {}
    if not isinstance(section, dict):
        theta = real(config, "swa_rope_theta", 1e-3, 1e15, default=5e4) if kind == WINDOW else config["rope_theta"]
        parameters = {"rope_type": "default", "rope_theta": theta}
    if not isinstance(parameters, dict) or any(isinstance(v, dict) for v in parameters.values()):
        raise CheckpointError(f"config.json: rope_parameters: no settings for layers of type {kind!r}")
    kept = {key: v for key, v in parameters.items() if key != "partial_rotary_factor"}  # the slice that turns has a size
    own = latent(
        {**sizes, "rope_parameters": kept, "rope_scaling": None, "partial_rotary_factor": None}, interleaved=True,
        eps=eps(config), key_norm="k_rope_only_layernorm", gate="g_proj",
    )  # fmt: skip
    if not own.q_latent:
        raise CheckpointError("config.json: q_lora_rank: this family has a latent of q")
    own = replace(own, scale=own.scale * (hidden / own.q_latent) ** 0.5, latent_scale=(hidden / own.latent) ** 0.5)
    if kind == WINDOW:
        window = integer(config, "sliding_window_size", default=512)
        return replace(own, window=integer({"sliding_window": window, **config}, "sliding_window", default=window))
    if kind == FULL:
        return own
    dim = integer(config, "index_head_dim", high=1 << 16, default=128)
    if dim < own.rope_dim:
        raise CheckpointError(f"config.json: index_head_dim: {dim}, of which qk_rope_head_dim ({own.rope_dim}) turn")
    indexer = Indexer(heads=integer(config, "index_n_heads", high=1 << 16), dim=dim, interleaved=True)
    return replace(own, top=integer(config, "index_topk", default=2048), indexer=indexer)


def _mixtures(config: Config, count: int) -> list[bool]:
    """Which layers have a mixture: by `mlp_layer_types`, or by `first_k_dense_replace` and `moe_layer_freq`."""
    every = config.get("moe_layer_freq", 1)
    if (kinds := name_list(config, "mlp_layer_types", ("dense", "sparse"), count)) is not None:
        return [kind == "sparse" for kind in kinds]
    dense = integer(config, "first_k_dense_replace", low=0, default=1)
    if isinstance(every, list):
        if len(every) < count:
            raise CheckpointError(f"config.json: moe_layer_freq: must be a number, or a list of {count} numbers")
        return [i >= dense and bool(every[i]) for i in range(count)]
    each = integer(config, "moe_layer_freq", default=1)
    return [i >= dense and i % each == 0 for i in range(count)]
