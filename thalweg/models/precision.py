"""Which matrices of a model need more bits than others where weights are rounded, found from its spec. Loads no tensor
framework.

`int4` of a narrow model has as many bytes as GGUF's Q4_K_M of that model in memory. Matrices get 8 bits in the order of what
a byte gains there (PARTS), as long as there is room. Those that are integers of 4 to 6 bits already (`quantization.grids`) keep
their bits.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from math import prod
from typing import Any

from thalweg.hal.weights import WeightFormat
from thalweg.models.spec import ModelSpec
from thalweg.models.weights import HEADS, Weight, walk
from thalweg.quantization import grids, registry
from thalweg.quantization.format import Scheme
from thalweg.quantization.online import NARROW, Formats, fine_format

PARTS = ("values", "down", "keys", "up", "gate", "queries", "other")
"""Matrices inside layers, by the perplexity that a byte more gains, measured with Gemma-3-270m."""
ALWAYS = ("values", "down")
"""Have more bits whatever that takes: their errors reach the residual stream with nothing but a sum between."""
QKV = ("queries", "keys", "values")
SUPERBLOCK = 256
"""Inputs of a block of llama.cpp's formats "K". Rows of no multiple have the older formats, with more bits."""
BITS = {True: (5.5, 9.0), False: (6.0, 8.5)}
"""Are rows whole blocks? -> bits that the CPU's kernels hold of a weight in Q4_K and Q6_K, or else in Q5_0 and Q8_0."""


@dataclass(frozen=True, slots=True)
class _Matrix:
    """A tensor of the checkpoint inside a layer. part: one of PARTS, the last of those joined in it."""

    name: str
    part: str
    layer: int
    shape: tuple[int, int]


def model_scheme(config: Mapping[str, Any], method: str | None, spec: ModelSpec) -> Scheme:
    """The formats of this model's weights, as `registry.scheme` has them, which also raises its errors."""
    use = registry.scheme(config, method)
    if not isinstance(use, Formats) or not use.mixes or spec.hidden >= NARROW:
        return use
    on_grids: Mapping[str, tuple[int, int]] = config.get(grids.NAMES, {})
    use = use.narrow(name for name, (bits, _) in on_grids.items() if bits != grids.FINE)
    groups = {name: group for name, (bits, group) in on_grids.items() if bits == grids.FINE}
    chosen = dict(_choose_wider(spec, use, groups))
    fine = {g: frozenset(n for n, group in chosen.items() if group == g) for g in grids.FINE_GROUPS}
    return replace(use, sensitive=frozenset(n for n, group in chosen.items() if not group), fine=fine)


def _choose_wider(spec: ModelSpec, use: Formats, groups: Mapping[str, int]) -> Iterator[tuple[str, int]]:
    """(name, 0) of the matrices to hold like the output matrix, and (name, group) of those to hold on their grid of 6 bits,
    which come first: they lose nothing, and cost less. groups: of the matrices on such grids. Of others, layers near both ends
    come first."""
    found = [m for m in _list_matrices(spec) if m.name not in use.exact]
    room = _count_room(spec, use)
    last = len(spec.layers) - 1
    order = sorted(found, key=lambda m: (m.name not in groups, PARTS.index(m.part), min(m.layer, last - m.layer), m.layer))
    full = False
    for m in order:
        group = groups.get(m.name, 0)
        cost = _count_bytes(fine_format(group) if group else use.head, *m.shape) - _count_bytes(
            use.of("linear", m.name), *m.shape
        )
        full = full or cost > room
        if m.part in ALWAYS or not full:
            room -= cost
            yield m.name, group


def _count_room(spec: ModelSpec, use: Formats) -> float:
    """Bytes that Q4_K_M of these matrices takes, less those of the narrower formats."""
    room = 0.0
    for m in _list_matrices(spec):
        few, many = BITS[m.shape[1] % SUPERBLOCK == 0]
        bits = (few + many) / 2 if m.part in ALWAYS else few  # half of the layers have more there
        room += bits * prod(m.shape) / 8 - _count_bytes(use.of("linear", m.name), *m.shape)
    for _, weight in walk(spec.weights()):
        if weight.role in HEADS:
            rows, columns = weight.shape(1)
            bits = BITS[columns % SUPERBLOCK == 0][1]
            room += bits * rows * columns / 8 - _count_bytes(use.head, rows, columns)
    return room


def _list_matrices(spec: ModelSpec) -> Iterable[_Matrix]:
    """Those of linear layers, once each. Experts are not among them."""
    found: dict[str, _Matrix] = {}
    for keys, weight in walk(spec.weights()):
        if keys[0] == "layers" and weight.role == "linear" and len(weight.shape(1)) == 2:
            for source, part in zip(weight.sources, _name_parts(str(keys[-2]), weight), strict=True):
                rows, columns = source.shape
                other = found.get(source.name)
                if other is not None:  # one tensor has several parts
                    rows, part = rows + other.shape[0], max(part, other.part, key=PARTS.index)
                found[source.name] = _Matrix(source.name, part, int(keys[1]), (rows, columns))
    return found.values()


def _name_parts(key: str, weight: Weight) -> list[str]:
    """The part that each source of a linear layer is. key: of the layer's weight in its spec."""
    count = len(weight.sources)
    if key == "qkv" and count >= len(QKV):
        return [*QKV, *["other"] * (count - len(QKV))]
    if key == "gate_up" and count == 2:
        return ["gate", "up"]
    return [key if key in ("down", "up") else "other"] * count


def _count_bytes(form: WeightFormat, rows: int, columns: int) -> float:
    """Of a matrix, as kernels of the CPU hold it: groups have a scale of 16 bits and what they subtract, rows a scale and a sum
    of 32 each."""
    if not form.group:
        return rows * (form.bits * columns / 8 + 8)
    shift = 0 if form.symmetric else 16 if form.sixteenths else 32 if form.mins else 8
    return rows * columns * ((form.code_bits or form.bits) + (16 + shift) / form.group) / 8
