"""RWKV-4 and RWKV-7: recurrences instead of attention, and channel mixing instead of MLPs."""

from __future__ import annotations

from collections.abc import Iterator

from thalweg.checkpoint.config import Config, flag, integer, real, text
from thalweg.errors import CheckpointError, UnsupportedModelError
from thalweg.models.families.common import decoder, hidden_size, layer_count
from thalweg.models.spec import AverageMix, ChannelMix, DeltaMix, Layer, LayerNorm, Mixer, ModelSpec, Norms

RANKS = {"decay_low_rank_dim": 2.5, "a_low_rank_dim": 2.5, "gate_low_rank_dim": 5.0, "v_low_rank_dim": 1.7}
"""Keys of ranks, and their factors of the square root of the hidden size where they are null. The head size / 64 is another
factor, except for the gate."""
ACTS = ("sqrelu", "relu2")


def rwkv4(config: Config) -> ModelSpec:
    hidden, inner = hidden_size(config), integer(config, "attention_hidden_size", default=hidden_size(config))
    eps, count = real(config, "layer_norm_epsilon", default=1e-5), layer_count(config)
    time = AverageMix(inner=inner, width=hidden)
    channel = ChannelMix(
        inner=integer(config, "intermediate_size", default=4 * hidden), width=hidden, name="feed_forward",
        mixes=("time_mix_key", "time_mix_receptance"), mix_dims=3, receptance="receptance",
    )  # fmt: skip
    layers = [_layer(each, LayerNorm(name, hidden, eps)) for each, name in ((time, "ln1"), (channel, "ln2"))]
    return decoder(
        config, layers * count, numbers=_numbers(count), norm=LayerNorm("ln_out", hidden, eps), root="rwkv.",
        embed_norm=LayerNorm("blocks.0.pre_ln", hidden, eps), layer="blocks.{}.", embed="embeddings", head="head",
    )  # fmt: skip


def rwkv7(config: Config) -> ModelSpec:
    """In the format of flash-linear-attention."""
    if config.get("attn") is not None:
        raise UnsupportedModelError("config.json: attn: layers with attention are not supported in RWKV-7; it must be null")
    if (act := text(config, "hidden_act", "sqrelu")) not in ACTS:
        raise UnsupportedModelError(f"config.json: hidden_act: unknown {act!r:.80}; supported: {', '.join(ACTS)}")
    hidden, count, eps = hidden_size(config), layer_count(config), real(config, "norm_eps", default=1e-5)

    def norm(name: str) -> LayerNorm:
        return LayerNorm(name, hidden, eps, bias=flag(config, "norm_bias", True))

    layers = [layer for i in range(count) for layer in _pair(config, i, norm("attn_norm"), norm("ffn_norm"))]
    before = norm("layers.0.pre_norm") if flag(config, "norm_first", True) else None
    return decoder(
        config, layers, numbers=_numbers(count), norm=norm("norm"), embed_norm=before, embed="embeddings",
        tied=flag(config, "tie_word_embeddings", False),
    )  # fmt: skip


def _pair(config: Config, i: int, before: LayerNorm, between: LayerNorm) -> Iterator[Layer]:
    """The two declared layers of layer i."""
    hidden, dim = hidden_size(config), config.get("head_dim", 64)
    heads = integer(config, "num_heads") if dim is None else hidden // integer(config, "head_dim", default=64)
    if hidden % heads:
        raise CheckpointError(f"config.json: hidden_size ({hidden}) must be a multiple of the number of heads ({heads})")
    values = config.get("value_dim")
    if (values[i] if isinstance(values, list) and len(values) > i else values) not in (None, hidden):
        raise UnsupportedModelError(f"config.json: value_dim: must be hidden_size, {hidden}, in every layer")
    size = hidden // heads
    a, b, c, d = (integer(config, key, high=1 << 16, default=_rank(hidden, key, size)) for key in RANKS)
    yield _layer(
        DeltaMix(heads=heads, head_dim=size, ranks=(a, b, c, d), eps=size * before.eps, first=i == 0), before
    )  # fmt: skip
    absent = -(-int(hidden * real(config, "hidden_ratio", 0.01, 100, default=4.0)) // 32) * 32
    yield _layer(ChannelMix(inner=integer(config, "intermediate_size", default=absent), width=hidden), between)


def _rank(hidden: int, key: str, head_dim: int) -> int:
    wide: float = RANKS[key] * hidden**0.5 * (1 if key.startswith("gate") else head_dim / 64)
    return max(32, round(wide / 32) * 32)


def _layer(mixer: Mixer, norm: LayerNorm) -> Layer:
    return Layer(mixer, None, Norms(mixer=norm))


def _numbers(count: int) -> tuple[int, ...]:
    return tuple(i // 2 for i in range(2 * count))
