"""Whether a model's embedding is its output matrix: by config.json, unless the files show another one. As in transformers.

A fine-tune may train an output matrix and keep `tie_word_embeddings`. Then both matrices are in the files, and they differ.
Other files hold only the output matrix of a tied pair.
"""

from __future__ import annotations

import functools
import logging
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from thalweg.checkpoint.weights import Weights, open_weights
from thalweg.errors import CheckpointError
from thalweg.models.spec import ModelSpec

logger = logging.getLogger(__name__)
KEY = "output_matrix"
"""Key of a configuration for the contents of its files: OWN, or the name of the only tensor of a tied pair."""
OWN = "own"
_FLOATS = ("float64", "float32", "float16", "bfloat16")
_CHUNK = 1 << 22
"""Values compared at once."""


def adapt(spec: ModelSpec, config: Mapping[str, Any]) -> ModelSpec:
    """The spec as `find_output_matrix` has marked the configuration."""
    found = config.get(KEY)
    if found is None or not spec.tied:
        return spec
    if found == OWN:
        return replace(spec, tied=False)
    table = f"{spec.root}{spec.embed}.weight"
    return replace(spec, names=replace(spec.names, replace=((found, table), *spec.names.replace)))


def find_output_matrix(spec: ModelSpec, path: str | Path) -> str | None:
    """The value of KEY for a model with this `spec`. None: the configuration is right, or the files cannot be read, which the
    loader reports."""
    if not spec.tied:
        return None
    try:
        files = open_weights(path)
    except CheckpointError:
        return None
    untied = replace(spec, tied=False)
    stored = {known: name for name in files.names if (known := untied.rename(name)) is not None}
    head, table = stored.get(f"{spec.head}.weight"), stored.get(f"{spec.root}{spec.embed}.weight")
    if head is None or files.entry(head)[0] not in _FLOATS:
        return None
    if table is None:
        return head
    if files.entry(table)[0] not in _FLOATS:
        return None
    states = [files.file(name).stat() for name in (head, table)]
    return OWN if _differ(str(path), head, table, tuple((s.st_mtime_ns, s.st_size) for s in states)) else None


@functools.lru_cache(maxsize=8)
def _differ(path: str, head: str, table: str, states: tuple[tuple[int, int], ...]) -> bool:
    """Whether two stored matrices hold different values, which is logged. states: of their files, so that changed ones are read
    again."""
    files = open_weights(path)
    (_, shape), (_, other) = files.entry(head), files.entry(table)
    rows = max(1, _CHUNK // max(1, *shape[1:]))
    parts = (slice(at, at + rows) for at in range(0, shape[0], rows))
    same = shape == other and all(np.array_equal(_values(files, head, p), _values(files, table, p)) for p in parts)
    for name in (head, table):
        files.forget(name)
    if not same:
        logger.warning(
            "config.json ties %s to %s, but the files hold both, with different values. The model gets both. Set "
            '"tie_word_embeddings": false in config.json to say so', head, table,
        )  # fmt: skip
    return not same


def _values(files: Weights, name: str, rows: slice) -> np.ndarray:
    values = files.read(name, rows)
    if files.entry(name)[0] == "bfloat16":
        return (values.astype(np.uint32) << 16).view(np.float32)
    return values
