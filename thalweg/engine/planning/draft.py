"""The draft model of an engine: a second checkpoint with the target's tokenizer, or a module of the target's checkpoint. It is
read and checked before anything is loaded, and counted in the memory plan."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from thalweg.checkpoint.config import architecture, read_config
from thalweg.checkpoint.hub import resolve_model
from thalweg.config import EngineArgs
from thalweg.drafters import MODEL, load_drafter
from thalweg.errors import CheckpointError, ConfigError
from thalweg.hal.attention import AttnSpec
from thalweg.hal.kv import KVSpec
from thalweg.hal.platform import Platform
from thalweg.models import registry, sizes
from thalweg.models.spec import ModelSpec
from thalweg.options.speculation import read_speculation_config
from thalweg.quantization import registry as formats

FIELD = "speculative_config: model"


@dataclass(frozen=True, slots=True)
class DraftModel:
    path: Path
    hf: dict[str, Any]
    spec: ModelSpec
    quantization: str | None = None
    """The method that rounds its dense weights while they are loaded."""

    def weight_bytes(self, dtype: str, max_len: int, platform: Platform) -> int:
        use = formats.scheme(self.hf, self.quantization)
        return sizes.weight_bytes(self.spec, dtype, max_len, 1, use, platform.packs, platform.dense_share)

    def add_caches(self, groups: Sequence[KVSpec], dtype: str, max_len: int, block_tokens: int) -> tuple[KVSpec, ...]:
        """The target's KV groups, with the caches of the draft's layers on the blocks of one of them."""
        specs = sizes.cache_specs(self.spec, dtype, "", max_len)
        more = sum(g.bytes_per_block for g in sizes.kv_groups(specs, block_tokens, block_tokens))
        at = sizes.shared_group(groups)
        return tuple(replace(g, bytes_per_block=g.bytes_per_block + more) if i == at else g for i, g in enumerate(groups))


def read_draft(args: EngineArgs, target: Mapping[str, Any], target_spec: ModelSpec, path: Path) -> DraftModel | None:
    """The draft model of the user's drafter, checked against the target. None: drafts come from no model. Raises
    CheckpointError or ConfigError.

    target, target_spec, path: the target's configuration, declaration and files."""
    config = read_speculation_config(args)
    drafter = None if config is None else load_drafter(config.method)
    if config is None or drafter is None or not (drafter.runs_model or drafter.runs_module):
        return None
    if args.tensor_parallel_size > 1:
        raise ConfigError(f"speculative_config: {config.method} runs on one device so far; omit tensor_parallel_size")
    if drafter.runs_module:
        return _read_module(args, target, target_spec, path)
    try:
        where = resolve_model(config.options[MODEL], download_dir=args.download_dir, token=args.hf_token)
        hf, spec = registry.declare(read_config(where, {}, formats.check), where)
    except CheckpointError as e:
        raise CheckpointError(f"{FIELD}: {e}") from e
    kinds = sizes.cache_specs(spec, "float32", "", 1)
    if spec.pooling is not None or not all(isinstance(s, AttnSpec) and not s.index for s in kinds):
        raise ConfigError(f"{FIELD}: {where} has layers other than attention with a cache of keys and values; choose another")
    _check_vocabulary(where, hf, path, target)
    return DraftModel(where, hf, spec)


def _read_module(args: EngineArgs, target: Mapping[str, Any], spec: ModelSpec, path: Path) -> DraftModel:
    """The target's module for multi-token prediction."""
    if spec.mtp is None:
        raise ConfigError(
            f"speculative_config: mtp: {architecture(target)} has no module for multi-token prediction that this version runs "
            "(docs/speculative-decoding.md lists the models with one); use method ngram or suffix"
        )
    return DraftModel(path, dict(target), spec.mtp, args.quantization)


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
    """Ids of all tokens, by tokenizer.json. None: there is no such file."""
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
