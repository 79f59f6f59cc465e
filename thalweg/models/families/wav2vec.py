"""wav2vec 2.0, HuBERT, WavLM, UniSpeech, data2vec for audio and SEW: an encoder of samples with a CTC head."""

from __future__ import annotations

from typing import Any

from thalweg.checkpoint.config import Config, flag, integer, real, text
from thalweg.errors import CheckpointError, UnsupportedModelError
from thalweg.media.audio_processors.wav2vec import LONGEST
from thalweg.media.mel import RATE
from thalweg.models.families.parakeet import blank_token
from thalweg.models.families.towers.common import act
from thalweg.models.families.transcribers import transcriber
from thalweg.models.spec import CTCHead, ModelSpec, Names, PlaceConvolution, SampleConvolutions, Wav2VecSpec

OLD_NAMES = (
    ("pos_conv_embed.conv.weight_g", "pos_conv_embed.conv.parametrizations.weight.original0"),
    ("pos_conv_embed.conv.weight_v", "pos_conv_embed.conv.parametrizations.weight.original1"),
)
MOST_CONVS = 100
SEW = {
    "conv_dim": (64, *(128,) * 4, *(256,) * 4, *(512,) * 4), "conv_kernel": (10, *(3, 1) * 4, *(2, 1) * 2),
    "conv_stride": (5, *(2, 1) * 6),
}  # fmt: skip
"""Convolutions that files may omit."""


def wav2vec2(config: Config) -> ModelSpec:
    return _model(config, "wav2vec2.", _weight_normed(config), adapted=True)


def hubert(config: Config) -> ModelSpec:
    places = _weight_normed(config)
    if flag(config, "conv_pos_batch_norm", False):
        places = PlaceConvolution(taps=places.taps, groups=places.groups, form="batch norm")
    return _model(config, "hubert.", places, normed=flag(config, "feat_proj_layer_norm", True))


def wavlm(config: Config) -> ModelSpec:
    buckets = integer(config, "num_buckets", high=1 << 16, default=320)
    if buckets % 4:
        raise UnsupportedModelError(f"config.json: num_buckets ({buckets}) must be a multiple of 4")
    distance = integer(config, "max_bucket_distance", low=buckets // 4 + 1, high=1 << 20, default=800)
    return _model(config, "wavlm.", _weight_normed(config), buckets=buckets, distance=distance)


def unispeech(config: Config) -> ModelSpec:
    return _model(config, "unispeech.", _weight_normed(config))


def unispeech_sat(config: Config) -> ModelSpec:
    return _model(config, "unispeech_sat.", _weight_normed(config))


def data2vec_audio(config: Config) -> ModelSpec:
    taps = integer(config, "conv_pos_kernel_size", high=1 << 12, default=19)
    layers = integer(config, "num_conv_pos_embeddings", high=MOST_CONVS, default=5)
    places = PlaceConvolution(taps=taps, groups=_groups(config), form="stack", layers=layers)
    section = {**config, "feat_extract_norm": "layer", "do_stable_layer_norm": False}
    return _model(section, "data2vec_audio.", places)


def sew(config: Config) -> ModelSpec:
    section = {**SEW, **config, "do_stable_layer_norm": False}
    squeeze = integer(config, "squeeze_factor", high=1 << 8, default=2)
    same = _convolutions(section)[-1][0] == integer(config, "hidden_size")
    projection = "" if same else "feature_projection"
    return _model(section, "sew.", _weight_normed(config), squeeze=squeeze, norm="layer_norm", projection=projection)


def _weight_normed(config: Config) -> PlaceConvolution:
    taps = integer(config, "num_conv_pos_embeddings", high=1 << 12, default=128)
    return PlaceConvolution(taps=taps, groups=_groups(config), form="weight norm")


def _groups(config: Config) -> int:
    groups, hidden = integer(config, "num_conv_pos_embedding_groups", high=1 << 12, default=16), integer(config, "hidden_size")
    if hidden % groups:
        raise CheckpointError(
            f"config.json: hidden_size ({hidden}) must be a multiple of num_conv_pos_embedding_groups ({groups})"
        )
    return groups


def _model(
    config: Config,
    root: str,
    places: PlaceConvolution,
    *,
    buckets: int = 0,
    distance: int = 0,
    squeeze: int = 1,
    adapted: bool = False,
    **entrance: Any,
) -> ModelSpec:
    """adapted: layers may have adapters. entrance: fields of `SampleConvolutions`."""
    before = flag(config, "do_stable_layer_norm", False)
    size = integer(config, "adapter_attn_dim", high=1 << 16) if adapted and before and config.get("adapter_attn_dim") else 0
    check_adapters({**config, "adapter_attn_dim": None} if size else config)
    samples = sample_convolutions(config, **entrance)
    hidden, heads = integer(config, "hidden_size"), integer(config, "num_attention_heads", high=1 << 16, default=12)
    if hidden % heads:
        raise CheckpointError(f"config.json: hidden_size ({hidden}) must be a multiple of num_attention_heads ({heads})")
    labels = integer(config, "vocab_size", high=1 << 24)
    head = CTCHead(labels=labels, blank=blank_token({"pad_token_id": 0, **config}, "pad_token_id", labels), name="lm_head")
    encoder = Wav2VecSpec(
        samples=samples, hidden=hidden,
        layers=integer(config, "num_hidden_layers", high=1000, default=12), heads=heads,
        inner=integer(config, "intermediate_size", high=1 << 24, default=3072), act=act(config, "hidden_act", "gelu"),
        places=places, before=before, adapter=size, eps=real(config, "layer_norm_eps", default=1e-5),
        buckets=buckets, distance=distance, frames=int(LONGEST * RATE) // samples.stride + 1, head=head,
        root=root, squeeze=squeeze,
    )  # fmt: skip
    counters = (f"{root}masked_spec_embed", f"{root}encoder.pos_conv_embed.batch_norm.num_batches_tracked")
    return transcriber(encoder, encoder.frames, Names(skip=counters, inside=OLD_NAMES))


def check_adapters(config: Config) -> None:
    """UnsupportedModelError for adapters of the encoder."""
    for key in ("adapter_attn_dim", "add_adapter"):
        if config.get(key):
            raise UnsupportedModelError(f"config.json: {key}: this version serves these models without adapters of the encoder")


def sample_convolutions(config: Config, **more: Any) -> SampleConvolutions:
    """more: fields that differ from those of wav2vec 2.0."""
    norm = text(config, "feat_extract_norm", "group")
    if norm not in ("group", "layer"):
        raise UnsupportedModelError(f"config.json: feat_extract_norm: unknown {norm!r:.40}; supported: group, layer")
    section: dict[str, Any] = {
        "convs": _convolutions(config), "bias": flag(config, "conv_bias", False),
        "act": act(config, "feat_extract_activation", "gelu"), "each_normed": norm == "layer", "normed": True,
        "hidden": integer(config, "hidden_size"), "eps": real(config, "layer_norm_eps", default=1e-5),
    }  # fmt: skip
    return SampleConvolutions(**(section | more))


def _convolutions(config: Config) -> tuple[tuple[int, int, int], ...]:
    usual = {"conv_dim": (512,) * 7, "conv_kernel": (10, 3, 3, 3, 3, 2, 2), "conv_stride": (5, 2, 2, 2, 2, 2, 2)}
    section: list[Any] = [config.get(key) or list(default) for key, default in usual.items()]
    found = [list(each) if isinstance(each, list | tuple) else [] for each in section]
    lengths = {len(each) for each in found}
    if (
        len(lengths) != 1
        or 0 in lengths
        or not all(type(n) is int and 0 < n < 1 << 16 for each in found for n in each)
        or max(lengths) > MOST_CONVS
    ):
        raise CheckpointError(f"config.json: {', '.join(usual)}: must be lists of equally many positive integers")
    return tuple(zip(*found, strict=True))
