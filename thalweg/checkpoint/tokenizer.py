"""Loads a model's tokenizer from a directory or a GGUF file."""

from __future__ import annotations

import re
from pathlib import Path

from thalweg.checkpoint import gguf, native
from thalweg.errors import CheckpointError
from thalweg.text import tokenizer
from thalweg.text.tekken import FILE, load_tekken

_PIECES = re.compile(r"tokenizer\.model(?:\.v(?P<version>\d{1,3})(?:m\d{1,3})?)?")
"""Names of Mistral's sentencepiece files, with the version of its control tokens."""


def load_tokenizer(path: Path, mode: str = "auto", rows: int | None = None) -> tokenizer.Tokenizer:
    """The tokenizer of a model. mode "mistral": from tekken.json or tokenizer.model.v*. "auto" reads these only without a
    tokenizer.json, and "hf" never. rows: rows of the model's embedding, if known. CheckpointError and UnsupportedModelError
    name the file, the fault and the remedy."""
    path = Path(path)
    if gguf.is_gguf(path):
        if mode == "mistral":
            raise CheckpointError(f"tokenizer_mode: mistral: {path} is a GGUF file, with its own vocabulary; remove the flag")
        from thalweg.text.gguf import from_vocabulary

        return from_vocabulary(gguf.read_vocabulary(path))
    named = native.is_native(path)
    folder = path.parent if named else path
    found = None if mode == "hf" else _mistral(folder, versioned=mode == "auto" and not named)
    if mode == "mistral" and found is None:
        raise CheckpointError(
            f"tokenizer_mode: mistral: {folder} has neither {FILE} nor tokenizer.model.v*: leave the mode at auto, or name a "
            "directory that has one with --tokenizer"
        )
    if found is None or (mode == "auto" and (folder / "tokenizer.json").is_file()):
        return tokenizer.load_tokenizer(folder, rows)
    templates = tokenizer.templates(folder)
    if found.name == FILE:
        return tokenizer.Tokenizer(*load_tekken(found), templates)
    from thalweg.text.gguf import from_vocabulary
    from thalweg.text.sentencepiece import read_sentencepiece

    result = from_vocabulary(read_sentencepiece(found))
    result.chat_templates.update(templates)
    return result


def _mistral(folder: Path, *, versioned: bool) -> Path | None:
    """Mistral's tokenizer file: tekken.json, or the newest sentencepiece file. versioned: the sentencepiece file must have a
    version in its name, as other libraries use the plain name."""
    if (folder / FILE).is_file():
        return folder / FILE
    files = {f: m for f in folder.glob("tokenizer.model*") if (m := _PIECES.fullmatch(f.name)) and f.is_file()}
    known = {f: int(m["version"] or 0) for f, m in files.items() if m["version"] or not versioned}
    return max(known, key=lambda f: known[f], default=None)
