"""Names of vLLM."""

from thalweg.compat.requests import CompletionRequest as CompletionRequest
from thalweg.compat.requests import CompletionResponse as CompletionResponse
from thalweg.compat.requests import CompletionStreamResponse as CompletionStreamResponse
