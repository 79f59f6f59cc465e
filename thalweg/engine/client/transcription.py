"""Prompts of speech models: a clip, and the first tokens of a transcript."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from typing import Any

import numpy as np

from thalweg.config import SpeechConfig
from thalweg.engine.client.embeds import MOST_BYTES
from thalweg.engine.messages import Input
from thalweg.errors import RequestError
from thalweg.media.audio_decoder import samples_of
from thalweg.media.mel import HOP, RATE, LogMel
from thalweg.media.source_features import extract
from thalweg.params import SamplingParams

NAME = "multi_modal_data"
NEVER = float("-inf")
MOST_A_STEP = 4
"""Most recordings encoded in one step: each costs as much as a long prompt."""
ALIGNED_A_STEP = 2
"""The same where weights of cross attention are returned, which are megabytes."""
TIMESTAMPS, ALIGNMENT, STATES = "timestamps", "alignment", "states"
"""Names in extra_args. The rules for timestamps: the first timestamp, the end, and the latest first timestamp. The position of
the first prompt token whose weights of cross attention `RequestOutput.alignment` returns. The same for `states`."""


def read(prompt: Any, config: SpeechConfig | None) -> tuple[Any, np.ndarray | None]:
    """(the prompt of the decoder, the spectrum f32[bins, frames]). None as spectrum: not a speech model. RequestError."""
    if not isinstance(prompt, Mapping) or not (NAME in prompt or "encoder_prompt" in prompt):
        if config is not None:
            raise RequestError(
                f'{NAME}: this model transcribes audio: send {{"audio": samples or (samples, rate)}} with every prompt', NAME
            )
        return prompt, None
    if config is None:
        raise RequestError(f"{NAME}: this is a text-only model; omit it", NAME)
    if "encoder_prompt" in prompt:
        prompt = _merge_prompts(prompt)
    given = prompt[NAME]
    if not isinstance(given, Mapping) or set(given) != {"audio"}:
        raise RequestError(f'{NAME}: must be {{"audio": samples or (samples, rate)}} for this model', NAME)
    audio = given["audio"]
    if isinstance(audio, list) and len(audio) == 1 and not isinstance(audio[0], int | float):
        audio = audio[0]
    return {k: v for k, v in prompt.items() if k != NAME}, _audio_features(audio, config)


def _merge_prompts(prompt: Mapping[str, Any]) -> dict[str, Any]:
    """One prompt of the two that vLLM accepts for models with an encoder."""
    unknown = sorted(str(k) for k in prompt.keys() - {"encoder_prompt", "decoder_prompt", "cache_salt"})
    if unknown:
        raise RequestError(f"prompt: {unknown[0]} does not go with encoder_prompt", "prompt")
    encoder, decoder = prompt["encoder_prompt"], prompt.get("decoder_prompt")
    if not isinstance(encoder, Mapping) or NAME not in encoder:
        raise RequestError(f"encoder_prompt: must have {NAME}: this model's encoder reads audio, not text", "encoder_prompt")
    if encoder.get("prompt") or encoder.get("prompt_token_ids"):
        raise RequestError("encoder_prompt: this model's encoder reads no text: leave it empty", "encoder_prompt")
    if isinstance(decoder, str):
        decoder = {"prompt": decoder}
    elif isinstance(decoder, list):
        decoder = {"prompt_token_ids": decoder}
    if not isinstance(decoder, Mapping):
        raise RequestError("decoder_prompt: must be text or token ids", "decoder_prompt")
    return {**{k: v for k, v in prompt.items() if k == "cache_salt"}, **decoder, NAME: encoder[NAME]}


def _audio_features(audio: Any, config: SpeechConfig) -> np.ndarray:
    if isinstance(audio, LogMel):
        return audio.values
    wave = samples_of(audio, NAME)
    most = config.frames * HOP
    if wave.size > most:
        raise RequestError(
            f"{NAME}: the clip lasts {wave.size / RATE:.1f} seconds, and this model accepts {most / RATE:g} at once: send it "
            "in parts (/v1/audio/transcriptions does)",
            NAME,
        )
    return extract(config.form, wave, config.bins, config.frames)


def make_input(mel: np.ndarray, aligned: bool = False) -> Input:
    """The source of cross attention. Prompts of transcripts are equal, so its digest salts every block. aligned: are weights
    of cross attention returned?"""
    most = ALIGNED_A_STEP if aligned else MOST_A_STEP
    digest = hashlib.blake2b(repr(("sound", mel.shape)).encode(), digest_size=24)
    digest.update(mel.tobytes())
    return Input(kind="audio", digest=digest.digest(), positions=np.zeros(0, np.int32), data=(mel,), most_a_step=most)


def check(params: SamplingParams, mel: np.ndarray | None, heads: int, tokens: int) -> None:
    """heads: of the model, that align tokens with audio. tokens: of the prompt. RequestError."""
    given = params.extra_args or {}
    if mel is None:
        if name := next((name for name in (TIMESTAMPS, ALIGNMENT) if name in given), None):
            raise RequestError(f"extra_args: {name}: this model does not transcribe audio; omit it", "extra_args")
        return
    if ALIGNMENT in given:
        _check_alignment(params, given[ALIGNMENT], heads, tokens)
    if mel.nbytes * params.n > MOST_BYTES:
        raise RequestError(f"n: {params.n} choices of this clip exceed {MOST_BYTES} bytes; request fewer at once", "n")


def check_states(params: SamplingParams, returned: bool, tokens: int) -> bool:
    """Are hidden states of the prompt requested? returned: does the model return any? tokens: of the prompt. RequestError."""
    first = (params.extra_args or {}).get(STATES)
    if first is None:
        return False
    why = None
    if not returned:
        why = "this model returns no hidden states; omit it"
    elif params.n > 1 or params.prompt_logprobs is not None:
        why = "not with n above 1 or prompt_logprobs; send two requests"
    elif first >= tokens:
        why = f"{first} is no position of a prompt of {tokens} tokens"
    if why is not None:
        raise RequestError(f"extra_args: {STATES}: {why}", "extra_args")
    return True


def _check_alignment(params: SamplingParams, first: int, heads: int, tokens: int) -> None:
    why = None
    if not heads:
        why = "generation_config.json of this model names no alignment_heads; omit it"
    elif params.n > 1 or params.prompt_logprobs is not None:
        why = "not with n above 1 or prompt_logprobs; send two requests"
    elif first >= tokens:
        why = f"{first} is no position of a prompt of {tokens} tokens"
    if why is not None:
        raise RequestError(f"extra_args: {ALIGNMENT}: {why}", "extra_args")


def sampling(config: SpeechConfig, ids: list[int], fields: dict[str, Any]) -> dict[str, Any]:
    """Fields of TokenSampling, without the tokens that the model was trained to suppress."""
    bias = dict(fields["logit_bias"]) | dict.fromkeys(config.suppress, NEVER)
    first = tuple((ids[-1], i) for i in config.begin_suppress)
    return {**fields, "logit_bias": tuple(sorted(bias.items())), "bad_words": (*fields["bad_words"], *first)}
