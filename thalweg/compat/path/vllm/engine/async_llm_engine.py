"""Names of vllm.engine.async_llm_engine, served by thalweg (thalweg.compat)."""

from thalweg import AsyncLLM as AsyncLLMEngine

__all__ = ["AsyncLLMEngine"]
