"""A model's tokenizer, from a directory or a GGUF file."""

from __future__ import annotations

from pathlib import Path

from thalweg.checkpoint import gguf
from thalweg.text import tokenizer


def load_tokenizer(path: Path) -> tokenizer.Tokenizer:
    """CheckpointError or UnsupportedModelError names the file, what is wrong with it and the remedy."""
    if not gguf.is_gguf(path):
        return tokenizer.load_tokenizer(path)
    from thalweg.text.gguf import from_vocabulary

    return from_vocabulary(gguf.read_vocabulary(path))
