"""Routes that the served model has nothing to give for: refused at once, with a sentence that says which models have."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from thalweg.server.errors import ApiError

if TYPE_CHECKING:
    from thalweg.server.core.serving import Serving

NEEDED = {
    "generate": "a model that generates text (...ForCausalLM, served without --runner pooling)",
    "embed": "a model that gives vectors: a text encoder such as BERT, or one that generates, served with --runner pooling",
    "classify": "a model with a head that classifies (...ForSequenceClassification)",
    "score": "a reranker (...ForSequenceClassification with one class), or a model that gives vectors",
    "transcription": "a speech recognition model, such as Whisper, Parakeet or Qwen3-ASR",
    "speech": "a text-to-speech model, such as MMS-TTS",
    "pool": "a model that gives vectors or classes",
}
"""Needed ability of a route -> the models that have it."""
ARRAYS = ("transcription", "speech")
"""Tasks of pooling models whose results are no vectors of texts."""


def able(serving: Serving, needs: str) -> bool:
    """Can the model do what a route needs?"""
    tasks, pooling = serving.engine.config.model.tasks, serving.engine.config.model.pooling
    return not needs or needs in tasks or (needs == "pool" and pooling is not None and pooling.task not in ARRAYS)


def refusal(path: str, needs: str, instead: Sequence[str]) -> ApiError:
    """instead: the paths where this model is asked."""
    return ApiError(f"model: {path} needs {NEEDED[needs]}; the model here is asked at {', '.join(instead)}", "model")
