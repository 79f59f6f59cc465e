"""Names of vllm.pooling_params, served by thalweg (thalweg.compat)."""

from thalweg.params import PoolingParams

__all__ = ["PoolingParams"]
