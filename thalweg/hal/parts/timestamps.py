"""Transcripts with pieces between two times: which tokens may come next."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from thalweg.hal.fields import Array, Part, dim


@dataclass(slots=True)
class Timestamps(Part):
    """Tokens from `begin` on are times, in order. The step looks back at the history of the rows that ask."""

    logits = True
    drafts = True
    begin: Array = dim("S", np.int32, fill=-1)  # the first time; -1 = off
    end: Array = dim("S", np.int32)  # the token that ends a transcript: those before it are text
    prompt_len: Array = dim("S", np.int32)  # positions at or beyond it are output
    latest: Array = dim("S", np.int32)  # steps after `begin` that the first time may be
