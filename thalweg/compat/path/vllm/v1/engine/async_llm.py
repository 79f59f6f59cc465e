"""Names of vllm.v1.engine.async_llm, served by thalweg (thalweg.compat)."""

from thalweg import AsyncLLM

__all__ = ["AsyncLLM"]
