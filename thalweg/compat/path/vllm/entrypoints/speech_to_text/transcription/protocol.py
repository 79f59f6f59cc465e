"""Names of vLLM."""

from thalweg.compat.requests import TranscriptionRequest as TranscriptionRequest
from thalweg.compat.requests import TranscriptionResponse as TranscriptionResponse
from thalweg.compat.requests import TranscriptionStreamResponse as TranscriptionStreamResponse
