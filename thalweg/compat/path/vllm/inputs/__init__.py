"""Names of vllm.inputs, served by thalweg (thalweg.compat)."""

from thalweg.compat.names import DataPrompt
from thalweg.prompts import EmbedsPrompt, ExplicitEncoderDecoderPrompt, PromptType, TextPrompt, TokensPrompt

__all__ = ["DataPrompt", "EmbedsPrompt", "ExplicitEncoderDecoderPrompt", "PromptType", "TextPrompt", "TokensPrompt"]
