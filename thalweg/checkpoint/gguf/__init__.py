"""GGUF files as checkpoints: parsed and distrusted here, and translated to the names, values and configuration that the files
of transformers have, so that models never learn of them. No tensor framework, no device.

Format: https://github.com/ggml-org/ggml/blob/master/docs/gguf.md, versions 2 and 3, little-endian.
"""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

from thalweg.checkpoint.gguf.files import is_gguf, open_files
from thalweg.checkpoint.gguf.model import METHOD, Model, translate
from thalweg.checkpoint.gguf.vocabulary import ends, sampling, vocabulary
from thalweg.text.vocabulary import Vocabulary

__all__ = ["METHOD", "Model", "Vocabulary", "generation_defaults", "is_gguf", "read_config", "read_vocabulary"]


def read_config(path: str | Path) -> dict[str, Any]:
    """What config.json of such a model would hold."""
    made = translate(path)
    config = copy.deepcopy(dict(made.config))
    config["eos_token_id"] = list(ends(made.files))
    return config


def generation_defaults(path: str | Path) -> dict[str, Any]:
    return sampling(open_files(path))


def read_vocabulary(path: str | Path) -> Vocabulary:
    return vocabulary(open_files(path))
