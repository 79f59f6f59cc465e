"""The checked result of a request to a pooling model: its tokens, its size, and its activation."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from thalweg.config import PoolingConfig
from thalweg.engine.ipc.codec import MAX_FRAME
from thalweg.errors import RequestError
from thalweg.params import TOKEN_TASKS, PoolingParams

STEP_BYTES = MAX_FRAME // 2
"""Most bytes of results per token in one step: they are sent in one frame."""


@dataclass(frozen=True, slots=True)
class PoolShape:
    """The mapping of the engine's numbers to the caller's."""

    activation: str
    """As `PoolingConfig` has it."""
    size: int | None = None
    """The first so many numbers count; None: all."""
    each: bool = False
    """Is there a result per token?"""
    columns: tuple[int, ...] = ()
    """Columns of the result to return. (): all."""
    step_tag: int | None = None
    """Return only results of tokens with this id. None: all tokens."""


def pool_shape(pooling: PoolingConfig, params: PoolingParams, budget: int) -> PoolShape:
    """RequestError, naming the field, for parameters that the model does not support. budget: most tokens of a step."""
    each = pooling.each or params.task in TOKEN_TASKS
    size = _size(pooling, params.dimensions)
    activate = pooling.activate if params.use_activation is None else params.use_activation
    activation = pooling.activation if activate else "none"
    if not each:
        for name in ("step_tag_id", "returned_token_ids", "late_interaction_params"):
            if getattr(params, name) is not None:
                words = f"{name}: it is for results per token; use task token_classify or token_embed, or omit it"
                raise RequestError(words, name)
        return PoolShape(activation, size)
    if 4 * budget * pooling.size > STEP_BYTES:
        most = STEP_BYTES // (4 * pooling.size)
        raise RequestError(
            f"task: {pooling.size} numbers per token of a step of {budget} tokens are too many at once; start the engine with "
            f"--max-num-batched-tokens {most} or less",
            "task",
        )
    if params.late_interaction_params is not None and pooling.task != "embed":
        raise RequestError(
            "late_interaction_params: this model's tokens have classes, not vectors; omit it", "late_interaction_params"
        )
    columns = tuple(params.returned_token_ids or pooling.columns)
    if any(c >= (size or pooling.size) for c in columns):
        raise RequestError(f"returned_token_ids: a token has {size or pooling.size} numbers, from 0", "returned_token_ids")
    tag = pooling.step_tag if params.step_tag_id is None else params.step_tag_id
    return PoolShape(activation, size, True, columns, tag)


def apply_pool_shape(result: np.ndarray, shape: PoolShape, tokens: Sequence[int]) -> np.ndarray:
    """The engine's result, f32[N] or per token f32[tokens, N], in the caller's shape."""
    if shape.size is not None:
        result = result[..., : shape.size]
    if shape.columns:
        result = result[..., list(shape.columns)]
    if shape.step_tag is not None:
        result = result[np.array(tokens, np.int64) == shape.step_tag]
    return apply_activation(result, shape.activation)


SMALLEST = 1e-12
"""Lengths below this count as this, as in the published implementations: a vector of zeros stays one."""


def apply_activation(x: np.ndarray, activation: str) -> np.ndarray:
    """x f32[..., N] -> f32[..., N], a row at a time. activation: as `PoolingConfig` has it."""
    if activation == "none" or not x.size:
        return np.ascontiguousarray(x, np.float32)
    wide = x.astype(np.float64)
    if activation == "normalise":
        wide = wide / np.maximum(np.linalg.norm(wide, axis=-1, keepdims=True), SMALLEST)
    elif activation == "sigmoid":
        small = np.exp(-np.abs(wide))
        wide = np.where(wide >= 0, 1, small) / (1 + small)
    else:
        wide = np.exp(wide - wide.max(-1, keepdims=True))
        wide = wide / wide.sum(-1, keepdims=True)
    out: np.ndarray = wide.astype(np.float32)
    return out


def token_types(types: Any, length: int, known: int) -> np.ndarray:
    """token_type_ids, checked: i32[length]."""
    name = "token_type_ids"
    if isinstance(types, np.ndarray):
        types = types.tolist()
    if not isinstance(types, Sequence) or isinstance(types, str | bytes) or not all(type(t) is int for t in types):
        raise RequestError(f"{name} must be a list of integers", name)
    if len(types) != length:
        raise RequestError(f"{name}: {len(types)} given for {length} tokens", name)
    if not all(0 <= t < known for t in types):
        raise RequestError(f"{name}: this model knows the types 0 to {known - 1}", name)
    return np.array(types, np.int32)


def _size(pooling: PoolingConfig, requested: int | None) -> int | None:
    """How many numbers of a result count; None: all."""
    if requested is None:
        return None
    if pooling.task != "embed":
        raise RequestError("dimensions: this model gives classes, not vectors; omit it", "dimensions")
    sizes = pooling.dimensions
    if requested == pooling.size:
        return None
    if sizes is None:
        raise RequestError(
            f"dimensions: this model's vectors have {pooling.size} values, not {requested}: its files name no other size "
            "that it was trained for (is_matryoshka, matryoshka_dimensions); omit it",
            "dimensions",
        )
    if sizes and requested not in sizes:
        raise RequestError(f"dimensions: this model's vectors have {_or(sizes)} values, not {requested}", "dimensions")
    if requested > pooling.size:
        raise RequestError(f"dimensions: this model's vectors have {pooling.size} values, not {requested}", "dimensions")
    return requested


def _or(sizes: Sequence[int]) -> str:
    return " or ".join(filter(None, (", ".join(map(str, sizes[:-1])), str(sizes[-1]))))
