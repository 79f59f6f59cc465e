"""Which matrices of a model need more bits than others where weights are rounded, found from its spec. Loads no tensor
framework."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from thalweg.models.spec import ModelSpec
from thalweg.models.weights import Weight, walk
from thalweg.quantization import registry
from thalweg.quantization.format import Scheme
from thalweg.quantization.online import Formats

VALUES = 2
"""The place of values among the sources of q, k and v."""


def model_scheme(config: Mapping[str, Any], method: str | None, spec: ModelSpec) -> Scheme:
    """The formats of this model's weights, as `registry.scheme` has them, which also raises its errors."""
    use = registry.scheme(config, method)
    return use.for_model(spec.hidden, _sensitive(spec)) if isinstance(use, Formats) and use.mixes else use


def _sensitive(spec: ModelSpec) -> Iterator[str]:
    """Tensors of the matrices whose errors reach the residual stream with nothing but a sum between: the projections of
    values, and those back from the MLP. None where one tensor has values and other parts too. Experts are not among them."""
    for keys, weight in walk(spec.weights()):
        if keys[0] != "layers" or weight.role != "linear":
            continue
        if keys[-2] == "down":
            yield from (source.name for source in weight.sources)
        elif keys[-2] == "qkv":
            yield from _value_tensors(weight)


def _value_tensors(weight: Weight) -> Iterator[str]:
    names = [source.name for source in weight.sources]
    if len(names) > VALUES and names.count(names[VALUES]) == 1:
        yield names[VALUES]
