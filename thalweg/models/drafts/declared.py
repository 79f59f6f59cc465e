"""What a drafter's layers are declared by, and the declaration."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from thalweg.drafters import RANKS
from thalweg.errors import ConfigError
from thalweg.hal.kv import KVSpec
from thalweg.hal.platform import Platform
from thalweg.models import sizes
from thalweg.models.precision import model_scheme
from thalweg.models.spec import ModelSpec, MTPSpec

FIELD = "speculative_config: model"


@dataclass(frozen=True, slots=True)
class DraftTarget:
    """The model that verifies the drafts."""

    path: Path
    hf: Mapping[str, Any]
    spec: ModelSpec
    quantization: str | None = None
    """The method that rounds its dense weights while they are loaded."""


def describe_indivisible(draft: DraftModel, why: Exception) -> ConfigError:
    """The error for a draft that its ranks do not divide."""
    return ConfigError(
        f"speculative_config: {RANKS}: {draft.ranks} ranks do not divide the draft model ({why}); set it to 1, and every rank "
        "has it whole"
    )


@dataclass(frozen=True, slots=True)
class DraftModel:
    path: Path
    hf: dict[str, Any]
    spec: ModelSpec
    quantization: str | None = None
    """The method that rounds its dense weights while they are loaded."""
    kv_dtype: str = ""
    """The dtype of its cache, as `AttnSpec.kv_dtype`."""
    ranks: int = 1
    """That divide its layers. 1: every rank has them whole."""

    def weight_bytes(self, dtype: str, max_len: int, platform: Platform) -> int:
        """On each rank. IndivisibleError."""
        use = model_scheme(self.hf, self.quantization, self.spec)
        return sizes.weight_bytes(
            self.spec, dtype, max_len, self.ranks, use, platform.packs, platform.dense_share, platform.quantised_bytes
        )

    def add_caches(self, groups: Sequence[KVSpec], dtype: str, max_len: int, block_tokens: int) -> tuple[KVSpec, ...]:
        """The target's KV groups, with the caches of the draft's layers on the blocks of one of them."""
        specs = sizes.cache_specs(self.spec, dtype, self.kv_dtype, max_len, self.ranks)
        more = sum(g.bytes_per_block for g in sizes.kv_groups(specs, block_tokens, block_tokens))
        if isinstance(self.spec, MTPSpec) and self.spec.cache is not None:
            return tuple(groups)
        at = sizes.shared_group(groups)
        return tuple(replace(g, bytes_per_block=g.bytes_per_block + more) if i == at else g for i, g in enumerate(groups))
