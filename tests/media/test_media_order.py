"""Kinds of media that share a placeholder or a marker: every item gets its own places, or the request is refused."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from thalweg.engine.client.media import MediaPreprocessor, ModelMedia
from thalweg.engine.messages import Input
from thalweg.errors import RequestError
from thalweg.media.kinds.base import MediaItem, MediaReader, MediaSource

TOKEN, TEXT = 7, 1


class Counted(MediaReader):
    """An item is its number of placeholders, and has one input."""

    def read(self, source: MediaSource, data: bytes) -> int:
        return len(data)

    def count(self, value: int) -> int:
        return value

    def write_text(self, value: int, token_of: Callable[[int], str]) -> str:
        return token_of(TOKEN) * value

    def make_inputs(self, value: int, positions: np.ndarray) -> list[Input]:
        return [Input(kind="", digest=b"%d" % value, positions=positions)]


def media(**markers: str) -> MediaPreprocessor:
    made = MediaPreprocessor({}, SimpleNamespace(token_of=lambda token: "#"), None)  # type: ignore[arg-type]
    for name, marker in markers.items():
        kind: Any = SimpleNamespace(name=name, plural=f"{name}s")
        made._taken[name] = ModelMedia(kind, Counted(), TOKEN, "#", marker, 16)
    return made


ITEMS = [MediaItem("film", 3), MediaItem("still", 2), MediaItem("film", 1)]


@pytest.mark.parametrize("markers", [{"still": "[s]", "film": "[f]"}, {"still": "[m]", "film": "[m]"}])
def test_items_that_share_a_token_get_their_places_in_order(markers: dict[str, str]) -> None:
    made = media(**markers)
    text, _ = made.expand(ITEMS)("a" + "b".join(markers[item.kind] for item in ITEMS), [])
    assert text == "a###b##b#"
    inputs = made.inputs([TOKEN if c == "#" else TEXT for c in text], ITEMS, 1)
    assert {item.digest: item.positions.tolist() for item in inputs} == {b"3": [1, 2, 3], b"2": [5, 6], b"1": [8]}


def test_a_template_that_changes_their_order_is_refused() -> None:
    made = media(still="[s]", film="[f]")
    with pytest.raises(RequestError, match="the chat template changes the order of stills and films"):
        made.expand(ITEMS)("[s][f][f]", [])
    with pytest.raises(RequestError, match="shows 1 of 2 films"):
        made.expand(ITEMS)("[f][s]", [])
