"""Keys of `speculative_config` for a drafter's layers: the format of their weights, and the dtype of their cache."""

from __future__ import annotations

from collections.abc import Mapping

from thalweg.drafters import CACHE_DTYPE, QUANTIZATION, DrafterOption, one_of
from thalweg.options.cache import KV_CACHE_DTYPES
from thalweg.options.weights import QUANTIZATIONS

CACHE_OPTIONS: Mapping[str, DrafterOption] = {CACHE_DTYPE: DrafterOption(one_of(KV_CACHE_DTYPES), default="auto")}
PRECISION_OPTIONS: Mapping[str, DrafterOption] = {QUANTIZATION: DrafterOption(one_of(QUANTIZATIONS)), **CACHE_OPTIONS}
"""Of drafters with a separate checkpoint."""
