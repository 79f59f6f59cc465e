"""The layers of an engine's drafter: read and checked before anything is loaded, and counted in the memory plan."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from thalweg.config import EngineArgs
from thalweg.drafters import CACHE_DTYPE, MODEL, QUANTIZATION, RANKS, REVISION, load_drafter
from thalweg.engine.planning.drafter_files import find_checkpoint
from thalweg.errors import CheckpointError, ConfigError
from thalweg.models import sizes
from thalweg.models.drafts.declared import FIELD, DraftModel, DraftTarget, describe_indivisible
from thalweg.models.refusals import check_ranks
from thalweg.models.spec import ModelSpec
from thalweg.models.weights import IndivisibleError
from thalweg.options.cache import KV_CACHE_DTYPES
from thalweg.options.speculation import read_speculation_config
from thalweg.plugins import import_attribute
from thalweg.quantization import registry as formats


def read_draft(args: EngineArgs, target: Mapping[str, Any], target_spec: ModelSpec, path: Path) -> DraftModel | None:
    """The layers of the user's drafter, checked against the target. None: it has none. Raises CheckpointError or ConfigError.

    target, target_spec, path: the target's configuration, declaration and files."""
    config = read_speculation_config(args)
    drafter = None if config is None else load_drafter(config.method)
    if config is None or drafter is None or not drafter.declares:
        return None
    ranks = args.tensor_parallel_size
    if ranks > 1 and not drafter.divides:
        raise ConfigError(f"speculative_config: {config.method} runs on one device so far; omit tensor_parallel_size")
    declare, known = import_attribute(drafter.declares), DraftTarget(path, target, target_spec, args.quantization)
    if MODEL not in drafter.options:
        module: DraftModel = declare(path, known)
        return replace(_set_precision(module, config.options), ranks=ranks)
    try:
        result: DraftModel = declare(find_checkpoint(args, config.options[MODEL], config.options.get(REVISION)), known)
    except CheckpointError as e:
        raise CheckpointError(f"{FIELD}: {e}") from e
    return _divide(_set_precision(result, config.options), config.options.get(RANKS), ranks)


def _set_precision(draft: DraftModel, options: Mapping[str, Any]) -> DraftModel:
    """The draft with the user's format of weights and dtype of caches. ConfigError: its checkpoint is of another format."""
    draft = replace(draft, kv_dtype=KV_CACHE_DTYPES[options.get(CACHE_DTYPE, "auto")])
    method = options.get(QUANTIZATION)
    if method is None:
        return draft
    try:
        formats.scheme(draft.hf, method)
    except ConfigError as e:
        raise ConfigError(*(f"speculative_config: {problem}" for problem in e.problems)) from None
    return replace(draft, quantization=method)


def _divide(draft: DraftModel, requested: int | None, ranks: int) -> DraftModel:
    """The draft for these ranks. requested: the user's number, None for the target's. ConfigError where they cannot divide "
    "it."""
    if requested not in (None, 1, ranks):
        raise ConfigError(
            f"speculative_config: {RANKS}: must be 1 (every rank has the whole draft) or tensor_parallel_size, {ranks}, "
            f"not {requested}"
        )
    result = replace(draft, ranks=requested or ranks)
    try:
        check_ranks(result.spec, {"tensor": result.ranks})
        sizes.cache_specs(result.spec, "float32", "", 1, result.ranks)
        for weight in sizes.parameters(result.spec):
            weight.shape(result.ranks)
    except (ConfigError, IndivisibleError) as e:
        raise describe_indivisible(result, e) from None
    return result
