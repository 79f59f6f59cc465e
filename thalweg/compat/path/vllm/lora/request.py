"""Names of vllm.lora.request, served by thalweg (thalweg.compat)."""

from thalweg.lora import LoRARequest

__all__ = ["LoRARequest"]
