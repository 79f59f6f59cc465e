"""Names of vLLM."""

from thalweg.compat.requests import EmbeddingChatRequest as EmbeddingChatRequest
from thalweg.compat.requests import EmbeddingCompletionRequest as EmbeddingCompletionRequest
from thalweg.compat.requests import EmbeddingResponse as EmbeddingResponse
