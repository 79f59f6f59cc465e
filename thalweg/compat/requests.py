"""Bodies of requests and answers under vLLM's names. Other programs pass them on, as Ray Serve LLM does.

They accept any field: `thalweg serve` checks requests, and names what is wrong.
"""

from __future__ import annotations

from typing import Any

from pydantic import BaseModel, ConfigDict


class _Body(BaseModel):
    model_config = ConfigDict(extra="allow", arbitrary_types_allowed=True)


class _ModelRequest(_Body):
    model: str | None = None
    stream: bool | None = False


class ChatCompletionRequest(_ModelRequest):
    messages: list[dict[str, Any]]


class CompletionRequest(_ModelRequest):
    prompt: Any = None


class EmbeddingCompletionRequest(_ModelRequest):
    input: Any


class EmbeddingChatRequest(_ModelRequest):
    messages: list[dict[str, Any]]


class ScoreTextRequest(_ModelRequest):
    pass


class TokenizeCompletionRequest(_ModelRequest):
    prompt: str


class TokenizeChatRequest(_ModelRequest):
    messages: list[dict[str, Any]]


class DetokenizeRequest(_ModelRequest):
    tokens: list[int]


class TranscriptionRequest(_ModelRequest):
    file: Any = None


class ChatCompletionResponse(_Body):
    pass


class ChatCompletionStreamResponse(_Body):
    pass


class CompletionResponse(_Body):
    pass


class CompletionStreamResponse(_Body):
    pass


class EmbeddingResponse(_Body):
    pass


class ScoreResponse(_Body):
    pass


class TokenizeResponse(_Body):
    pass


class DetokenizeResponse(_Body):
    pass


class TranscriptionResponse(_Body):
    pass


class TranscriptionStreamResponse(_Body):
    pass


class ErrorInfo(_Body):
    message: str
    type: str
    param: str | None = None
    code: int


class ErrorResponse(_Body):
    error: ErrorInfo
