"""A second model with the target's tokenizer."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from thalweg.checkpoint import gguf
from thalweg.checkpoint.config import read_config
from thalweg.errors import CheckpointError, ConfigError
from thalweg.hal.attention import AttnSpec
from thalweg.models import registry, sizes
from thalweg.models.drafts.declared import FIELD, DraftModel, DraftTarget
from thalweg.quantization import registry as formats
from thalweg.text.vocabulary import UNUSED


def declare_draft_model(path: Path, target: DraftTarget) -> DraftModel:
    """Raises CheckpointError for faulty files, ConfigError for layers other than attention or another tokenizer."""
    hf, spec = registry.declare(read_config(path, {}, formats.check), path)
    kinds = sizes.cache_specs(spec, "float32", "", 1)
    if spec.pooling is not None or not all(isinstance(s, AttnSpec) and not s.index for s in kinds):
        raise ConfigError(f"{FIELD}: {path} has layers other than attention with a cache of keys and values; choose another")
    _check_vocabulary(path, hf, target.path, target.hf)
    return DraftModel(path, hf, spec)


def _check_vocabulary(draft: Path, hf: Mapping[str, Any], path: Path, target: Mapping[str, Any]) -> None:
    """Both models give every token the same id. ConfigError names the first that differs."""
    mine, its = _vocabulary(draft), _vocabulary(path)
    remedy = "a draft model needs the target's tokenizer: choose one of the same family, or method ngram or suffix"
    if mine is None or its is None:
        if hf.get("vocab_size") != target.get("vocab_size"):
            sizes_of = f"{hf.get('vocab_size')} tokens and the target {target.get('vocab_size')}"
            raise ConfigError(f"{FIELD}: {draft} has {sizes_of}; {remedy}")
        return
    for token, number in its.items():
        if mine.get(token) != number:
            here = "none" if token not in mine else str(mine[token])
            raise ConfigError(f"{FIELD}: {draft} has id {here} for the token {token!r}, and the target {number}; {remedy}")


def _vocabulary(path: Path) -> dict[str, int] | None:
    """Ids of all tokens, by a GGUF file or tokenizer.json. None: there is no such file."""
    if gguf.is_gguf(path):
        vocabulary = gguf.read_vocabulary(path)
        return {t: i for i, (t, kind) in enumerate(zip(vocabulary.tokens, vocabulary.kinds, strict=True)) if kind != UNUSED}
    file = path / "tokenizer.json"
    if not file.is_file():
        return None
    try:
        held = json.loads(file.read_text(encoding="utf-8"))
        words = held["model"]["vocab"]
        found = {w[0]: i for i, w in enumerate(words)} if isinstance(words, list) else dict(words)
        return found | {t["content"]: t["id"] for t in held.get("added_tokens") or ()}
    except (ValueError, KeyError, TypeError, IndexError) as e:
        raise CheckpointError(f"{file}: is no tokenizer file: {e}") from e
