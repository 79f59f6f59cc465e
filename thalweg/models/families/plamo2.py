"""PLaMo 2: Mamba-2 with steps projected from convolved values, and attention with a QK-norm per head."""

from __future__ import annotations

from thalweg.checkpoint.config import Config, flag, integer
from thalweg.errors import CheckpointError
from thalweg.models.families.common import attention, decoder, eps, hidden_size, layer_count, mlp
from thalweg.models.families.mamba import taps
from thalweg.models.families.plamo3 import OFFSETS
from thalweg.models.spec import HeadNorm, InnerMamba2, Layer, ModelSpec, Norm, Norms

LEAST_RANK, QK_EPS = 64, 1e-6


def plamo2(config: Config) -> ModelSpec:
    """Attention is to all earlier tokens, as in vLLM: `attention_window_size` limits the cache of the authors' code."""
    hidden, e, size = hidden_size(config), eps(config), integer(config, "hidden_size_per_head", default=128)
    config = {"num_key_value_heads": 4, "max_position_embeddings": 2048, **config}
    heads = attention(
        config, head_dim=size, norm=HeadNorm(QK_EPS, q="q_weight", k="k_weight", apart=True), name="mixer", fused="qkv_proj"
    )
    scan = InnerMamba2(
        heads=integer(config, "mamba_num_heads", high=1 << 16, default=64), head_dim=size,
        state=integer(config, "mamba_d_state", default=64), rank=max(LEAST_RANK, hidden // 16),
        kernel=taps(config, "mamba_d_conv"), eps=e,
    )  # fmt: skip
    norms = Norms(*(Norm(name, hidden, e, offset=offset) for name, offset in OFFSETS.items()))
    inner = mlp(config, act="silu", fused="gate_up_proj")
    layers = [Layer(heads if attends else scan, inner, norms) for attends in _attending(config)]
    return decoder(
        config, layers, norm=Norm("norm", hidden, e, offset=1.0), layer="layers.layers.{}.",
        tied=flag(config, "tie_word_embeddings", True),
    )  # fmt: skip


def _attending(config: Config) -> list[bool]:
    """Of each layer: does it attend? One of every `mamba_step` does, and the last one of very few layers."""
    layers, every = layer_count(config), integer(config, "mamba_step", high=1 << 16, default=2)
    if not flag(config, "mamba_enabled", True):
        return [True] * layers
    if every < 2:
        raise CheckpointError(f"config.json: mamba_step: must be at least 2, not {every}")
    if layers <= every // 2:
        return [i == layers - 1 for i in range(layers)]
    return [i % every == every // 2 for i in range(layers)]
