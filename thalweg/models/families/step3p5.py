"""Step 3.5 Flash, and Step 3.7 with images: gated attention heads, sliding windows on three of four layers with other
heads and RoPE settings, sigmoid router with expert bias, a shared expert."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from thalweg.checkpoint.config import Config, flag, integer, real, rope_parameters, text
from thalweg.errors import CheckpointError, UnsupportedModelError
from thalweg.models.families.common import attention, decoder, eps, hidden_size, layer_count, layer_types, mlp, rope
from thalweg.models.families.deepseek import drafts
from thalweg.models.families.mixtures import sparse
from thalweg.models.families.multimodal import blind, is_blind, seeing
from thalweg.models.families.towers.step3 import INSIDE, NAMES, step3
from thalweg.models.spec import MLP, Attention, HeadNorm, Layer, ModelSpec, MoE, MTPSpec, Names, Norm, Norms

WINDOW, FULL = "sliding_attention", "full_attention"
SHARED = ((".share_expert.", ".moe.share_expert."),)


def step3p5(config: Config) -> ModelSpec:
    if text(config, "moe_router_activation", "sigmoid") != "sigmoid" or not flag(config, "use_qk_norm", True):
        raise UnsupportedModelError(
            "config.json: moe_router_activation, use_qk_norm: this family has sigmoids and norms of q, k"
        )
    config = {"rms_norm_eps": 1e-5, **config}
    count, offset = layer_count(config), 1.0 if flag(config, "zero_centered", True) else 0.0
    hidden, e = hidden_size(config), eps(config)
    section = _each(config, "layer_types", None) if config.get("layer_types") else []
    kinds = layer_types({**config, "layer_types": section[:count] or None}, ([WINDOW, FULL] * count)[:count])
    predicts = integer(config, "num_nextn_predict_layers", low=0, default=0) > 0
    modules = [kind for kind in section[count : count + predicts] if kind in (WINDOW, FULL)]
    first, second = (Norm(name, hidden, e, offset) for name in ("input_layernorm", "post_attention_layernorm"))
    mixed, layers = _mixtures(config), []
    for i, kind in enumerate([*kinds, *modules]):
        routed, shared = (_limit(config, f"swiglu_limits{s}", i) for s in ("", "_shared"))
        part: MLP | MoE = _moe(config, routed, shared) if i in mixed else mlp(config, act="silu", cut=shared)
        layers.append(Layer(_attention(config, i, kind, HeadNorm(e, offset)), part, Norms(mixer=first, ffn=second)))
    names = Names(skip=drafts(config).skip, inside=SHARED)
    spec = decoder(config, layers[:count], norm=Norm("norm", hidden, e, offset), names=names)
    return replace(spec, mtp=_module(spec, layers[count], e, offset)) if modules else spec


def _module(spec: ModelSpec, layer: Layer, eps: float, offset: float) -> MTPSpec:
    """The first module: a layer after the last. It reads sums before norms."""
    hidden, root = spec.hidden, f"{spec.root}{spec.layer.format(len(spec.layers))}"
    norm, token, before = (Norm(name, hidden, eps, offset) for name in ("shared_head.norm", "enorm", "hnorm"))
    copies = tuple(f"{root}{name}." for name in ("embed_tokens", "shared_head.output", "shared_head.head"))
    return MTPSpec(
        vocab=spec.vocab, hidden=hidden, layers=(layer,), norm=norm, token_norm=token, hidden_norm=before, proj="eh_proj",
        hidden_first=False, raw=True, root=root, names=Names(skip=copies, inside=((".transformer.", "."), *SHARED)),
    )  # fmt: skip


def step3p7(config: Config) -> ModelSpec:
    """Step 3.7 Flash: Step 3.5 with a vision encoder. Two spellings of its settings are read, that of published
    files, and that of transformers, which names layer types instead of listing values."""
    absent = {
        "num_attention_groups": 8, "moe_num_experts": 288, "moe_top_k": 8, "use_moe_router_bias": True,
        "share_expert_dim": 1280, "moe_intermediate_size": 1280,
    }  # fmt: skip
    spec = step3p5({**absent, **_translate(config)})
    if is_blind(config):
        return blind(spec, "vit_large_projector.", "vit_downsampler")
    names = spec.names
    return seeing(spec, config, step3, replace=NAMES, inside=(*names.inside, *INSIDE), skip=names.skip)


def _translate(config: Config) -> dict[str, Any]:
    """The configuration in the spelling of published files."""
    out = {_PUBLISHED.get(key, key): value for key, value in config.items()}
    count = layer_count(config)
    if (kinds := config.get("mlp_layer_types")) is not None:
        mixed = [*sparse(config, 3), *(kind == "sparse" for kind in _list(config, "mtp_mlp_layer_types"))]
        out["moe_layers_enum"] = ",".join(str(i) for i, each in enumerate(mixed) if each)
    elif config.get("moe_layers_enum") is None:
        out["moe_layers_enum"] = ",".join(map(str, range(3, count)))
    elif isinstance(kinds := config["moe_layers_enum"], list):
        out["moe_layers_enum"] = ",".join(map(str, kinds))
    if (heads := config.get("num_sliding_attention_heads")) is not None:
        out["attention_other_setting"] = {"num_attention_heads": heads}
    if config.get("layer_types") is None:
        out["layer_types"] = ["full_attention"] * count
    elif len(kinds := _list(config, "layer_types")) == count:
        out["layer_types"] = [*kinds, *_list(config, "mtp_layer_types")]
    elif not isinstance(config["layer_types"], list):
        raise CheckpointError(f"config.json: layer_types: must be a list of names, not {config['layer_types']!r:.80}")
    ropes = config.get("rope_parameters")
    if isinstance(ropes, dict) and any(isinstance(each, dict) for each in ropes.values()):
        each = [rope_parameters(config, str(kind)) for kind in out["layer_types"]]
        out["rope_theta"] = [found.pop("rope_theta") for found in each]
        out["partial_rotary_factors"] = [found.pop("partial_rotary_factor", 1.0) for found in each]
        stretched = next((i for i, found in enumerate(each) if found["rope_type"] != "default"), None)
        out |= {"rope_parameters": None, "rope_scaling": None if stretched is None else each[stretched]}
        out["yarn_only_types"] = [] if stretched is None else [out["layer_types"][stretched]]
    elif config.get("rope_scaling") and not config.get("yarn_only_types"):
        out["yarn_only_types"] = ["full_attention"]
    return out


_PUBLISHED = {
    "n_routed_experts": "moe_num_experts", "num_local_experts": "moe_num_experts", "num_experts_per_tok": "moe_top_k",
    "num_key_value_heads": "num_attention_groups",
}  # fmt: skip
"""Keys of transformers -> those of published files."""


def _attention(config: Config, layer: int, kind: str, norm: HeadNorm) -> Attention:
    own = config.get("attention_other_setting") if kind == WINDOW else None
    groups = integer(config, "num_attention_groups", high=1 << 16)
    read: dict[str, Any] = {**config, "num_attention_groups": groups, **(own if isinstance(own, dict) else {})}
    only = config.get("yarn_only_types")
    read |= {
        "num_key_value_heads": read["num_attention_groups"], "rope_theta": _of(config, "rope_theta", 10_000.0, layer),
        "partial_rotary_factor": _of(config, "partial_rotary_factors", 1.0, layer),
        "rope_scaling": config.get("rope_scaling") if not only or kind in only else None,
    }  # fmt: skip
    head_dim = integer(read, "head_dim", default=128)
    result = attention(
        read, head_dim=head_dim, rope=rope(read, head_dim, partial=True), norm=norm,
        window=integer(config, "sliding_window", default=512) if kind == WINDOW else 0,
        bias=flag(config, "attention_bias", False), gate="g_proj" if flag(config, "use_head_wise_attn_gate", True) else "",
        gate_heads=flag(config, "use_head_wise_attn_gate", True),
    )  # fmt: skip
    if not _of(config, "use_rope_layers", True, layer):
        raise UnsupportedModelError("config.json: use_rope_layers: this version tells positions on all layers of this family")
    return result


def _moe(config: Config, routed: float, shared: float) -> MoE:
    """routed, shared: where activations are cut."""
    experts = integer(config, "moe_num_experts")
    inner = integer(config, "share_expert_dim", low=0, high=1 << 24, default=0)
    return MoE(
        experts=experts, top_k=integer(config, "moe_top_k", high=experts), scores="sigmoid", name="moe", cut=routed,
        inner=integer(config, "moe_intermediate_size"), renormalise=flag(config, "norm_expert_weight", True),
        scale=real(config, "moe_router_scaling_factor", 1e-6, 1e6, default=1.0),
        correction="router_bias" if flag(config, "use_moe_router_bias", False) else "",
        fused=("gate_proj.weight", "up_proj.weight", "down_proj.weight"),
        shared=mlp(config, inner=inner, act="silu", name="share_expert", cut=shared) if inner else None,
    )  # fmt: skip


def _mixtures(config: Config) -> set[int]:
    """`moe_layers_enum`, numbers between commas; absent = all but the first."""
    section = text(config, "moe_layers_enum", ",".join(map(str, range(1, layer_count(config)))))
    numbers = [n.strip() for n in section.split(",") if n.strip()]
    if not all(n.isdecimal() for n in numbers):
        raise CheckpointError(f"config.json: moe_layers_enum: must be layer numbers between commas, not {section!r:.80}")
    return set(map(int, numbers))


def _list(config: Config, key: str) -> list[Any]:
    section = config.get(key)
    return section if isinstance(section, list) else []


def _each(config: Config, key: str, absent: Any) -> list[Any]:
    """A value for each layer: of a list, which may go on with the layers that predict further tokens, or one for all."""
    section, count = config.get(key), layer_count(config)
    if isinstance(section, list) and section:
        if len(section) < count:
            raise CheckpointError(f"config.json: {key}: must be a list of {count} or more values, one per layer")
        return section
    return [absent if section in (None, []) else section] * count


def _of(config: Config, key: str, absent: Any, layer: int) -> Any:
    """The value of a layer. `absent` where the list ends before it."""
    section = config.get(key)
    values = _each(config, key, absent)
    if layer < len(values):
        return values[layer]
    return absent if isinstance(section, list) or section is None else section


def _limit(config: Config, key: str, layer: int) -> float:
    """Where activations of a layer are cut. 0: nowhere."""
    return real({"x": _of(config, key, 0.0, layer) or 0.0}, "x", 0, 1e6)
