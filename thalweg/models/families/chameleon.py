"""Chameleon: a VQ-VAE turns images into tokens of the vocabulary, for a decoder with layer norms of q and k per head (Chameleon
Team 2024, https://arxiv.org/abs/2405.09818). It writes text, and no images."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from thalweg.checkpoint.config import Config, flag, integer, text
from thalweg.errors import CheckpointError, UnsupportedModelError
from thalweg.models.families.common import attention, decoder, eps, hidden_size, layer_count, mlp, pre_norms
from thalweg.models.families.multimodal import is_blind, seeing
from thalweg.models.families.towers.common import outer_config, size, vision_config
from thalweg.models.spec import HeadNorm, Layer, ModelSpec, Norm, Norms, VqEncoderSpec

DEFAULTS = {
    "vocab_size": 65_536, "hidden_size": 4096, "intermediate_size": 11_008, "num_hidden_layers": 32, "num_attention_heads": 32,
    "num_key_value_heads": 32, "max_position_embeddings": 4096, "rms_norm_eps": 1e-5,
}  # fmt: skip
ROOT = "model.vqmodel."
WRITERS = ("post_quant_conv.", "decoder.")
"""Tensors for images as output."""
CODE, DIGITS = "IMGIMG", str.maketrans("ABCDEFGHIJ", "0123456789")
"""The token of a code is this, the code in letters for digits, and one more letter."""
HEAD_EPS = 1e-5
MOST_LEVELS = 8


def chameleon(config: Config) -> ModelSpec:
    config = {**DEFAULTS, **config}
    tokens = read_tokens(config)
    bias = flag(config, "attention_bias", False)
    mixer = attention(
        config, head_dim=hidden_size(config) // integer(config, "num_attention_heads"), bias=bias, out_bias=bias,
        norm=HeadNorm(HEAD_EPS, mean=True, biased=True),
    )  # fmt: skip
    norms = _norms_behind(config) if flag(config, "swin_norm", False) else pre_norms(config)
    layer = Layer(mixer, mlp(config, bias=flag(config, "mlp_bias", False)), norms)
    result = decoder(config, [layer] * layer_count(config), banned_tokens=tuple(sorted(tokens.values())))
    unread = (ROOT,) if is_blind(config) else tuple(ROOT + part for part in WRITERS)
    return seeing(result, config, lambda c: (_encoder(c, tokens, result.vocab), ()), skip=unread)


def _norms_behind(config: Config) -> Norms:
    hidden, e = hidden_size(config), eps(config)
    return Norms(mixer_out=Norm("input_layernorm", hidden, e), ffn_out=Norm("post_attention_layernorm", hidden, e))


def read_tokens(config: Config) -> dict[int, int]:
    """The token of each code, from `vocabulary_map`. CheckpointError."""
    names = outer_config(config).get("vocabulary_map")
    if not isinstance(names, Mapping):
        raise CheckpointError("config.json: vocabulary_map: must map the names of tokens to their ids")
    result: dict[int, int] = {}
    vocab = integer(config, "vocab_size")
    for name, token in names.items():
        if not name.startswith(CODE):
            continue
        code = name.removeprefix(CODE)[:-1].translate(DIGITS)
        if not (code.isascii() and code.isdigit()) or type(token) is not int or not 0 <= token < vocab:
            raise CheckpointError(f"config.json: vocabulary_map: {name!r:.60}: {token!r:.40} is not the token of a code")
        result[int(code)] = token
    return result


def _encoder(config: Config, tokens: Mapping[int, int], vocab: int) -> VqEncoderSpec:
    section: dict[str, Any] = {**vision_config(config)}
    codes = size(section, "num_embeddings", 8192)
    if missing := [code for code in range(codes) if code not in tokens]:
        raise CheckpointError(f"config.json: vocabulary_map: has no token of code {missing[0]}, of {codes} (num_embeddings)")
    if flag(section, "double_latent", False) or integer(section, "in_channels", default=3) != 3:
        raise UnsupportedModelError("config.json: vq_config: only double_latent false and in_channels 3 are supported")
    base, times = size(section, "base_channels", 128), section.get("channel_multiplier", [1, 1, 2, 2, 4])
    listed = isinstance(times, list) and 0 < len(times) <= MOST_LEVELS
    if not listed or not all(type(n) is int and 0 < n < 256 for n in times):
        raise CheckpointError(f"config.json: vq_config: channel_multiplier: {times!r:.80} is not 1 to {MOST_LEVELS} numbers")
    if base % 32:
        raise CheckpointError(f"config.json: vq_config: base_channels: must be a multiple of 32, not {base}")
    attends = text(section, "attn_type", "vanilla") == "vanilla"
    grids, side = section.get("attn_resolutions") or [], size(section, "resolution", 512)
    if not isinstance(grids, list):
        raise CheckpointError(f"config.json: vq_config: attn_resolutions: must be a list of numbers, not {grids!r:.80}")
    return VqEncoderSpec(
        rows=side >> (len(times) - 1),
        channels=base, widths=tuple(base * n for n in times), blocks=integer(section, "num_res_blocks", high=64, default=2),
        attends=frozenset(i for i in range(len(times)) if attends and side >> i in grids), middle=attends,
        latent=size(section, "latent_channels", 256), code=size(section, "embed_dim", 256),
        tokens=tuple(tokens[code] for code in range(codes)), embedding="model.embed_tokens.weight", vocab=vocab,
    )  # fmt: skip
