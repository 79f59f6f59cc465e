"""Names of vllm.inputs, served by thalweg (thalweg.compat)."""

from thalweg.prompts import EmbedsPrompt, PromptType, TextPrompt, TokensPrompt

__all__ = ["EmbedsPrompt", "PromptType", "TextPrompt", "TokensPrompt"]
