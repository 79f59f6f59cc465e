"""vLLM's names, served by thalweg. On the path only where somebody asked for it: see thalweg.compat."""

from thalweg import (
    BeamSearchParams,
    ClassificationOutput,
    ClassificationRequestOutput,
    CompletionOutput,
    EmbeddingOutput,
    EmbeddingRequestOutput,
    PoolingOutput,
    PoolingParams,
    PoolingRequestOutput,
    RequestOutput,
    SamplingParams,
    ScoringOutput,
    ScoringRequestOutput,
)
from thalweg.compat.arguments import AsyncEngineArgs, EngineArgs
from thalweg.compat.engines import AsyncLLM, LLMEngine
from thalweg.compat.names import LLM, ModelRegistry, initialize_ray_cluster
from thalweg.prompts import EmbedsPrompt, PromptType, TextPrompt, TokensPrompt

from .version import __version__

AsyncLLMEngine = AsyncLLM

__all__ = [
    "LLM",
    "AsyncEngineArgs",
    "AsyncLLM",
    "AsyncLLMEngine",
    "BeamSearchParams",
    "ClassificationOutput",
    "ClassificationRequestOutput",
    "CompletionOutput",
    "EmbeddingOutput",
    "EmbeddingRequestOutput",
    "EmbedsPrompt",
    "EngineArgs",
    "LLMEngine",
    "ModelRegistry",
    "PoolingOutput",
    "PoolingParams",
    "PoolingRequestOutput",
    "PromptType",
    "RequestOutput",
    "SamplingParams",
    "ScoringOutput",
    "ScoringRequestOutput",
    "TextPrompt",
    "TokensPrompt",
    "__version__",
    "initialize_ray_cluster",
]
