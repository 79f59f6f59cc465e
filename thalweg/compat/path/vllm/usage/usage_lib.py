"""Names of vllm.usage.usage_lib, served by thalweg (thalweg.compat)."""

from thalweg.compat.names import UsageContext

__all__ = ["UsageContext"]
