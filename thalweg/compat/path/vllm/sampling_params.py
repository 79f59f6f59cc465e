"""Names of vllm.sampling_params, served by thalweg (thalweg.compat)."""

from thalweg.compat.names import GuidedDecodingParams
from thalweg.params import (
    BeamSearchParams,
    RepetitionDetectionParams,
    RequestOutputKind,
    SamplingParams,
    SamplingType,
    StructuredOutputsParams,
)

__all__ = [
    "BeamSearchParams",
    "GuidedDecodingParams",
    "RepetitionDetectionParams",
    "RequestOutputKind",
    "SamplingParams",
    "SamplingType",
    "StructuredOutputsParams",
]
