"""Families that speak: a line each, and a file here."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from thalweg.checkpoint.config import Config, architecture
from thalweg.media.speakers.base import Speaker
from thalweg.plugins import import_attribute

_HERE = "thalweg.media.speakers."
SPEAKERS: Mapping[str, str] = {
    "CsmForConditionalGeneration": f"{_HERE}csm:CsmSpeaker",
    "Qwen3OmniMoeTalkerForConditionalGeneration": f"{_HERE}qwen3_omni:OmniSpeaker",
    "VitsModel": f"{_HERE}vits:VitsSpeaker",
}
"""Architecture -> a `Speaker`."""


def load_speaker(config: Config, path: Path) -> Speaker | None:
    """The `Speaker` of the model in this directory. None: it does not speak. CheckpointError or UnsupportedModelError."""
    name = SPEAKERS.get(architecture(config))
    return None if name is None else import_attribute(name).load(config, path)
