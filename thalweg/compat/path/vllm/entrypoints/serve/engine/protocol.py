"""Names of vLLM."""

from thalweg.compat.requests import ErrorInfo as ErrorInfo
from thalweg.compat.requests import ErrorResponse as ErrorResponse
