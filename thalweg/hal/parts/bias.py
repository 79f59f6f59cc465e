"""Values added to logits: logit_bias, bad words of one token, stop ids before min_tokens."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from thalweg.hal.fields import Array, Part, dim


@dataclass(slots=True)
class Bias(Part):
    logits = True
    drafts = True
    row: Array = dim("N", np.int32)  # row in S; -1 - i: the row before draft i of `Drafts.row`
    token: Array = dim("N", np.int32)
    value: Array = dim("N", np.float32)  # added to the logit; -inf bans
