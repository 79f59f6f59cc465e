"""Bad words of several tokens."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from thalweg.hal.fields import Array, Part, dim


@dataclass(slots=True)
class BadWords(Part):
    """The last token of a word is banned where the history ends with the others."""

    logits = True
    drafts = True
    row: Array = dim("N", np.int32)  # row in S; -1 - i: the row before draft i of `Drafts.row`
    words: Array = dim("N <length", np.int32, fill=-1)  # -1 in front matches anything; no last token: nothing is banned
