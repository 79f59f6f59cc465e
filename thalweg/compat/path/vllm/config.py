"""Names of vllm.config, served by thalweg (thalweg.compat)."""

from thalweg.compat.configs import CacheConfig, LoadConfig, ModelConfig, ParallelConfig, SchedulerConfig, VllmConfig
from thalweg.compat.names import KVTransferConfig

__all__ = ["CacheConfig", "KVTransferConfig", "LoadConfig", "ModelConfig", "ParallelConfig", "SchedulerConfig", "VllmConfig"]
