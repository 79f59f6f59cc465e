"""What a drafter's layers are declared by, and the declaration."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from thalweg.hal.kv import KVSpec
from thalweg.hal.platform import Platform
from thalweg.models import sizes
from thalweg.models.spec import ModelSpec
from thalweg.quantization import registry as formats

FIELD = "speculative_config: model"


@dataclass(frozen=True, slots=True)
class DraftTarget:
    """The model that verifies the drafts."""

    path: Path
    hf: Mapping[str, Any]
    spec: ModelSpec
    quantization: str | None = None
    """The method that rounds its dense weights while they are loaded."""


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
