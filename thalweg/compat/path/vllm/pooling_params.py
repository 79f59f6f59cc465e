"""Names of vllm.pooling_params, served by thalweg (thalweg.compat)."""

from thalweg.params import LateInteractionParams, PoolingParams

__all__ = ["LateInteractionParams", "PoolingParams"]
