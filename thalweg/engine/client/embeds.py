"""Prompts as embeddings (`prompt_embeds`): checked, and turned into an input over placeholder tokens."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from typing import Any

import numpy as np

from thalweg.engine.messages import Input
from thalweg.errors import RequestError
from thalweg.params import SamplingParams

NAME, IDS, MASK = "prompt_embeds", "prompt_token_ids", "prompt_is_token_ids"
MOST_BYTES = 128 << 20
"""Bytes of vectors that a request may send to an engine process, all its choices together."""
PLACEHOLDER = 0
"""Token id at a vector's position, where the prompt names no id to report back."""


def read(fields: Mapping[str, Any], hidden: int) -> tuple[Input | None, dict[str, Any]]:
    """(input, rest) of a prompt with vectors [tokens, hidden], of numpy or torch, in any float type. rest: its ids and other
    fields. None as input: every position is a token. RequestError."""
    vectors = _vectors(fields[NAME], hidden)
    rest = {k: v for k, v in fields.items() if k not in (NAME, MASK) and v is not None}
    ids, mask = rest.get(IDS), fields.get(MASK)
    if ids is None and mask is not None:
        raise RequestError(f"{MASK}: says which of prompt_token_ids are tokens; send them too", MASK)
    for name, given in ((IDS, ids), (MASK, mask)):
        if given is not None and (not hasattr(given, "__len__") or len(given) != len(vectors)):
            raise RequestError(f"{name}: there must be one for each of the {len(vectors)} vectors of {NAME}", name)
    tokens = np.zeros(len(vectors), bool) if mask is None else np.asarray(mask)
    if tokens.dtype != bool:
        raise RequestError(f"{MASK} must hold true and false", MASK)
    at = np.flatnonzero(~tokens).astype(np.int32)
    return _input(at, vectors[at]), {**rest, IDS: [PLACEHOLDER] * len(vectors) if ids is None else ids}


def _vectors(given: Any, hidden: int) -> np.ndarray:
    if hasattr(given, "detach"):  # a tensor of torch, which is not imported here
        given = given.detach().float().cpu().numpy()
    if not isinstance(given, np.ndarray) or given.dtype.kind != "f":
        raise RequestError(f"{NAME} must be an array or tensor of floats, not {type(given).__name__}", NAME)
    if given.ndim != 2 or given.shape[1] != hidden:
        shown = " x ".join(map(str, given.shape))
        raise RequestError(f"{NAME}: the shape is {shown}, and must be tokens x {hidden}, the model's hidden size", NAME)
    vectors = np.ascontiguousarray(given, np.float32)
    if not np.isfinite(vectors).all():
        raise RequestError(f"{NAME} has NaN or inf values", NAME)
    return vectors


def _input(positions: np.ndarray, vectors: np.ndarray) -> Input | None:
    if not positions.size:
        return None
    digest = hashlib.blake2b(repr((NAME, vectors.shape)).encode(), digest_size=24)
    digest.update(positions.tobytes())
    digest.update(vectors.tobytes())
    return Input(kind="embeds", digest=digest.digest(), positions=positions, vectors=vectors)


def check(params: SamplingParams, item: Input | None) -> None:
    """RequestError for more bytes than the limit, and for parameters that read the tokens of a prompt."""
    size = 0 if item is None or item.vectors is None else item.vectors.nbytes
    if size * params.n > MOST_BYTES:
        raise RequestError(
            f"{NAME}: {params.n} choices of a prompt of {size} bytes are more than {MOST_BYTES} bytes: "
            "send a shorter one, or ask for fewer choices at once",
            NAME,
        )
    reads = {
        "prompt_logprobs": params.prompt_logprobs is not None,
        "repetition_penalty": params.repetition_penalty != 1,
    }
    for name, requested in reads.items():
        if requested:
            raise RequestError(f"{name}: a prompt of embeddings has no tokens to look at; omit it", name)
