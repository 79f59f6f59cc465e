"""Names of vLLM."""

from thalweg.compat.requests import DetokenizeRequest as DetokenizeRequest
from thalweg.compat.requests import DetokenizeResponse as DetokenizeResponse
from thalweg.compat.requests import TokenizeChatRequest as TokenizeChatRequest
from thalweg.compat.requests import TokenizeCompletionRequest as TokenizeCompletionRequest
from thalweg.compat.requests import TokenizeResponse as TokenizeResponse
