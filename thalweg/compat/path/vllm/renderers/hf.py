"""Names of vllm.renderers.hf, served by thalweg (thalweg.compat)."""

from thalweg.compat.names import resolve_chat_template

__all__ = ["resolve_chat_template"]
