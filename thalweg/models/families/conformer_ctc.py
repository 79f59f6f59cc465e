"""CTC models with conformer layers: wav2vec 2.0 Conformer over samples, LASR (MedASR) over spectra, w2v-BERT 2.0 over pairs of
spectra."""

from __future__ import annotations

from typing import Any

from thalweg.checkpoint.config import Config, flag, integer, real, section
from thalweg.errors import CheckpointError, UnsupportedModelError
from thalweg.media.audio_processors.kaldi import LASR_SECONDS, PAIR, adapter_stride
from thalweg.media.audio_processors.wav2vec import LONGEST
from thalweg.media.mel import RATE
from thalweg.models.families.parakeet import blank_token, encoder_config
from thalweg.models.families.towers.common import act
from thalweg.models.families.transcribers import transcriber
from thalweg.models.families.wav2vec import check_adapters, sample_convolutions
from thalweg.models.spec import (
    ConformerLayer,
    ConformerTranscriberSpec,
    CTCHead,
    FrameConvolutions,
    FrameProjection,
    ModelSpec,
    Names,
    PoolingAdapter,
)

FRAMES = 100
"""Spectra of a second."""
MOST_LAYERS = 1000
PLACES: dict[Any, Any] = {"relative": "relative", "rotary": "rotary input", "relative_key": "key", None: "none"}
FFN = tuple(
    pair for i in (1, 2) for pair in (
        (f"ffn{i}_layer_norm.", f"norm_feed_forward{i}."), (f"ffn{i}.intermediate_dense.", f"feed_forward{i}.linear1."),
        (f"ffn{i}.output_dense.", f"feed_forward{i}.linear2."),
    )
)  # fmt: skip
INSIDE = (
    ("conv_module.layer_norm.", "norm_conv."), ("conv_module.batch_norm.", "conv.norm."),
    ("conv_module.depthwise_layer_norm.", "conv.norm."), ("conv_module.", "conv."), *FFN,
    ("self_attn_layer_norm.", "norm_self_att."), (".final_layer_norm.", ".norm_out."), ("linear_q.", "q_proj."),
    ("linear_k.", "k_proj."), ("linear_v.", "v_proj."), ("linear_out.", "o_proj."), ("linear_pos.", "relative_k_proj."),
    ("pos_bias_u", "bias_u"), ("pos_bias_v", "bias_v"),
)  # fmt: skip
"""Parts of names, as Parakeet has them."""


def wav2vec2_conformer(config: Config) -> ModelSpec:
    check_adapters(config)
    entrance = sample_convolutions(config)
    layer = _layer(config, "gelu", "relative", 1e-5)
    frames = int(LONGEST * RATE) // entrance.stride + 1
    return _transcriber(config, "wav2vec2_conformer.", entrance, layer, frames, "encoder.layer_norm")


def wav2vec2_bert(config: Config) -> ModelSpec:
    check_adapters({**config, "add_adapter": False})
    if flag(config, "use_intermediate_ffn_before_adapter", False):
        raise UnsupportedModelError("config.json: use_intermediate_ffn_before_adapter is not supported by this version")
    eps = real(config, "layer_norm_eps", default=1e-5)
    reach = tuple(
        integer(config, f"{side}_max_position_embeddings", low=0, high=1 << 16, default=default)
        for side, default in (("left", 64), ("right", 8))
    )
    layer = _layer(config, "silu", "relative_key", eps, reach=reach, causal=True, conv_norm="layer")
    inputs = integer(config, "feature_projection_input_dim", high=1 << 16, default=160)
    entrance = FrameProjection(inputs=inputs, hidden=layer.hidden, eps=eps)
    return _transcriber(
        config, "wav2vec2_bert.", entrance, layer, int(LONGEST * FRAMES) // PAIR + 1, "", _adapter(config, layer)
    )


def _adapter(config: Config, layer: ConformerLayer) -> PoolingAdapter | None:
    if not flag(config, "add_adapter", False):
        return None
    if config.get("output_hidden_size") not in (None, layer.hidden):
        raise UnsupportedModelError(f"config.json: output_hidden_size: must be hidden_size, {layer.hidden}")
    return PoolingAdapter(
        hidden=layer.hidden, heads=layer.heads, inner=layer.inner, act=act(config, "adapter_act", "relu"), eps=layer.eps,
        layers=integer(config, "num_adapter_layers", high=100, default=1), stride=adapter_stride(config),
        taps=integer(config, "adapter_kernel_size", high=1 << 8, default=3), at="wav2vec2_bert.adapter.layers.",
    )  # fmt: skip


def lasr(config: Config) -> ModelSpec:
    settings = encoder_config(config)
    hidden, heads = _size(settings, "hidden_size", 512), _size(settings, "num_attention_heads", 8)
    if hidden % heads:
        raise CheckpointError(f"config.json: encoder_config: hidden_size ({hidden}) must be a multiple of {heads} heads")
    rope = section(settings, "rope_parameters", "config.json: encoder_config")
    if rope.get("rope_type", "default") != "default":
        raise UnsupportedModelError(f"config.json: encoder_config: rope_type: {rope['rope_type']!r:.40}; supported: default")
    layer = ConformerLayer(
        hidden=hidden, heads=heads, inner=_size(settings, "intermediate_size", 2048), act=act(settings, "hidden_act", "silu"),
        bias=flag(settings, "attention_bias", False), kernel=_size(settings, "conv_kernel_size", 32),
        conv_bias=flag(settings, "convolution_bias", False), eps=real(settings, "layer_norm_eps", default=1e-6),
        norm_bias=False,
        places="rotary", base=real(rope, "rope_theta", 1, 1e12, default=1e4),
        half=_pair(settings, "feed_forward_residual_weights", (1.5, 0.5)),
        conv=_pair(settings, "conv_residual_weights", (2.0, 1.0)),
    )  # fmt: skip
    entrance = FrameConvolutions(
        bins=_size(settings, "num_mel_bins", 128), hidden=hidden, channels=_size(settings, "subsampling_conv_channels", 256),
        taps=_size(settings, "subsampling_conv_kernel_size", 5), stride=_size(settings, "subsampling_conv_stride", 2),
    )  # fmt: skip
    labels = integer(config, "vocab_size", high=1 << 24, default=512)
    head = CTCHead(
        labels=labels, blank=blank_token({"pad_token_id": 0, **config}, "pad_token_id", labels), name="ctc_head", pointwise=True
    )
    frames = int(LASR_SECONDS * FRAMES) // entrance.stride**2 + 1
    encoder = ConformerTranscriberSpec(
        entrance=entrance, layer=layer, layers=integer(settings, "num_hidden_layers", high=MOST_LAYERS, default=17),
        last="encoder.out_norm", last_eps=layer.eps, frames=frames, head=head, root="encoder.", layer_root="encoder.layers.",
    )  # fmt: skip
    counters = tuple(f"encoder.layers.{i}.conv.norm.num_batches_tracked" for i in range(encoder.layers))
    return transcriber(encoder, frames, Names(skip=counters))


def _layer(config: Config, function: str, places: str, eps: float, **more: Any) -> ConformerLayer:
    hidden, heads = integer(config, "hidden_size"), integer(config, "num_attention_heads", high=1 << 16)
    if hidden % heads or hidden // heads % 2:
        raise CheckpointError(f"config.json: hidden_size ({hidden}) must be an even multiple of num_attention_heads ({heads})")
    kind = config.get("position_embeddings_type", places)
    if not any(kind == known for known in PLACES) or (kind == "relative_key" and "reach" not in more):
        raise UnsupportedModelError(f"config.json: position_embeddings_type: unknown {kind!r:.40}")
    kernel = integer(config, "conv_depthwise_kernel_size", high=1 << 16, default=31)
    if not kernel % 2:
        raise CheckpointError(f"config.json: conv_depthwise_kernel_size ({kernel}) must be odd")
    return ConformerLayer(
        hidden=hidden, heads=heads, inner=integer(config, "intermediate_size", high=1 << 24),
        act=act(config, "hidden_act", function), bias=True, kernel=kernel, conv_bias=False, eps=eps, places=PLACES[kind],
        base=real(config, "rotary_embedding_base", 1, 1e12, default=1e4), **more,
    )  # fmt: skip


def _transcriber(
    config: Config,
    root: str,
    entrance: Any,
    layer: ConformerLayer,
    frames: int,
    last: str,
    adapter: PoolingAdapter | None = None,
) -> ModelSpec:
    labels = integer(config, "vocab_size", high=1 << 24)
    encoder = ConformerTranscriberSpec(
        entrance=entrance, layer=layer, layers=integer(config, "num_hidden_layers", high=MOST_LAYERS),
        last=f"{root}{last}" if last else "", last_eps=real(config, "layer_norm_eps", default=1e-5), frames=frames,
        head=CTCHead(labels=labels, blank=blank_token({"pad_token_id": 0, **config}, "pad_token_id", labels), name="lm_head"),
        root=root, layer_root=f"{root}encoder.layers.", adapter=adapter,
    )  # fmt: skip
    counters = tuple(f"{root}encoder.layers.{i}.conv.norm.num_batches_tracked" for i in range(encoder.layers))
    skip = (f"{root}masked_spec_embed", f"{root}encoder.pos_conv_embed.", f"{root}encoder.embed_positions.", *counters)
    return transcriber(encoder, frames, Names(skip=skip, inside=INSIDE))


def _size(settings: Config, key: str, default: int) -> int:
    return integer(settings, key, high=1 << 24, default=default)


def _pair(settings: Config, key: str, default: tuple[float, float]) -> tuple[float, float]:
    found = settings.get(key, default)
    if not isinstance(found, list | tuple) or len(found) != 2 or not all(type(n) in (int, float) for n in found):
        raise CheckpointError(f"config.json: encoder_config: {key}: must be two numbers, not {found!r:.40}")
    return float(found[0]), float(found[1])
