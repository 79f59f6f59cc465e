"""Formats of checkpoints that names of tensors show, and config.json does not. Imports no tensor framework."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from thalweg.checkpoint.config import architecture
from thalweg.checkpoint.weights import open_weights
from thalweg.errors import CheckpointError

KEY = "name_format"
"""Key of a configuration for the format that was found."""
QK_POST_NORM = "qk-post-norm"
_JINA = {".mlp.up_gated_layer.": QK_POST_NORM, ".mlp.gated_layers.": ""}
FORMATS = dict.fromkeys(("JinaBertForMaskedLM", "JinaBertForSequenceClassification", "JinaBertModel"), _JINA)
"""Architecture -> part of names of tensors -> format."""


def mark_format(config: Mapping[str, Any], path: str | Path) -> Mapping[str, Any]:
    """The configuration, with KEY where the files at `path` show the format. Files that cannot be read show none, which the
    loader reports."""
    parts = FORMATS.get(architecture(config), {})
    if not parts:
        return config
    try:
        names = open_weights(path).names
    except CheckpointError:
        return config
    found = next((form for part, form in parts.items() if any(part in name for name in names)), None)
    return config if found is None else {**config, KEY: found}
