"""AWQ (Lin et al. 2023, https://arxiv.org/abs/2306.00978): large inputs get finer steps. Their weights are multiplied by a
scale, and their producer is divided by it: the norm before the product, or the rows of the product before it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from thalweg.models import spec as declared
from thalweg.models.weights import Source
from thalweg.quantize.layers import InputStats, Keys

RATIOS = tuple(i / 20 for i in range(21))
"""Powers of the mean magnitude of an input that its weights may be multiplied by."""
Round = Callable[[str, Tensor], Tensor]
"""A weight of this name, float32, as its format would hold it."""


@dataclass(frozen=True, slots=True)
class Fold:
    """A product with scalable inputs, and the producer of these inputs."""

    keys: Keys
    """Of its weight among the layer's parameters."""
    sources: tuple[Source, ...]
    vectors: tuple[str, ...] = ()
    """Tensors to divide: a norm's weight, and its bias. The first one makes the inputs."""
    offset: float = 0.0
    """Of the norm's weight."""
    rows: Source | None = None
    """Or: rows to divide, of a matrix and of its bias."""
    heads: tuple[int, int] | None = None
    """Of q, and of v: heads of v that several of q share, in which case their inputs are scaled alike."""


def folds(layer: declared.Layer, tree: Mapping[str, Any]) -> Iterator[Fold]:
    """Places in this layer for scales that leave its result unchanged."""
    mixer, ffn = layer.mixer, layer.ffn
    if isinstance(mixer, declared.Attention):
        yield from _after_norm(layer, tree, "mixer", "qkv")
        whole = tree["mixer"]["qkv"]["weight"].sources
        if len(whole) == 3 and not (mixer.norm is not None and mixer.norm.value):  # v is its own, and not normed afterwards
            yield Fold(("mixer", "out", "weight"), tree["mixer"]["out"]["weight"].sources, rows=whole[2],
                       heads=(mixer.heads, mixer.kv_heads))  # fmt: skip
    if isinstance(ffn, declared.MLP):
        yield from _after_norm(layer, tree, "ffn", "gate_up")
        up = tree["ffn"]["gate_up"]["weight"].sources[1]
        yield Fold(("ffn", "down", "weight"), tree["ffn"]["down"]["weight"].sources, rows=up)


def _after_norm(layer: declared.Layer, tree: Mapping[str, Any], part: str, product: str) -> Iterator[Fold]:
    """None where the norm's output goes elsewhere too."""
    norm = getattr(layer.norms, part)
    alone = part == "ffn" and norm is not None if layer.parallel else part == "ffn" or layer.laurel is None
    if norm is None or not alone:
        return
    names = tuple(w.sources[0].name for w in tree["norms"][part].values())
    yield Fold((part, product, "weight"), tree[part][product]["weight"].sources, names, getattr(norm, "offset", 0.0))


def apply(
    fold: Fold, weights: dict[str, Tensor], stats: Mapping[Keys, InputStats], stored: Mapping[str, torch.dtype], as_held: Round
) -> None:
    """Search the scales with the least loss, and fold them into the weights and the statistics. Vectors stay representable in
    the dtype of the files: the weights compensate for the rounding error of a vector."""
    seen = stats.get(fold.keys)
    if seen is None or not seen.rows:
        return
    parts = [s.name for s in fold.sources]
    scale = _search_scale(fold, {n: weights[n] for n in dict.fromkeys(parts)}, seen, as_held)
    if scale is None:
        return
    if fold.rows is not None:
        _divide_rows(fold.rows, weights, stored, _by_head(scale, fold.heads)[0])
    else:
        first = fold.vectors[0]
        before = weights[first] + fold.offset
        for name in fold.vectors:
            offset = fold.offset if name == first else 0.0
            weights[name] = ((weights[name] + offset) / scale - offset).to(stored[name]).float()
        after = weights[first] + fold.offset
        scale = torch.where((before != 0) & (after != 0), before / after, scale)
    for name in dict.fromkeys(parts):
        weights[name] = weights[name] * scale
    seen.rescale(scale)


def _search_scale(fold: Fold, weights: Mapping[str, Tensor], seen: InputStats, as_held: Round) -> Tensor | None:
    mean = (seen.magnitude / seen.rows).clamp(min=1e-6)
    mean = _by_head(mean, fold.heads)[1]
    least, best = float("inf"), None
    for ratio in RATIOS:
        scale = mean.pow(ratio).clamp(min=1e-4)
        scale = scale / (scale.max() * scale.min()).sqrt()
        lost = 0.0
        for name, w in weights.items():
            error = as_held(name, w * scale) / scale - w
            lost += float(((error @ seen.hessian) * error).sum())
        if lost < least:
            least, best = lost, (scale if ratio else None)
    return best


def _by_head(values: Tensor, heads: tuple[int, int] | None) -> tuple[Tensor, Tensor]:
    """One value for each row of v, and for each input of the product after attention: those of shared heads are their mean."""
    if heads is None:
        return values, values
    shared = values.reshape(heads[1], heads[0] // heads[1], -1).mean(1)
    return shared.reshape(-1), shared.repeat_interleave(heads[0] // heads[1], 0).reshape(-1)


def _divide_rows(source: Source, weights: dict[str, Tensor], stored: Mapping[str, torch.dtype], scale: Tensor) -> None:
    here = slice(source.first, source.first + source.shape[0])
    weights[source.name] = weights[source.name].clone()
    weights[source.name][here] /= scale[:, None]
    bias = f"{source.name.removesuffix('.weight')}.bias"
    if bias in weights:
        weights[bias] = weights[bias].clone()
        weights[bias][here] /= scale
        weights[bias] = weights[bias].to(stored[bias]).float()
