"""HRM-Text: two stacks of gated attention layers with norms without weights, looped in turns over a slow and a fast stream, one
KV cache per loop, bidirectional attention among prompt tokens."""

from __future__ import annotations

from dataclasses import replace

from thalweg.checkpoint.config import Config, flag, integer, real
from thalweg.errors import UnsupportedModelError
from thalweg.models.families.common import attention, decoder, eps, hidden_size, layer_count, mlp
from thalweg.models.spec import Layer, LoopInput, ModelSpec, Names, Norm, Norms, Rows

SLOW, FAST = 0, 1
"""Places of the two streams."""


def hrm_text(config: Config) -> ModelSpec:
    if flag(config, "attention_bias", False) or flag(config, "mlp_bias", False):
        raise UnsupportedModelError("config.json: attention_bias, mlp_bias: this family only supports layers without biases")
    config = {"head_dim": 128, **config, "num_key_value_heads": None}
    hidden, e = hidden_size(config), eps(config)
    count = layer_count(config)
    if config.get("num_layers_per_stack") is not None:  # then the other key counts the layers of all loops
        count = integer(config, "num_layers_per_stack", high=10_000)
    slow, fast = (integer(config, key, 1, 64, default=n) for key, n in (("H_cycles", 2), ("L_cycles", 3)))
    prefix = flag(config, "prefix_lm", True)
    layer = _layer(config, hidden, e, prefix)
    last = Norm("final_norm", hidden, e, weight=False)
    low, high = tuple(range(count)), tuple(range(count, 2 * count))
    inputs = [LoopInput(norm=last, adds=SLOW)] * (fast - 1)
    turn = [LoopInput(norm=last, saves=SLOW, adds=FAST), *inputs, LoopInput(norm=last, saves=FAST, adds=SLOW)]
    first = LoopInput(saves=SLOW, start="model.z_L_init")
    loops = [first, *turn[1:], *turn * (slow - 1)]
    initial = real(config, "initializer_range", 1e-9, 1.0, default=0.02)
    scale = 1 / initial if config.get("embedding_scale") is None else real(config, "embedding_scale", 1e-6, 1e6)
    return decoder(
        config, [each for loop in loops for each in (replace(layer, around=loop), *[layer] * (count - 1))], norm=last,
        numbers=(*low * fast, *high) * slow, embed_scale=scale, prefix_lm=prefix,
        names=Names(
            replace=(
                ("model.L_module.layers.", "model.layers."),
                *((f"model.H_module.layers.{i}.", f"model.layers.{n}.") for i, n in enumerate(high)),
            ),
            inside=((".attn.", ".self_attn."),),
        ),
    )  # fmt: skip


def _layer(config: Config, hidden: int, e: float, prefix: bool) -> Layer:
    """Of either stack. q, k, v and the gate are one tensor, which begins with the gate."""
    plain = attention(config)
    run = plain.heads * plain.head_dim
    gate, q, k, v = (Rows("gqkv_proj", i * run, run, 4 * run) for i in range(4))
    mixer = replace(plain, gate="gate_proj", rows=(q, k, v, gate), spans=prefix)
    first, second = (Norm(name, hidden, e, weight=False) for name in ("input_layernorm", "post_attention_layernorm"))
    return Layer(mixer, mlp(config, fused="gate_up_proj"), Norms(mixer=first, ffn=second))
