"""Helium: Llama whose rotary positions turn neighbouring values of a head, with smaller terms below the roots of its norms."""

from __future__ import annotations

from thalweg.checkpoint.config import Config, flag
from thalweg.models.families.common import attention, decoder, head_size, layer_count, mlp, pre_norms, rope
from thalweg.models.spec import Layer, ModelSpec


def helium(config: Config) -> ModelSpec:
    said = {"rms_norm_eps": 1e-8, "head_dim": 128, **config}
    turned = rope(said, head_size(said), interleaved=True)
    layer = Layer(
        attention(said, rope=turned, bias=flag(said, "attention_bias", False)),
        mlp(said, bias=flag(said, "mlp_bias", False)),
        pre_norms(said),
    )
    return decoder(said, [layer] * layer_count(said))
