"""Prompts of prefix LMs, whose tokens all attend to each other (Raffel et al. 2019, https://arxiv.org/abs/1910.10683)."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence

import numpy as np

from thalweg.engine.messages import Input

KIND = "prompt"


def make_prefix(tokens: np.ndarray, inputs: Sequence[Input] = ()) -> Input:
    """The input that the engine computes a prompt in one step for. tokens: i32[N], of the prompt. inputs: its others."""
    digest = hashlib.blake2b(tokens.astype(np.int64).tobytes(), digest_size=16)
    for item in inputs:
        digest.update(item.digest)
    return Input(
        kind=KIND, digest=digest.digest(), positions=np.zeros(0, np.int32), bidirectional=True, prefix=tokens.size,
        prefix_digest=digest.digest(),
    )  # fmt: skip
