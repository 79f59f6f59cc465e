"""Names of vllm.tokenizers, served by thalweg (thalweg.compat)."""

from thalweg.compat.names import get_tokenizer

__all__ = ["get_tokenizer"]
