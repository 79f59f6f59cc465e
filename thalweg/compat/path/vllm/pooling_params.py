"""Names of vllm.pooling_params, served by thalweg (thalweg.compat)."""

from thalweg.compat.names import LateInteractionParams
from thalweg.params import PoolingParams

__all__ = ["LateInteractionParams", "PoolingParams"]
