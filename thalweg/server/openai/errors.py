"""Errors of OpenAI's form, for routes whose prompt has another name than the engine's."""

from __future__ import annotations

from dataclasses import replace

from thalweg.server.http.answer import OPENAI

CONVERSATION = replace(OPENAI, names={"prompt": "messages"})
"""Of routes with `messages`."""
PROMPTS = replace(OPENAI, names={"prompt_token_ids": "prompt"})
"""Of routes whose `prompt` may hold token ids."""
INPUTS = replace(OPENAI, names={"prompt_token_ids": "input"})
"""The same of `input`."""
