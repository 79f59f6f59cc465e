"""Names of vLLM."""

from thalweg.compat.requests import ChatCompletionRequest as ChatCompletionRequest
from thalweg.compat.requests import ChatCompletionResponse as ChatCompletionResponse
from thalweg.compat.requests import ChatCompletionStreamResponse as ChatCompletionStreamResponse
