"""Names of vllm.lora.request, served by thalweg (thalweg.compat)."""

from thalweg.compat.names import LoRARequest

__all__ = ["LoRARequest"]
