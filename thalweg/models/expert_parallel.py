"""Expert parallelism: ranks hold some experts of a mixture whole, rather than a share of each. Loads no tensor framework."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, cast

from thalweg.errors import ConfigError
from thalweg.models.fallback.spec import TransformersSpec
from thalweg.models.spec import Layer, ModelSpec, MoE, ParallelMoE, ShortcutMoE, SinkMoE, SmoothedFFN


def moe_of(ffn: Any) -> MoE | None:
    """The mixture in a layer's feed-forward part."""
    found = ffn.moe if isinstance(ffn, ParallelMoE | ShortcutMoE) else ffn.ffn if isinstance(ffn, SmoothedFFN) else ffn
    return found if isinstance(found, MoE) else None


def has_experts(spec: ModelSpec) -> bool:
    """Does a layer have experts that ranks can hold whole?"""
    return not isinstance(spec, TransformersSpec) and any(moe_of(layer.ffn) is not None for layer in spec.layers)


def place_experts(spec: ModelSpec) -> ModelSpec:
    """The model with whole experts on ranks. ConfigError: it has no experts."""
    if not has_experts(spec):
        raise ConfigError("enable_expert_parallel: this model has no experts to place on ranks; omit it")
    mtp = None if spec.mtp is None else replace(spec.mtp, layers=_place_layers(spec.mtp))
    return replace(spec, layers=_place_layers(spec), mtp=mtp)


def _place_layers(spec: ModelSpec) -> tuple[Layer, ...]:
    return tuple(replace(layer, ffn=_place(layer.ffn)) for layer in spec.layers)


def _place(ffn: Any) -> Any:
    moe = moe_of(ffn)
    if moe is None:
        return ffn
    placed = replace(moe, placed=True)
    if isinstance(ffn, SmoothedFFN):
        return replace(ffn, ffn=cast(SinkMoE, placed))
    return placed if ffn is moe else replace(ffn, moe=placed)
