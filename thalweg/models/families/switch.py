"""Switch Transformers: T5 with a mixture of experts on some layers, one expert for each token."""

from __future__ import annotations

from thalweg.checkpoint.config import Config, flag, integer
from thalweg.models.families.common import UNGATED, act
from thalweg.models.families.t5 import MOST_LAYERS, build
from thalweg.models.spec import FFN, ModelSpec, MoE, UngatedMLP


def switch(config: Config) -> ModelSpec:
    return build(config, each=False, ffn=_ffn)


def _ffn(config: Config, side: str, layer: int, place: int) -> FFN:
    inner, kind = integer(config, "d_ff", high=1 << 24), act(config, "dense_act_fn", "relu", UNGATED)
    name, step = f"layer.{place}.mlp", _sparse_step(config, side)
    if step != 1 and layer % step != 1:
        return UngatedMLP(inner=inner, act=kind, name=name, up="wi", down="wo")
    return MoE(
        experts=integer(config, "num_experts", high=1 << 16, default=8), top_k=1, inner=inner, act=kind, gated=False, name=name,
        router="router.classifier", router_bias=flag(config, "router_bias", False), expert="experts.expert_{}", up="wi",
        down="wo", capacity=integer(config, "expert_capacity", default=64) if side == "encoder" else 0,
    )  # fmt: skip


def _sparse_step(config: Config, side: str) -> int:
    """One of so many layers has experts, the second of them first."""
    count = integer(config, "num_layers", high=MOST_LAYERS)
    if side == "decoder":
        count = integer(config, "num_decoder_layers", high=MOST_LAYERS, default=count)
    sparse = integer(config, f"num_sparse_{side}_layers", low=0, high=count, default=min(3, count))
    return count // sparse if sparse else count
