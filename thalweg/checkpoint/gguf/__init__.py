"""Reads GGUF files as checkpoints. They are validated, and translated to transformers' names, values and configuration, so that
model code needs no GGUF support. No tensor framework, no device.

Format: https://github.com/ggml-org/ggml/blob/master/docs/gguf.md, versions 2 and 3, little-endian. The readers are imported on
first use.
"""

from __future__ import annotations

import copy
from pathlib import Path
from typing import TYPE_CHECKING, Any

from thalweg.checkpoint.gguf.names import is_gguf

if TYPE_CHECKING:
    from thalweg.checkpoint.gguf.model import GGUFCheckpoint
    from thalweg.text.vocabulary import Vocabulary

__all__ = ["generation_defaults", "is_gguf", "open_model", "pooling", "read_config", "read_vocabulary"]


def open_model(path: str | Path) -> GGUFCheckpoint:
    """The tensors of a GGUF model."""
    from thalweg.checkpoint.gguf.model import GGUFCheckpoint

    return GGUFCheckpoint(Path(path))


def read_config(path: str | Path) -> dict[str, Any]:
    """The equivalent of config.json for a GGUF model."""
    from thalweg.checkpoint.gguf.translate import translate
    from thalweg.checkpoint.gguf.vocabulary import ends

    result = translate(path)
    config = copy.deepcopy(dict(result.config))
    config["eos_token_id"] = list(ends(result.files))
    return config


def pooling(path: str | Path) -> dict[str, Any] | None:
    """The pooling of a GGUF model, in the form of `checkpoint.sentence`. None: the file does not have it."""
    from thalweg.checkpoint.gguf.files import open_files
    from thalweg.checkpoint.gguf.vectors import read_pooling

    return read_pooling(open_files(path))


def generation_defaults(path: str | Path) -> dict[str, Any]:
    from thalweg.checkpoint.gguf.files import open_files
    from thalweg.checkpoint.gguf.vocabulary import sampling

    return sampling(open_files(path))


def read_vocabulary(path: str | Path) -> Vocabulary:
    from thalweg.checkpoint.gguf.files import open_files
    from thalweg.checkpoint.gguf.vocabulary import vocabulary

    return vocabulary(open_files(path))
