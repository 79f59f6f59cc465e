"""thalweg: an engine that serves language models on any accelerator.

Names are loaded on first use, so `import thalweg` costs milliseconds and no tensor framework.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from thalweg.host.collector import pause_gc

__version__ = "0.1.0"

_HOMES = {
    "LLM": "thalweg.llm",
    "AsyncLLM": "thalweg.async_llm",
    "EngineArgs": "thalweg.config",
    "SamplingParams": "thalweg.params",
    "StructuredOutputsParams": "thalweg.params",
    "PoolingParams": "thalweg.params",
    "RequestOutputKind": "thalweg.params",
    "RequestOutput": "thalweg.outputs",
    "CompletionOutput": "thalweg.outputs",
    "Logprob": "thalweg.outputs",
    "EmbeddingOutput": "thalweg.outputs",
    "EmbeddingRequestOutput": "thalweg.outputs",
    "ClassificationOutput": "thalweg.outputs",
    "ClassificationRequestOutput": "thalweg.outputs",
    "PoolingOutput": "thalweg.outputs",
    "PoolingRequestOutput": "thalweg.outputs",
    "ScoringOutput": "thalweg.outputs",
    "ScoringRequestOutput": "thalweg.outputs",
    "LLMEngine": "thalweg.offline.engine",
    "LoRARequest": "thalweg.lora",
    "BeamSearchParams": "thalweg.params",
    "RepetitionDetectionParams": "thalweg.params",
    "BeamSearchOutput": "thalweg.outputs",
    "BeamSearchSequence": "thalweg.outputs",
    "FlatLogprobs": "thalweg.outputs",
    "TextPrompt": "thalweg.prompts",
    "TokensPrompt": "thalweg.prompts",
    "EmbedsPrompt": "thalweg.prompts",
    "PromptType": "thalweg.prompts",
}
__all__ = [
    "LLM",
    "AsyncLLM",
    "BeamSearchOutput",
    "BeamSearchParams",
    "BeamSearchSequence",
    "ClassificationOutput",
    "ClassificationRequestOutput",
    "CompletionOutput",
    "EmbeddingOutput",
    "EmbeddingRequestOutput",
    "EmbedsPrompt",
    "EngineArgs",
    "FlatLogprobs",
    "LLMEngine",
    "LoRARequest",
    "Logprob",
    "PoolingOutput",
    "PoolingParams",
    "PoolingRequestOutput",
    "PromptType",
    "RepetitionDetectionParams",
    "RequestOutput",
    "RequestOutputKind",
    "SamplingParams",
    "ScoringOutput",
    "ScoringRequestOutput",
    "StructuredOutputsParams",
    "TextPrompt",
    "TokensPrompt",
    "__version__",
]

if TYPE_CHECKING:
    from thalweg.async_llm import AsyncLLM
    from thalweg.config import EngineArgs
    from thalweg.llm import LLM
    from thalweg.lora import LoRARequest
    from thalweg.offline.engine import LLMEngine
    from thalweg.outputs import (
        BeamSearchOutput,
        BeamSearchSequence,
        ClassificationOutput,
        ClassificationRequestOutput,
        CompletionOutput,
        EmbeddingOutput,
        EmbeddingRequestOutput,
        FlatLogprobs,
        Logprob,
        PoolingOutput,
        PoolingRequestOutput,
        RequestOutput,
        ScoringOutput,
        ScoringRequestOutput,
    )
    from thalweg.params import (
        BeamSearchParams,
        PoolingParams,
        RepetitionDetectionParams,
        RequestOutputKind,
        SamplingParams,
        StructuredOutputsParams,
    )
    from thalweg.prompts import EmbedsPrompt, PromptType, TextPrompt, TokensPrompt


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'thalweg' has no attribute {name!r}")
    with pause_gc():
        return getattr(import_module(_HOMES[name]), name)


def __dir__() -> list[str]:
    return sorted(__all__)
