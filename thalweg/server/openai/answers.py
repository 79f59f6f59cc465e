"""What the answers of completions and chat share."""

from __future__ import annotations

from typing import Any

from thalweg.outputs import CompletionOutput
from thalweg.server.core.serving import Serving
from thalweg.server.openai.protocol import Request


def as_ids(serving: Serving, request: Request) -> bool:
    """Are tokens named `token_id:N` in log-probabilities?"""
    asked = request.return_tokens_as_token_ids
    return serving.settings.return_tokens_as_token_ids if asked is None else asked


def usage_of(serving: Serving, request: Request) -> tuple[bool, bool]:
    """Does a stream end with its usage, and does every chunk have it? --enable-force-include-usage asks for both."""
    if serving.settings.enable_force_include_usage:
        return True, True
    options = request.stream_options
    last = bool(options and options.include_usage)
    return last, bool(last and options and options.continuous_usage_stats)


def finish(choice: CompletionOutput) -> dict[str, Any]:
    return {"finish_reason": choice.finish_reason, "stop_reason": choice.stop_reason}
