"""CodeGen: GPT-J with q, v and k in one tensor, of four groups of heads in turn."""

from __future__ import annotations

from thalweg.checkpoint.config import Config, integer
from thalweg.errors import CheckpointError
from thalweg.models.families.common import attention, head_size, hidden_size, rope
from thalweg.models.families.gpt import gpt_decoder, inner_mlp, layer_norm
from thalweg.models.spec import Layer, ModelSpec, Norms, Rope, Rows

GROUPS = 4
"""Of heads: the cores that CodeGen was trained on."""


def codegen(config: Config) -> ModelSpec:
    heads, run = integer(config, "num_attention_heads"), hidden_size(config) // GROUPS
    if heads % GROUPS:
        raise CheckpointError(f"config.json: n_head ({heads}) must be a multiple of {GROUPS}")
    dim = integer(config, "rotary_dim", high=head_size(config), default=64)
    config = {**config, "num_key_value_heads": None}
    turned = rope(config, head_size(config))
    q, v, k = (Rows("qkv_proj", i * run, run, 3 * run) for i in range(3))
    mixer = attention(
        config, rope=Rope(turned.parameters, dim, turned.trained, interleaved=True), name="attn", out="out_proj",
        rows=(q, k, v),
    )  # fmt: skip
    layer = Layer(mixer, inner_mlp(config, up="fc_in", down="fc_out"), Norms(mixer=layer_norm(config, "ln_1")), parallel=True)
    return gpt_decoder(config, layer, head_bias=True)
