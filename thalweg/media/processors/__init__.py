"""How each family turns an image into arrays and a stretch of its prompt. One file each, and a line here."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from thalweg.checkpoint.config import Config, architecture, folder
from thalweg.checkpoint.json_files import read_object
from thalweg.media.processors.base import FILE, View, outer, vision
from thalweg.media.processors.clip import Clip, clip
from thalweg.media.processors.gemma3 import Gemma3, gemma3
from thalweg.media.processors.pixtral import Pixtral, pixtral
from thalweg.media.processors.qwen_vl import QwenVL, qwen2_5_vl, qwen2_vl, qwen3_vl

__all__ = ["FILE", "PROCESSORS", "Clip", "Gemma3", "Pixtral", "Processor", "QwenVL", "View", "processor"]

Processor = Clip | Gemma3 | Pixtral | QwenVL


def _llava(config: Config, said: Config) -> Processor:
    return pixtral(config, said) if vision(config).get("model_type") == "pixtral" else clip(config, said)


PROCESSORS: Mapping[str, Callable[[Config, Config], Processor]] = {
    "Gemma3ForConditionalGeneration": gemma3,
    "LlavaForConditionalGeneration": _llava,
    "Mistral3ForConditionalGeneration": pixtral,
    "Qwen2_5OmniForConditionalGeneration": qwen2_5_vl,
    "Qwen2_5OmniModel": qwen2_5_vl,
    "Qwen2_5_VLForConditionalGeneration": qwen2_5_vl,
    "Qwen2VLForConditionalGeneration": qwen2_vl,
    "Qwen3OmniMoeForConditionalGeneration": qwen3_vl,
    "Qwen3VLForConditionalGeneration": qwen3_vl,
    "Qwen3VLMoeForConditionalGeneration": qwen3_vl,
    "Qwen3_5ForConditionalGeneration": qwen3_vl,
    "Qwen3_5MoeForConditionalGeneration": qwen3_vl,
}
"""`architectures` entry of config.json -> what reads the settings of its images."""


def processor(config: Config, path: Path) -> Processor | None:
    """Of the model in this directory. None: it does not see, or its files do not say how. CheckpointError or
    UnsupportedModelError."""
    read = PROCESSORS.get(architecture(config))
    if read is None or config.get("language_model_only") or not isinstance(outer(config).get("vision_config"), dict):
        return None
    said = _said(folder(path))
    return None if said is None else read(config, said)


def _said(where: Path) -> dict[str, Any] | None:
    """The settings, in a file of their own, or among those of the whole processor (transformers 5)."""
    if not where.is_dir():
        return None
    if (where / FILE).is_file():
        return read_object(where / FILE)
    whole = where / "processor_config.json"
    found = read_object(whole).get("image_processor") if whole.is_file() else None
    return found if isinstance(found, dict) else None
