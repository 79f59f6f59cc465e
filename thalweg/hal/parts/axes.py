"""Positions along several axes: time, rows and columns of images and videos in a prompt (M-RoPE)."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from thalweg.hal.fields import Array, Part, dim


@dataclass(slots=True)
class Axes(Part):
    """Only steps have it in which some position differs from that in the sequence."""

    shift: Array = dim("T axes", np.int32)  # added to each token's position in its sequence, for each axis
