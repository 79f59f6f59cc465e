"""GGUF files as checkpoints: parsed and distrusted here, and translated to the names, values and configuration that the files
of transformers have, so that models never learn of them. No tensor framework, no device.

Format: https://github.com/ggml-org/ggml/blob/master/docs/gguf.md, versions 2 and 3, little-endian. What reads them is
imported when one is met.
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
    """The tensors of such a model."""
    from thalweg.checkpoint.gguf.model import GGUFCheckpoint

    return GGUFCheckpoint(Path(path))


def read_config(path: str | Path) -> dict[str, Any]:
    """What config.json of such a model would hold."""
    from thalweg.checkpoint.gguf.translate import translate
    from thalweg.checkpoint.gguf.vocabulary import ends

    made = translate(path)
    config = copy.deepcopy(dict(made.config))
    config["eos_token_id"] = list(ends(made.files))
    return config


def pooling(path: str | Path) -> dict[str, Any] | None:
    """How such a model makes vectors, in the words of `checkpoint.sentence`. None: the file does not say."""
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
