"""Names of vllm.engine.async_llm_engine, served by thalweg (thalweg.compat)."""

from thalweg.compat.engines import AsyncLLM as AsyncLLMEngine

__all__ = ["AsyncLLMEngine"]
