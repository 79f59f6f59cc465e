"""Names of vllm.v1.engine.llm_engine, served by thalweg (thalweg.compat)."""

from thalweg.compat.engines import LLMEngine

__all__ = ["LLMEngine"]
