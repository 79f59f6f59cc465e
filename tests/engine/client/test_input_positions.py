"""Inputs that a reader of media makes: only placeholders of the item may have its vectors."""

from __future__ import annotations

import numpy as np
import pytest

from thalweg.engine.client.media import check_inputs
from thalweg.engine.messages import Input


def make_input(positions: object) -> Input:
    return Input(kind="clip", digest=b"1", positions=positions)  # type: ignore[arg-type]


def test_frames_may_divide_the_placeholders() -> None:
    frames = [make_input(np.array([4, 5], np.int32)), make_input(np.array([8], np.int32))]
    assert check_inputs("clip", frames, np.array([4, 5, 8])) is frames


@pytest.mark.parametrize("positions", [[], [3], [4, 1000], [-1], [4.0], [[4, 5]]])
def test_other_positions_are_an_error_before_the_engine(positions: list[object]) -> None:
    with pytest.raises(ValueError, match="media kind clip: make_inputs"):
        check_inputs("clip", [make_input(np.array(positions))], np.array([4, 5, 8]))
