"""Pipeline stages: which layers each computes, and what passes from one to the next. Loads no tensor framework."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from itertools import accumulate, pairwise

from thalweg.errors import ConfigError
from thalweg.models.spec import Layer, ModelSpec
from thalweg.models.weights import walk


def partition(layers: int, stages: int, sizes: Sequence[int] | None = None) -> list[tuple[int, int]]:
    """The layers [first, end) of each stage.

    sizes: layers of each stage. None: as equal as possible. Those left over go to the stages before the last, one each, from
    the end: the last stage also has the output matrix. ConfigError names the flag."""
    if sizes is None:
        if layers < stages:
            raise ConfigError(f"pipeline_parallel_size: the model has {layers} layers for {stages} stages; lower it")
        least, more = divmod(layers, stages)
        sizes = [least + (stages - 1 - more <= i < stages - 1) for i in range(stages)]
    if len(sizes) != stages or min(sizes) < 1 or sum(sizes) != layers:
        raise ConfigError(
            f"pipeline_layer_partition: {','.join(map(str, sizes))} does not give {stages} stages (pipeline_parallel_size) the "
            f"model's {layers} layers, at least one each"
        )
    return list(pairwise(accumulate(sizes, initial=0)))


def cut_stage(spec: ModelSpec, index: int, stages: int, sizes: Sequence[int] | None = None) -> ModelSpec:
    """The model as one stage has it. Errors as in `partition`."""
    return replace(spec, span=partition(len(spec.layers), stages, sizes)[index])


def parts_before(spec: ModelSpec) -> int:
    """Arrays [T, hidden] that the stage gets from the one before. 0: it embeds tokens."""
    return 0 if spec.embeds else _parts_after(spec.layers[spec.layer_range.start - 1])


def parts_behind(spec: ModelSpec) -> int:
    """Arrays [T, hidden] that the stage gives the one behind. 0: it ends the step."""
    return 0 if spec.finishes else _parts_after(spec.layers[spec.layer_range.stop - 1])


def _parts_after(layer: Layer) -> int:
    """2: the layer's addition and the residual stream, which the next norm adds. 1: their sum."""
    if layer.around is not None:
        return 1
    if layer.ffn is None:
        return 1 if layer.laurel or layer.norms.mixer_sum else 2
    return 2 if layer.parallel or not layer.norms.ffn_sum else 1


def names_elsewhere(spec: ModelSpec) -> tuple[str, ...]:
    """Prefixes of tensors that only other stages have."""
    if spec.span is None:
        return ()
    numbers = spec.numbers or range(len(spec.layers))
    layers = [f"{spec.root}{spec.layer.format(n)}" for i, n in enumerate(numbers) if i not in spec.layer_range]
    own, every = (_stems(each) for each in (spec, replace(spec, span=None)))
    return (*layers, *sorted(every - own))


def _stems(spec: ModelSpec) -> set[str]:
    """Names of the tensors around the layers, up to the last dot."""
    around = {key: part for key, part in spec.weights().items() if key != "layers"}
    return {s.name.rpartition(".")[0] + "." for _, w in walk(around) for s in w.sources}
