"""Names of vllm.v1.engine.async_llm, served by thalweg (thalweg.compat)."""

from thalweg.compat.engines import AsyncLLM

__all__ = ["AsyncLLM"]
