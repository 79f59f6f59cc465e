"""How each family turns a video into frames and a stretch of its prompt. A file for each kind of arithmetic, and a line here
for each family."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from pathlib import Path
from typing import Any

from thalweg.checkpoint.config import Config, architecture, folder
from thalweg.checkpoint.json_files import read_object
from thalweg.media.processors import FILE as IMAGE_FILE
from thalweg.media.processors import Processor
from thalweg.media.processors import processor as image_processor
from thalweg.media.processors.tokens import load_tokens
from thalweg.media.videos.base import FILE, VideoFacts
from thalweg.media.videos.nemotron import NemotronVideo, nemotron_omni
from thalweg.media.videos.qwen import (
    Glm46Video,
    GlmVideo,
    QwenVideo,
    StampedVideo,
    cohere_compass,
    cosmos3_edge,
    glm4v,
    lfm3_vl,
    qwen2_5_vl,
    qwen2_vl,
    qwen3_5,
    qwen3_vl,
)
from thalweg.media.videos.stills import (
    Gemma4Video,
    InstructBlipVideo,
    InternVLVideo,
    LlavaVideo,
    SmolVLMVideo,
    TiledVideo,
    gemma4,
    instructblip_video,
    internvl,
    llava_onevision,
    perception_lm,
    smolvlm,
)

__all__ = ["VIDEOS", "AnyVideo", "VideoFacts", "load_video_processor"]

AnyVideo = (
    Gemma4Video | Glm46Video | GlmVideo | InstructBlipVideo | InternVLVideo | LlavaVideo | NemotronVideo | QwenVideo
    | SmolVLMVideo | StampedVideo | TiledVideo
)  # fmt: skip
VIDEOS: Mapping[str, Callable[[Config, Processor, Config], AnyVideo]] = {
    "CohereCompassForConditionalGeneration": cohere_compass,
    "Cosmos3EdgeForConditionalGeneration": cosmos3_edge,
    "Cosmos3ForConditionalGeneration": qwen3_vl,
    "Cosmos3OmniForConditionalGeneration": qwen3_vl,
    "Gemma4ForConditionalGeneration": gemma4,
    "Glm46VForConditionalGeneration": glm4v,
    "Glm4vForConditionalGeneration": glm4v,
    "Glm4vMoeForConditionalGeneration": glm4v,
    "InstructBlipVideoForConditionalGeneration": instructblip_video,
    "InternS1ForConditionalGeneration": internvl,
    "InternS2PreviewForConditionalGeneration": qwen3_5,
    "InternVLForConditionalGeneration": internvl,
    "Lfm3VlForConditionalGeneration": lfm3_vl,
    "LlavaOnevisionForConditionalGeneration": llava_onevision,
    "NemotronH_Nano_Omni_Reasoning_V3": nemotron_omni,
    "NemotronH_Omni_Reasoning_V3": nemotron_omni,
    "NemotronH_Super_Omni_Reasoning_V3": nemotron_omni,
    "PerceptionLMForConditionalGeneration": perception_lm,
    "Qwen2VLForConditionalGeneration": qwen2_vl,
    "Qwen2_5_VLForConditionalGeneration": qwen2_5_vl,
    "Qwen3VLForConditionalGeneration": qwen3_vl,
    "Qwen3VLMoeForConditionalGeneration": qwen3_vl,
    "Qwen3_5ForConditionalGeneration": qwen3_5,
    "Qwen3_5MoeForConditionalGeneration": qwen3_5,
    "Qwen4ExpForConditionalGeneration": qwen3_5,
    "SmolVLMForConditionalGeneration": smolvlm,
}
"""`architectures` entry of config.json -> the function that reads its video settings."""
SETTINGS = ("fps", "num_frames")
"""Keys of `mm_processor_kwargs` for videos only."""


def load_video_processor(config: Config, path: Path) -> AnyVideo | None:
    """Of the model in this directory. None: it sees no videos, or its tokenizer has no token for them. CheckpointError or
    UnsupportedModelError."""
    read = VIDEOS.get(architecture(config))
    images = None if read is None else image_processor(config, path, video_settings(config))
    if read is None or images is None:
        return None
    found = read(config, images, {**_read_settings(folder(path)), **config.get("mm_processor_kwargs", {})})
    return found if found.token == images.token or found.token in load_tokens(folder(path)) else None


def video_settings(config: Config) -> Collection[str]:
    """Keys of `mm_processor_kwargs` for videos, if the model sees any."""
    return SETTINGS if architecture(config) in VIDEOS else ()


def _read_settings(where: Path) -> dict[str, Any]:
    """Among those of the whole processor (transformers 5), in a separate file, or those of images."""
    whole = where / "processor_config.json"
    if whole.is_file() and isinstance(found := read_object(whole).get("video_processor"), dict):
        return found
    file = next((file for name in (FILE, IMAGE_FILE) if (file := where / name).is_file()), None)
    return {} if file is None else read_object(file)
