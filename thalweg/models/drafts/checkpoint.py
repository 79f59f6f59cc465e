"""Configurations of checkpoints that hold only a drafter's layers: their own form, and that of the package `speculators`.

`speculators` names the algorithm and the target in `speculators_config`, and nests the layers' settings in
`transformer_layer_config`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from thalweg.checkpoint import quantised
from thalweg.checkpoint.config import text
from thalweg.checkpoint.json_files import read_object
from thalweg.checkpoint.speculators import KIND, NESTED
from thalweg.checkpoint.weights import TensorHeaders, open_weights
from thalweg.errors import CheckpointError
from thalweg.models.drafts.declared import DraftTarget
from thalweg.quantization import registry as formats

Prefixes = tuple[tuple[str, str], ...]
EMBEDDING = "embed_tokens.weight"
SAMPLED = 256


@dataclass(frozen=True, slots=True)
class DraftFiles:
    config: dict[str, Any]
    """Flat: settings of the layers, and of the drafter."""
    names: frozenset[str]
    """Of the stored tensors, as the layers use them."""
    headers: Mapping[str, tuple[str, tuple[int, ...]]]
    """Name -> (dtype, shape)."""


class _KnownHeaders(TensorHeaders):
    """Headers by the names that the drafter's layers use: without the prefix "model.", and with some prefixes replaced."""

    def __init__(self, path: Path, replace: Prefixes = ()) -> None:
        super().__init__(path)
        self._replace, self._names = replace, {_rename(name, replace): name for name in self._entries}
        self._entries = {known: self._entries[name] for known, name in self._names.items()}

    def __reduce__(self) -> tuple[type[TensorHeaders], tuple[Any, ...]]:
        return _KnownHeaders, (self._files.path, self._replace)

    def read(self, name: str) -> np.ndarray:
        return super().read(self._names[name])


def _rename(name: str, replace: Prefixes) -> str:
    name = name.removeprefix("model.")
    return next((new + name.removeprefix(old) for old, new in replace if name.startswith(old)), name)


def read_draft_files(path: Path, nested: str = "", replace: Prefixes = ()) -> DraftFiles:
    """nested: key of an object with settings of the method, which are added where the top level lacks them. replace: as in
    `spec.Names`. Raises CheckpointError for faulty files, UnsupportedModelError for an unknown format of quantised ones."""
    file = path / "config.json"
    config = read_object(file)
    inner = config.pop(NESTED, None) if KIND in config else None
    if KIND in config and not isinstance(inner, dict):
        raise CheckpointError(f"{file}: {NESTED}: must be an object, not {inner!r:.80}")
    more = config.get(nested) or {}
    if not isinstance(more, dict):
        raise CheckpointError(f"{file}: {nested}: must be an object, not {more!r:.80}")
    flat = {**more, **(inner or {}), **{k: v for k, v in config.items() if v is not None}}
    headers = _read_headers(path, replace)
    beside = {name: read_object(path / name) for name in quantised.FILES if (path / name).is_file()}
    found = quantised.find_quantization_config(flat, file, beside)
    if found is not None:
        formats.check(found)
        stored = {"stored": headers} if headers else {}
        flat["quantization_config"] = {**found.content, "quant_method": found.method, **stored}
    return DraftFiles(flat, frozenset(headers), headers)


def check_hidden(config: Mapping[str, Any], target: DraftTarget) -> int:
    """The target's hidden size, which the drafter's configuration may name. CheckpointError: it names another."""
    key = "target_hidden_size" if config.get("target_hidden_size") else "hidden_size"
    if config.get(key) != target.spec.hidden:
        raise CheckpointError(
            f"config.json: {key} is {config.get(key)!r:.80}, and the target's hidden size is {target.spec.hidden}; choose the "
            "drafter that was trained for this model"
        )
    return target.spec.hidden


def own_embedding(files: DraftFiles, path: Path, target: DraftTarget) -> int:
    """Rows of the drafter's embedding. 0: it has none, or a copy of the target's. `SAMPLED` rows are compared: training changes
    more than a few."""
    if EMBEDDING not in files.headers:
        return 0
    entry = files.headers[EMBEDDING]
    name = f"{target.spec.root}{target.spec.embed}.weight"
    try:
        mine, other = open_weights(path), open_weights(target.path)
        if other.entry(name) == entry:
            held = next(n for n in mine.names if n.removeprefix("model.") == EMBEDDING)
            step = max(1, entry[1][0] // SAMPLED)
            rows = (slice(i, i + 1) for i in range(0, entry[1][0], step))
            if all(np.array_equal(mine.read(held, r), other.read(name, r)) for r in rows):
                return 0
    except CheckpointError:  # of the target, which the loader reports
        pass
    return entry[1][0]


def check_kind(config: Mapping[str, Any], kind: str) -> None:
    """CheckpointError: a checkpoint of `speculators` is of another kind."""
    name = text(config, KIND, kind)
    if name != kind:
        raise CheckpointError(f"config.json: {KIND}: it is a drafter of the method {name!r:.40}, not {kind}")


def _read_headers(path: Path, replace: Prefixes) -> Mapping[str, tuple[str, tuple[int, ...]]]:
    """{}: there are no tensors, as with load_format dummy. The loader reports missing ones."""
    try:
        return _KnownHeaders(path, replace)
    except CheckpointError:
        return {}
