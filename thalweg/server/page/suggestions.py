"""Suggested prompts of the page, for the served model. Empty where it generates no text."""

from __future__ import annotations

from importlib.resources import files
from pathlib import Path

BUNDLED = ("What can you do?", "Sort these words: river, bridge, tower", "What is 17 + 25?")
"""For thalweg-nano, which knows nothing of the world."""
QUESTIONS = ("Explain how a river finds its course", "Write a short poem about rain at night", "What is the capital of France?")
BEGINNINGS = ("The river finds its course by", "Once upon a time, on a rainy night,", "The capital of France is")
"""For a model without a chat template, which continues text."""


def suggest(path: str, generates: bool, chats: bool) -> tuple[str, ...]:
    """path: of the model."""
    if not generates:
        return ()
    if Path(path).parent == Path(str(files("thalweg") / "nano")):
        return BUNDLED
    return QUESTIONS if chats else BEGINNINGS
