"""Models that cannot be divided among ranks: one table, checked before a layer is built or a weight is read.

A layer has no such check. `Context.share` refuses sizes that do not divide, and `models.files` quantised tensors that
cannot be cut. `ci/refusals.py` prints the table, and finds layers that refuse by themselves.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields, is_dataclass
from typing import Any

from thalweg.errors import ConfigError
from thalweg.models.fallback.spec import TransformersSpec
from thalweg.models.spec import (
    AverageMix,
    ChannelMix,
    ConvolvedHeads,
    DeepRouter,
    DeltaMix,
    DepthSpec,
    DifferentialAttention,
    ExpertAttention,
    GatedMemory,
    GatedRecurrence,
    GatedStreams,
    HeadMamba,
    HyperStreams,
    LatentAttention,
    LayerInputs,
    LoopInput,
    MatrixLSTM,
    MemoryStreams,
    ModelSpec,
    PatchSource,
    ResidualBlocks,
    ShortcutMoE,
    SpeechEncoder,
    Streams,
    StreamSkip,
    SwinSource,
    TextEncoder,
    TileSource,
)

ENCODERS = ("vision", "audio", "voice", "spoken_text")
"""Fields of a ModelSpec that every rank computes whole."""


@dataclass(frozen=True, slots=True)
class Refusal:
    """A kind of model that cannot be divided."""

    layer: str
    """The module of `models.layers`, or "fallback"."""
    why: str
    applies: Callable[[Any], bool]
    """Of any part of a model's declaration."""


_FALLBACK = Refusal("fallback", "the fallback to transformers runs on one device", lambda p: isinstance(p, TransformersSpec))
TENSOR = (
    _FALLBACK,
    Refusal(
        "differential", "its heads are subtracted from each other, and not divided among ranks",
        lambda p: isinstance(p, DifferentialAttention),
    ),
    Refusal("rwkv", "its states are not divided among ranks", lambda p: isinstance(p, AverageMix | ChannelMix | DeltaMix)),
    Refusal("expert_attention", "its attention heads are experts, and not divided", lambda p: isinstance(p, ExpertAttention)),
    Refusal("convolved", "its convolved heads are not divided among ranks", lambda p: isinstance(p, ConvolvedHeads)),
    Refusal("matrix_lstm", "its states are not divided among ranks", lambda p: isinstance(p, MatrixLSTM)),
    Refusal("head_mamba", "its heads are not divided among ranks", lambda p: isinstance(p, HeadMamba)),
    Refusal("rglru", "its gates are not divided among ranks", lambda p: isinstance(p, GatedRecurrence)),
    Refusal("depth", "the decoder of its frames is not divided among ranks", lambda p: isinstance(p, DepthSpec)),
)  # fmt: skip
"""For tensor parallelism."""
STAGE = (
    _FALLBACK,
    Refusal("perlayer", "each layer reads inputs made of the embeddings", lambda p: isinstance(p, LayerInputs)),
    Refusal(
        "altup", "it has several residual streams",
        lambda p: isinstance(p, GatedStreams | HyperStreams | MemoryStreams | ResidualBlocks | Streams),
    ),
    Refusal(
        "cross", "its layers read an encoder that runs inside the step",
        lambda p: isinstance(p, PatchSource | SpeechEncoder | SwinSource | TextEncoder | TileSource),
    ),
    Refusal("stream_skip", "its layers read streams that earlier ones have saved", lambda p: isinstance(p, StreamSkip)),
    Refusal("loop_input", "its loops read streams that earlier ones have saved", lambda p: isinstance(p, LoopInput)),
    Refusal("rwkv", "its layers read the values of the first one", lambda p: isinstance(p, DeltaMix)),
    Refusal("deep_router", "its routers read those of earlier layers", lambda p: isinstance(p, DeepRouter)),
    Refusal("depth", "its step ends with the decoder of a frame", lambda p: isinstance(p, DepthSpec)),
    Refusal("memory", "its layers read the scan of an earlier one", lambda p: isinstance(p, GatedMemory)),
    Refusal("shortcut", "outputs of its experts skip layers", lambda p: isinstance(p, ShortcutMoE)),
    Refusal("attention", "layers read the cache of an earlier layer", lambda p: getattr(p, "reads", None) is not None),
    Refusal(
        "latent", "layers read tokens that an earlier layer has selected",
        lambda p: isinstance(p, LatentAttention) and p.top > 0 and p.indexer is None,
    ),
)  # fmt: skip
"""For pipeline stages, which pass on only the hidden states."""


def check_ranks(spec: ModelSpec | TransformersSpec, sizes: Mapping[str, int]) -> None:
    """ConfigError lists why this model cannot be divided so. sizes: ranks of each axis of `hal.comm.Mesh`."""
    if sizes.get("data", 1) > 1:
        raise ConfigError("data: engines that share requests have a whole model each, so no model is divided along this axis")
    if sizes.get("expert", 1) not in (1, sizes.get("tensor", 1)):
        raise ConfigError("expert: experts are placed on the ranks of the tensor axis, and on no others")
    tables = {"tensor_parallel_size": ("tensor", TENSOR), "pipeline_parallel_size": ("stage", STAGE)}
    refused = [
        f"{flag}: {r.why}: leave it at 1"
        for flag, (axis, table) in tables.items()
        if sizes.get(axis, 1) > 1
        for r in refusals_of(spec, table)
    ]
    if refused:
        raise ConfigError(*refused)


def refusals_of(spec: ModelSpec | TransformersSpec, table: Sequence[Refusal] = TENSOR) -> list[Refusal]:
    """Rows of a table that apply to a model, each once."""
    parts = [spec] if isinstance(spec, TransformersSpec) else list(_parts(spec, set()))
    return [r for r in table if any(r.applies(p) for p in parts)]


def _parts(value: Any, seen: set[int]) -> Iterator[Any]:
    """Every dataclass in a declaration, except encoders."""
    if isinstance(value, tuple):
        for v in value:
            yield from _parts(v, seen)
    elif is_dataclass(value) and not isinstance(value, type) and id(value) not in seen:
        seen.add(id(value))
        yield value
        for field in fields(value):
            if not (isinstance(value, ModelSpec) and field.name in ENCODERS):
                yield from _parts(getattr(value, field.name), seen)
