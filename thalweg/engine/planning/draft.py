"""The layers of an engine's drafter: read and checked before anything is loaded, and counted in the memory plan."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from thalweg.checkpoint.hub import resolve_model
from thalweg.config import EngineArgs
from thalweg.drafters import MODEL, load_drafter
from thalweg.errors import CheckpointError, ConfigError
from thalweg.models.drafts.declared import FIELD, DraftModel, DraftTarget
from thalweg.models.spec import ModelSpec
from thalweg.options.speculation import read_speculation_config
from thalweg.plugins import import_attribute


def read_draft(args: EngineArgs, target: Mapping[str, Any], target_spec: ModelSpec, path: Path) -> DraftModel | None:
    """The layers of the user's drafter, checked against the target. None: it has none. Raises CheckpointError or ConfigError.

    target, target_spec, path: the target's configuration, declaration and files."""
    config = read_speculation_config(args)
    drafter = None if config is None else load_drafter(config.method)
    if config is None or drafter is None or not drafter.declares:
        return None
    if args.tensor_parallel_size > 1:
        raise ConfigError(f"speculative_config: {config.method} runs on one device so far; omit tensor_parallel_size")
    declare, known = import_attribute(drafter.declares), DraftTarget(path, target, target_spec, args.quantization)
    if MODEL not in drafter.options:
        made: DraftModel = declare(path, known)
        return made
    try:
        made = declare(resolve_model(config.options[MODEL], download_dir=args.download_dir, token=args.hf_token), known)
    except CheckpointError as e:
        raise CheckpointError(f"{FIELD}: {e}") from e
    return made
