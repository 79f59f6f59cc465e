"""The adapter of each sequence."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from thalweg.hal.fields import Array, Part, dim


@dataclass(slots=True)
class Adapters(Part):
    """A step without it adapts no sequence, and costs no more than a step of a model without adapters.

    level: 1 if an adapter of the step changes more than products of linear layers (`models.adapters.EXTENDED`)."""

    slot: Array = dim("S", np.int32)  # where the sequence's adapter lies in the state; 0 = it has none
