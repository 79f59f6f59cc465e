"""Names of vllm.entrypoints.chat_utils, served by thalweg (thalweg.compat)."""

from thalweg.compat.names import resolve_chat_template as resolve_hf_chat_template

__all__ = ["resolve_hf_chat_template"]
