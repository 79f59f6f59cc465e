"""The features of a step, in the order in which they change logits. Each has three sides in three rooms, named here and
imported where they are used: no side loads the imports of another.

A feature may be third-party: an installed package names a `Feature` in the entry points of the group `thalweg.features`.
docs/adding-a-feature.md is the recipe.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cache
from typing import Any

from thalweg.plugins import PluginRegistry


@dataclass(frozen=True, slots=True)
class Feature:
    """The locations of a feature's sides, each as "module:attribute"."""

    part: str
    """Its arrays: a `hal.fields.Part`."""
    builder: str
    """The builder of its arrays: an `engine.control.parts.builder.Builder`."""
    logits: str = ""
    """The processor that changes logits: a `models.logits.change.Change`. "": the model or the step reads the arrays itself."""
    arguments: Mapping[str, Callable[[Any], Any]] = field(default_factory=dict)
    """Its names in `SamplingParams.extra_args`, with a check of the value for each. It returns the value for the builder in
    `TokenSampling.extra`, or raises ValueError with a message."""


def _times(value: Any) -> tuple[int, ...]:
    """[first timestamp token, end token of a transcript, latest first timestamp in steps after the first]."""
    if not isinstance(value, list | tuple) or len(value) != 3 or not all(type(n) is int and 0 <= n < 2**31 for n in value):
        raise ValueError("must be three whole numbers: the first time, the end, and the latest first time")
    return tuple(value)


def _position(value: Any) -> int:
    """The position of the first prompt token whose weights of cross attention, or hidden states, are returned."""
    if type(value) is not int or not 0 <= value < 2**31:
        raise ValueError("must be the position of a token of the prompt, a whole number from 0")
    return value


_HAL = "thalweg.hal.parts"
_CONTROL = "thalweg.engine.control.parts"
_MODELS = "thalweg.models.logits"
FEATURES = (
    Feature(f"{_HAL}.history:History", f"{_CONTROL}.history:HistoryBuilder"),
    Feature(f"{_HAL}.codes:FrameCodes", f"{_CONTROL}.codes:CodesBuilder"),
    Feature(f"{_HAL}.spoken:SpokenTokens", f"{_CONTROL}.spoken:SpokenBuilder"),
    Feature(f"{_HAL}.penalties:Penalties", f"{_CONTROL}.penalties:PenaltiesBuilder", f"{_MODELS}.penalties:PenaltiesProcessor"),
    Feature(f"{_HAL}.bad_words:BadWords", f"{_CONTROL}.bad_words:BadWordsBuilder", f"{_MODELS}.bad_words:BadWordsProcessor"),
    Feature(f"{_HAL}.bias:Bias", f"{_CONTROL}.bias:BiasBuilder", f"{_MODELS}.bias:BiasProcessor"),
    Feature(f"{_HAL}.mask:Mask", f"{_CONTROL}.mask:MaskBuilder", f"{_MODELS}.mask:MaskProcessor"),
    Feature(f"{_HAL}.timestamps:Timestamps", f"{_CONTROL}.timestamps:TimestampsBuilder",
            f"{_MODELS}.timestamps:TimestampsProcessor", {"timestamps": _times}),
    Feature(f"{_HAL}.scores:Scores", f"{_CONTROL}.scores:ScoresBuilder"),
    Feature(f"{_HAL}.each_token:EachToken", f"{_CONTROL}.each_token:EachTokenBuilder",
            arguments={"alignment": _position, "states": _position}),
    Feature(f"{_HAL}.overlays:Overlays", f"{_CONTROL}.overlays:OverlaysBuilder"),
    Feature(f"{_HAL}.spans:Spans", f"{_CONTROL}.spans:SpansBuilder"),
    Feature(f"{_HAL}.sparse:Sparse", f"{_CONTROL}.sparse:SparseBuilder"),
    Feature(f"{_HAL}.axes:Axes", f"{_CONTROL}.axes:AxesBuilder"),
    Feature(f"{_HAL}.sources:Sources", f"{_CONTROL}.sources:SourcesBuilder"),
    Feature(f"{_HAL}.adapters:Adapters", f"{_CONTROL}.adapters:AdaptersBuilder"),
    Feature(f"{_HAL}.drafts:Drafts", f"{_CONTROL}.drafts:DraftsBuilder"),
    Feature(f"{_HAL}.proposing:Proposing", f"{_CONTROL}.proposing:ProposingBuilder"),
)  # fmt: skip
"""Features of this repository."""

_OUTSIDE = PluginRegistry("thalweg.features", {})


@cache
def all_features() -> tuple[Feature, ...]:
    """Features of this repository, then of installed packages by name. UnsupportedModelError if one cannot be imported."""
    return (*FEATURES, *(_OUTSIDE.load(name) for name in _OUTSIDE.names()))
