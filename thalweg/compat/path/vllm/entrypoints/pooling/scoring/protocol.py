"""Names of vLLM."""

from thalweg.compat.requests import ScoreResponse as ScoreResponse
from thalweg.compat.requests import ScoreTextRequest as ScoreTextRequest
