"""Audio processors by architecture, one line each."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import msgspec

from thalweg.checkpoint.config import Config, architecture, folder, integer, real, section
from thalweg.checkpoint.json_files import read_object
from thalweg.errors import CheckpointError, UnsupportedModelError
from thalweg.media.audio_processors.base import AudioProcessor
from thalweg.media.audio_processors.fun_asr_nano import fun_asr_nano
from thalweg.media.audio_processors.granite_speech import granite_speech
from thalweg.media.audio_processors.granite_speech5 import granite_speech5
from thalweg.media.audio_processors.kaldi import lasr, wav2vec2_bert
from thalweg.media.audio_processors.kyutai import kyutai
from thalweg.media.audio_processors.parakeet import nemotron_asr, parakeet
from thalweg.media.audio_processors.phi4_multimodal import phi4_multimodal
from thalweg.media.audio_processors.voxtral_realtime import voxtral_realtime
from thalweg.media.audio_processors.wav2vec import wav2vec
from thalweg.media.mel import HOP, RATE, WINDOW
from thalweg.media.processors.base import FILE, outer

__all__ = ["AUDIO_PROCESSORS", "AudioProcessor", "load_audio_processor", "read_settings"]

LONGEST = 3600.0
"""Longest clip in seconds, for models without a limit in their settings."""
BINS, SOURCES = 128, 1500


def _qwen2_audio(config: Config, options: Config) -> AudioProcessor:
    heard = _audio_config(config)
    chunk = 2 * integer(heard, "max_source_positions", high=1 << 16, default=SOURCES)
    return AudioProcessor(
        **_common_settings(config, heard, 151_646),
        chunk=chunk,
        halvings=1,
        group=2,
        most=chunk * HOP / RATE,
        least=3,
        ends="silence",
    )


def _audio_flamingo3(config: Config, options: Config) -> AudioProcessor:
    """Ten minutes, in chunks that the encoder reads as separate clips."""
    heard = _audio_config(config)
    chunk = 2 * integer(heard, "max_source_positions", high=1 << 16, default=SOURCES)
    return AudioProcessor(
        **_common_settings(config, heard, 151_669), chunk=chunk, halvings=1, group=2, most=20 * chunk * HOP / RATE, least=3,
        ends="silence", apart=True,
    )  # fmt: skip


def _music_flamingo(config: Config, options: Config) -> AudioProcessor:
    """The same for twenty minutes, with rotary time embeddings on the vectors."""
    around, result = outer(config), _audio_flamingo3(config, options)
    rope = {"partial_rotary_factor": 0.2, "rope_theta": 1200.0, **section(around, "rope_parameters")}
    step = real(around, "audio_frame_step", 1e-6, 1, default=HOP / RATE) * 2 * result.group
    edges = (integer(around, f"audio_{end}_token_id", low=0, default=id) for end, id in (("bos", 151_670), ("eos", 151_671)))
    return msgspec.structs.replace(
        result, most=2 * result.most, spun=int(result.hidden * real(rope, "partial_rotary_factor", 0, 0.5)),
        spin=(real(rope, "rope_theta", 1, 1e9), step), edges=tuple(edges),
    )  # fmt: skip


def _voxtral(config: Config, options: Config) -> AudioProcessor:
    heard = _audio_config(config)
    chunk = 2 * integer(heard, "max_source_positions", high=1 << 16, default=SOURCES)
    hidden, inner = _hidden_size(heard), integer(heard, "intermediate_size", high=1 << 24, default=5120)
    return AudioProcessor(
        **_common_settings(config, heard, 24), chunk=chunk, halvings=1, group=inner // hidden, most=LONGEST, least=1,
        ends="silence",
        whole=True,
    )  # fmt: skip


def _glm_asr(config: Config, options: Config) -> AudioProcessor:
    """In chunks as above, each padded with silence that the encoder reads too."""
    heard = _audio_config(config)
    chunk = integer(options, "chunk_length", high=600, default=30, where=FILE) * RATE // HOP
    hidden, heads = _hidden_size(heard), integer(heard, "num_attention_heads", high=1 << 12, default=20)
    rope = {"partial_rotary_factor": 0.5, **section(heard, "rope_parameters", "config.json: audio_config")}
    group = integer(heard, "intermediate_size", high=1 << 24, default=5120) // hidden
    turned = int(hidden // heads * real(rope, "partial_rotary_factor", 0, 1))
    return AudioProcessor(
        **_common_settings(config, heard, 59_260), chunk=chunk, halvings=1, group=group, ends="silence", apart=True, whole=True,
        given=False, most=655 * RATE // HOP // chunk * chunk * HOP / RATE, least=2 * group - 1, turned=turned,
        theta=real(rope, "rope_theta", 1, 1e9, default=1e4),
    )  # fmt: skip


def _qwen2_5_omni(config: Config, options: Config) -> AudioProcessor:
    heard = _audio_config(config)
    return AudioProcessor(
        **_common_settings(config, heard, 151_646), chunk=2 * integer(heard, "n_window", high=1 << 16, default=100), halvings=1,
        group=2, most=float(integer(options, "chunk_length", high=3600, default=300, where=FILE)), least=3, ends="short",
        sines=True,
    )  # fmt: skip


def _qwen3_omni(config: Config, options: Config) -> AudioProcessor:
    return AudioProcessor(**_qwen3(config, 151_646), least=2, ends="short")


def _qwen3_asr(config: Config, options: Config) -> AudioProcessor:
    """Half a second at least."""
    return AudioProcessor(**_qwen3(config, 151_676), least=50, lengthen=True, ends="zeros")


def _qwen3(config: Config, token: int) -> dict[str, Any]:
    heard = _audio_config(config)
    chunk = 2 * integer(heard, "n_window", high=1 << 16, default=50)
    window = max(1, integer(heard, "n_window_infer", high=1 << 20, default=800) // chunk)
    return {
        **_common_settings(config, heard, token), "chunk": chunk, "halvings": 3, "window": window, "group": 1, "most": LONGEST,
        "sines": True, "cut": True,
    }  # fmt: skip


AUDIO_PROCESSORS: Mapping[str, Callable[[Config, Config], AudioProcessor]] = {
    "AudioFlamingo3ForConditionalGeneration": _audio_flamingo3,
    "Data2VecAudioForCTC": wav2vec,
    "FunAsrNanoForConditionalGeneration": fun_asr_nano,
    "GlmAsrForConditionalGeneration": _glm_asr,
    "GraniteSpeech5ForCTC": granite_speech5,
    "GraniteSpeechForConditionalGeneration": granite_speech,
    "GraniteSpeechPlusForConditionalGeneration": granite_speech,
    "HubertForCTC": wav2vec,
    "LasrForCTC": lasr,
    "MusicFlamingoForConditionalGeneration": _music_flamingo,
    "Nemotron3_5AsrForRNNT": nemotron_asr,
    "NemotronAsrStreamingForRNNT": nemotron_asr,
    "ParakeetForCTC": parakeet,
    "ParakeetForRNNT": parakeet,
    "ParakeetForTDT": parakeet,
    "Phi4MMForCausalLM": phi4_multimodal,
    "Phi4MultimodalForCausalLM": phi4_multimodal,
    "Qwen2_5OmniForConditionalGeneration": _qwen2_5_omni,
    "Qwen2_5OmniModel": _qwen2_5_omni,
    "Qwen2_5OmniThinkerForConditionalGeneration": _qwen2_5_omni,
    "Qwen2AudioForConditionalGeneration": _qwen2_audio,
    "Qwen3ASRForConditionalGeneration": _qwen3_asr,
    "Qwen3ASRForTokenClassification": _qwen3_asr,
    "Qwen3ASRForcedAlignerForTokenClassification": _qwen3_asr,
    "Qwen3ASRRealtimeGeneration": _qwen3_asr,
    "Qwen3OmniMoeForConditionalGeneration": _qwen3_omni,
    "Qwen3OmniMoeThinkerForConditionalGeneration": _qwen3_omni,
    "SEWDForCTC": wav2vec,
    "SEWForCTC": wav2vec,
    "UniSpeechForCTC": wav2vec,
    "UniSpeechSatForCTC": wav2vec,
    "VoxtralForConditionalGeneration": _voxtral,
    "Wav2Vec2BertForCTC": wav2vec2_bert,
    "Wav2Vec2ConformerForCTC": wav2vec,
    "Wav2Vec2ForCTC": wav2vec,
    "WavLMForCTC": wav2vec,
}
"""`architectures` entry of config.json -> the function that builds its audio processor."""

TOKEN_FILE_PROCESSORS: Mapping[str, Callable[[Config, Config, Path], AudioProcessor]] = {
    "KyutaiSpeechToTextForConditionalGeneration": kyutai,
    "VoxtralRealtimeForConditionalGeneration": voxtral_realtime,
}
"""The same of models whose prompts follow from the tokenizer's file."""
OTHER_SPECTRA = frozenset(
    {granite_speech, granite_speech5, lasr, nemotron_asr, parakeet, phi4_multimodal, wav2vec, wav2vec2_bert}
)
"""Those that check the settings of spectra themselves."""


def load_audio_processor(config: Config, path: Path) -> AudioProcessor | None:
    """The audio processor of the model in this directory. None: no audio input. CheckpointError or UnsupportedModelError."""
    read = AUDIO_PROCESSORS.get(architecture(config))
    if config.get("language_model_only"):
        return None
    if (of_file := TOKEN_FILE_PROCESSORS.get(architecture(config))) is not None:
        return of_file(config, read_settings(folder(path)), folder(path))
    if read is None:
        return None
    if read not in (wav2vec, wav2vec2_bert) and not ({"audio_config", "encoder_config"} & outer(config).keys()):
        return None
    options = read_settings(folder(path))
    if read in OTHER_SPECTRA:
        return read(config, options)
    for key, ours in (("sampling_rate", RATE), ("hop_length", HOP), ("n_fft", WINDOW)):
        if options.get(key, ours) != ours:
            raise UnsupportedModelError(
                f"{FILE}: {key}: {options[key]!r:.40} is not supported by this version; supported: {ours}"
            )
    return read(config, options)


def read_settings(where: Path) -> dict[str, Any]:
    """The settings of spectra, in a separate file or among those of the whole processor (transformers 5)."""
    if (where / FILE).is_file():
        return read_object(where / FILE)
    whole = where / "processor_config.json"
    found = read_object(whole).get("feature_extractor") if whole.is_file() else None
    return found if isinstance(found, dict) else {}


def _audio_config(config: Config) -> Config:
    found = outer(config).get("audio_config")
    if not isinstance(found, dict):
        raise CheckpointError("config.json: audio_config: missing")
    return found


def _hidden_size(heard: Config) -> int:
    key = "d_model" if "d_model" in heard else "hidden_size"
    return integer(heard, key, high=1 << 20, default=1280)


def _common_settings(config: Config, heard: Config, token: int) -> dict[str, Any]:
    around = outer(config)
    key = "audio_token_id" if around.get("audio_token_id") is not None else "audio_token_index"
    return {
        "token": integer(around, key, low=0, default=token), "bins": integer(heard, "num_mel_bins", high=1 << 12, default=BINS),
        "hidden": _hidden_size(heard),
    }  # fmt: skip
