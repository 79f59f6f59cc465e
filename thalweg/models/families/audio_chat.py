"""Audio chat models: an audio encoder (`towers.audio_encoders`), some with a vision encoder too, and a language model."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from thalweg.checkpoint.config import Config, flag, integer
from thalweg.checkpoint.talker import has_talker, talker_config
from thalweg.models.families import multimodal, qwen2
from thalweg.models.families import qwen3 as qwen3_text
from thalweg.models.families.towers import audio_encoders, qwen_vl
from thalweg.models.families.towers.common import outer_config
from thalweg.models.spec import Attention, AudioSpec, ModelSpec, Names

ENCODER = ("audio_tower.", "multi_modal_projector.")
SPEECH = ("talker.", "token2wav.", "code2wav.")
"""Prefixes of the speech output's tensors."""
RENAMED = (
    ("thinker.model.", "model."), ("thinker.lm_head.", "lm_head."), ("thinker.", "model."),
    ("visual.", "model.visual."), ("audio_tower.", "model.audio_tower."), *multimodal.PREFIXES,
)  # fmt: skip
MERGERS = (
    ("visual.merger_list.", "visual.deepstack_merger_list."), (".ln_q.", ".norm."),
    (".mlp.0.", ".linear_fc1."), (".mlp.2.", ".linear_fc2."),
)  # fmt: skip
"""Names of Qwen3-VL's encoder, as Omni has them."""
UNREAD = ("model.audio_tower.audio_bos_eos_token.", "model.audio_tower.positional_embedding.")


def qwen2_audio(config: Config) -> ModelSpec:
    return with_audio(multimodal.of_kind(config, "qwen2"), config, audio_encoders.qwen2_audio)


def voxtral(config: Config) -> ModelSpec:
    """Without its layers for speech."""
    return with_audio(multimodal.of_kind(config, "llama"), config, audio_encoders.voxtral)


def audio_flamingo3(config: Config) -> ModelSpec:
    return with_audio(multimodal.of_kind(config, "qwen2"), config, audio_encoders.audio_flamingo3)


def glm_asr(config: Config) -> ModelSpec:
    """Its embedding is also the output matrix, unless the file says otherwise."""
    section = {"rms_norm_eps": 1e-5, **config, "tie_word_embeddings": flag(outer_config(config), "tie_word_embeddings", True)}
    return with_audio(multimodal.of_kind(section, "llama"), config, audio_encoders.glm_asr)


def qwen2_5_omni(config: Config) -> ModelSpec:
    """The part that answers in text."""
    spec = multimodal.with_axes(qwen2.qwen2(multimodal.one_axis(config)), config, mixed=False)
    return _omni(spec, config, audio_encoders.qwen2_5_omni, _split_qkv)


def qwen3_omni_moe(config: Config) -> ModelSpec:
    """The part that answers in text."""
    section = {**config, "norm_topk_prob": True}
    spec = multimodal.with_axes(qwen3_text.qwen3_moe(multimodal.one_axis(section)), config, mixed=True)
    spec = replace(spec, states_before=_read_talker_layer(config, len(spec.layers)))
    return _omni(spec, config, audio_encoders.qwen3, qwen_vl.qwen3_vl, MERGERS)


def _read_talker_layer(config: Config, layers: int) -> int:
    """The layer whose input the talker reads at placeholders of media. 0: there is no talker, or it reads something else."""
    if not has_talker(config):
        return 0
    layer = integer(talker_config(config), "accept_hidden_layer", low=0, high=1 << 16, default=18)
    eye = outer_config(config).get("vision_config")
    deep = len((eye.get("deepstack_visual_indexes") or ()) if isinstance(eye, dict) else ())
    return layer if deep < layer < layers else 0


def _split_qkv(config: Config) -> multimodal.Tower:
    """Qwen2.5-VL's encoder with separate q, k and v tensors."""
    vision, unread = qwen_vl.qwen2_5_vl(config)
    layers = []
    for layer in vision.layers:
        assert isinstance(layer.mixer, Attention)
        layers.append(replace(layer, mixer=replace(layer.mixer, fused="", parts=("q", "k", "v"))))
    return replace(vision, layers=tuple(layers)), unread


def _is_text_only(config: Config) -> bool:
    """Is only the text part requested, or present?"""
    return bool(config.get("language_model_only")) or not isinstance(outer_config(config).get("audio_config"), dict)


def with_audio(spec: ModelSpec, config: Config, encoder: Callable[[Config], AudioSpec]) -> ModelSpec:
    """The text part with this encoder, unless only the text part is requested, or present."""
    if _is_text_only(config):
        skip = tuple(root + part for root in ("", "model.") for part in ENCODER)
        return replace(spec, names=Names(replace=multimodal.PREFIXES, skip=skip))
    return replace(spec, names=Names(replace=multimodal.PREFIXES, skip=UNREAD), audio=encoder(config))


def _omni(
    spec: ModelSpec, config: Config, encoder: Callable[[Config], AudioSpec], tower: Callable[[Config], multimodal.Tower],
    inside: tuple[tuple[str, str], ...] = (),
) -> ModelSpec:  # fmt: skip
    """inside: names that its encoder of images has for parts of Qwen-VL's."""
    if _is_text_only(config):
        skip = ("model.audio_tower.", "model.visual.", "thinker.audio_tower.", "thinker.visual.", *SPEECH)
        return replace(spec, names=Names(replace=RENAMED, skip=skip))
    vision, unread = tower(config)
    names = Names(replace=RENAMED, inside=inside, skip=(*SPEECH, *UNREAD, *unread))
    return replace(spec, names=names, audio=encoder(config), vision=vision)
