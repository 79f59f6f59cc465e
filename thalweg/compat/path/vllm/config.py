"""Names of vllm.config, served by thalweg (thalweg.compat)."""

from thalweg.compat.configs import CacheConfig, LoadConfig, ModelConfig, ParallelConfig, SchedulerConfig, VllmConfig

__all__ = ["CacheConfig", "LoadConfig", "ModelConfig", "ParallelConfig", "SchedulerConfig", "VllmConfig"]
