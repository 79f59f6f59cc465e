"""StableLM 2 and 3B: layer norms, QK-norm in StableLM 2 12B, quarter-rotary RoPE, optional parallel attention and MLP."""

from __future__ import annotations

from thalweg.checkpoint.config import Config, flag, real
from thalweg.models.families.common import attention, decoder, head_size, hidden_size, layer_count, mlp, rope
from thalweg.models.spec import HeadNorm, Layer, LayerNorm, ModelSpec, Norms


def stablelm_epoch(config: Config) -> ModelSpec:
    """As the first files spell it."""
    return stablelm({"layer_norm_eps": config.get("norm_eps"), "partial_rotary_factor": config.get("rope_pct", 0.25), **config})


def stablelm(config: Config) -> ModelSpec:
    config = {"partial_rotary_factor": 0.25, **config}
    hidden, e = hidden_size(config), real(config, "layer_norm_eps", default=1e-5)
    head_dim, parallel = head_size(config), flag(config, "use_parallel_residual", False)
    norm = None
    if flag(config, "qk_layernorm", False):  # StableLM 2 12B
        norm = HeadNorm(e, q="q_layernorm.norms.{}", k="k_layernorm.norms.{}", mean=True)
    layer = Layer(
        attention(
            config,
            head_dim=head_dim,
            rope=rope(config, head_dim, partial=True),
            bias=flag(config, "use_qkv_bias", False),
            norm=norm,
        ),
        mlp(config),
        Norms(
            mixer=LayerNorm("input_layernorm", hidden, e),
            ffn=None if parallel else LayerNorm("post_attention_layernorm", hidden, e),
        ),
        parallel=parallel,
    )
    return decoder(config, [layer] * layer_count(config), norm=LayerNorm("norm", hidden, e))
