"""A drafter's checkpoint found, and the arguments completed by its configuration. Loads no tensor framework."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import msgspec

from thalweg.checkpoint.hub import resolve_model
from thalweg.checkpoint.json_files import read_object
from thalweg.checkpoint.speculators import KIND, read_target, read_tokens
from thalweg.config import EngineArgs
from thalweg.drafters import DRAFT_MODEL, METHOD, MODEL, REVISION, TOKENS, drafter_names, load_drafter
from thalweg.errors import ConfigError
from thalweg.options.speculation import merge_speculation

logger = logging.getLogger(__name__)


def resolve_drafter(args: EngineArgs) -> EngineArgs:
    """The arguments with the method of a drafter's checkpoint, where they name that and no method. The number of
    drafts is the checkpoint's too, unless they say it. CheckpointError or ConfigError."""
    given = merge_speculation(args)
    if METHOD in given or MODEL not in given:
        return args
    path = find_checkpoint(args, str(given[MODEL]), given.get(REVISION))
    config = read_object(path / "config.json")
    given |= {METHOD: _name_method(config), MODEL: str(path)}
    tokens = read_tokens(config)
    if given.get(TOKENS) is None and tokens is not None:
        given[TOKENS] = tokens
    given.pop(REVISION, None)
    return msgspec.structs.replace(args, speculative_config=given, spec_method=None, spec_model=None, spec_tokens=None)


def split_speculator(args: EngineArgs, path: Path) -> EngineArgs:
    """The arguments with the target and the drafter of a checkpoint of `speculators` that was given as the model. Others are
    unchanged. ConfigError: the checkpoint names no target, or another drafter is given.

    path: of the model."""
    file = path / "config.json"
    config = read_object(file) if path.is_dir() and file.is_file() else {}
    if KIND not in config:
        return args
    target = read_target(config)
    if target is None or merge_speculation(args):
        raise ConfigError(
            f"model: {path} holds a drafter. Give the model that it was trained for, and "
            f'--speculative-config \'{{"model": "{path}"}}\''
        )
    logger.info("model: %s holds a drafter for %s, which is served with it", path, target)
    return msgspec.structs.replace(args, model=target, speculative_config={MODEL: str(path)}, revision=None)


def _name_method(config: Mapping[str, Any]) -> str:
    """The method that a drafter's config.json names."""
    if KIND in config:
        return str(config[KIND])
    return next((name for name in drafter_names() if load_drafter(name).recognises(config)), DRAFT_MODEL)


def find_checkpoint(args: EngineArgs, name: str, revision: str | None) -> Path:
    """The directory of a drafter's checkpoint, downloaded if necessary. CheckpointError."""
    return resolve_model(name, revision=revision, download_dir=args.download_dir, token=args.hf_token)
