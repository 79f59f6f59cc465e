"""ColPali: a vector per token of a text, or of a page's image, of PaliGemma and a projection to a smaller size (Faysse et al.
2024, https://arxiv.org/abs/2407.01449)."""

from __future__ import annotations

from thalweg.checkpoint.config import Config
from thalweg.models.families.colqwen import project_tokens
from thalweg.models.families.multimodal import seeing
from thalweg.models.families.paligemma import read_text, tower
from thalweg.models.families.tails import bidirectional
from thalweg.models.spec import ModelSpec


def colpali(config: Config) -> ModelSpec:
    """All tokens of a prompt attend to each other, with an image or without: transformers' processor marks every token as
    part of a prefix."""
    spec = bidirectional(read_text(config, ("gemma",)))
    return project_tokens(seeing(spec, config, tower), config)
