"""Names of vllm.entrypoints.llm, served by thalweg (thalweg.compat)."""

from thalweg.compat.names import LLM

__all__ = ["LLM"]
