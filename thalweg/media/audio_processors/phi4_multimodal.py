"""Phi-4-multimodal: spectra of windows with pre-emphasis, eight of which become one vector."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from typing import Any

import msgspec
import numpy as np

from thalweg.checkpoint.config import Config, integer
from thalweg.engine.messages import Input
from thalweg.errors import CheckpointError, UnsupportedModelError
from thalweg.hal.parts.frames import Frames
from thalweg.hal.step import StepBatch
from thalweg.media.audio_processors.base import AudioProcessor
from thalweg.media.audio_processors.kaldi import EMPHASIS, FFT, SCALE, kaldi_filters
from thalweg.media.mel import HOP, RATE, WINDOW
from thalweg.media.part_batch import make_part_batch
from thalweg.media.processors.base import FILE

F32, I32 = np.float32, np.int32
EDGES = (0.0, 7690.0)
"""The lowest and highest frequencies of the filters."""
LONGEST = 1800.0
"""Seconds, as the model was trained."""
FIXED = {"feature_size": 80, "sampling_rate": RATE, "hop_length": HOP, "n_fft": FFT, "win_length": WINDOW,
         "preemphasis": EMPHASIS, "audio_compression_rate": 8, "audio_downsample_rate": 1, "audio_feat_stride": 1,
         "mel_min_frequency": EDGES[0], "mel_max_frequency": EDGES[1]}  # fmt: skip
"""Settings of spectra, of which no others are supported."""

AUTHORS = {
    "attention_dim": "hidden_size", "attention_heads": "num_attention_heads", "linear_units": "intermediate_size",
    "depthwise_seperable_out_channel": "depthwise_separable_out_channel",
}  # fmt: skip
"""Keys of the authors' format, and those of transformers."""
AUTHORS_FIXED = {"input_layer": "nemo_conv", "causal": True, "bias_in_glu": True, "ext_pw_kernel_size": 1, "batch_norm": False}


class Phi4MultimodalAudio(AudioProcessor, frozen=True, kw_only=True):
    """`chunk` vectors of a longer clip are encoded together."""

    image: int
    """The placeholder of images. A clip in a prompt with one has other vectors."""

    def frames(self, samples: int) -> int:
        return max(0, (samples - WINDOW) // HOP + 1)

    def count(self, frames: int) -> int:
        return self.states(frames)

    def mel(self, sound: np.ndarray) -> np.ndarray:
        """f32[samples] at RATE -> f32[bins, frames]: natural logarithms of whole windows."""
        windows: np.ndarray = np.lib.stride_tricks.sliding_window_view(sound.astype(F32), WINDOW)[::HOP]
        # The first sample of a window has no sample before it, and the second one takes its place.
        before = np.concatenate([windows[:, 1:2], windows[:, :-1]], 1)
        before[:, 0] = before[:, 1]
        windows = (windows - F32(EMPHASIS) * before) * F32(SCALE)
        power = np.abs(np.fft.rfft(windows * np.hamming(WINDOW), FFT)) ** 2 @ kaldi_filters(self.bins, *EDGES)
        return np.ascontiguousarray(np.log(np.maximum(power, 1.0)).T, F32)

    def arrange(self, item: Input, ids: Sequence[int]) -> Input:
        """In a prompt with images, the clip is encoded for them."""
        if self.image not in ids:
            return item
        digest = hashlib.blake2b(b"images", key=item.digest, digest_size=len(item.digest)).digest()
        return msgspec.structs.replace(item, size=(*item.size, 1), digest=digest)

    def batch(self, mel: np.ndarray, frames: int, images: int = 0) -> StepBatch:
        """images: 1 if the prompt has some. `Frames.keep` then numbers vectors behind those of the first projector."""
        total = mel.shape[1]
        order, count = np.arange(total, dtype=I32), self.count(frames)
        every = count if count <= self.chunk else -(-count // self.chunk) * self.chunk
        empty = np.zeros((total, 0), F32)
        frame_part = Frames(
            mel=mel[None], real=np.ones((1, total), F32), row=order, place=order, sines=empty, turn=empty,
            spin=np.zeros((count, 0), F32), keep=np.arange(count, dtype=I32) + I32(images * every),
        )  # fmt: skip
        return make_part_batch(frame_part, total)


def read_settings(config: Config) -> dict[str, Any]:
    """`audio_config`, and `audio_processor` of the authors' format by the names of transformers. CheckpointError or
    UnsupportedModelError."""
    found = config.get("audio_config")
    if not isinstance(found, dict):
        raise CheckpointError("config.json: audio_config: must be an object")
    inner = found.get("config")
    if not isinstance(inner, dict):
        return found
    for key, ours in AUTHORS_FIXED.items():
        if inner.get(key, ours) != ours:
            raise UnsupportedModelError(f"config.json: audio_processor: {key}: only {ours!r} is supported by this version")
    far, first = (inner.get(key) or {} for key in ("relative_attention_bias_args", "nemo_conv_settings"))
    if not isinstance(far, dict) or not isinstance(first, dict):
        raise CheckpointError("config.json: audio_processor: relative_attention_bias_args, nemo_conv_settings: must be objects")
    nested = {
        "bias_max_distance": far.get("t5_bias_max_distance"), "bias_symmetric": far.get("t5_bias_symmetric"),
        "nemo_conv_channels": first.get("conv_channels"),
    }  # fmt: skip
    named = {ours: inner.get(theirs) for theirs, ours in AUTHORS.items()}
    return {**inner, **{key: value for key, value in {**named, **nested}.items() if value is not None}}


def phi4_multimodal(config: Config, options: Config) -> Phi4MultimodalAudio:
    heard, seen = read_settings(config), config.get("vision_config")
    for key, ours in FIXED.items():
        if options.get(key, ours) != ours:
            raise UnsupportedModelError(
                f"{FILE}: {key}: {options[key]!r:.40} is not supported by this version; supported: {ours}"
            )
    return Phi4MultimodalAudio(
        token=integer(heard, "audio_token_id", low=0, default=200_011),
        bins=integer(heard, "input_size", high=1 << 12, default=80),
        hidden=integer(heard, "hidden_size", high=1 << 20, default=1024), chunk=500, halvings=3, group=1, most=LONGEST, least=1,
        ends="short", numbered="<|audio_{}|>",
        image=integer(seen if isinstance(seen, dict) else {}, "image_token_id", low=0, default=200_010),
    )  # fmt: skip
