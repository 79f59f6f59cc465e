"""Encoders beside and between steps: who waits for them, and who does not. Tokens are compared with the oracle throughout."""

from __future__ import annotations

from collections.abc import Sequence
from types import SimpleNamespace

import numpy as np
import pytest
from world import World, make_config

from thalweg.engine.control.encodings import Encodings
from thalweg.engine.messages import EngineRequest, Input, TokenSampling
from thalweg.hal.parts.overlays import Overlays
from thalweg.hal.step import StepResult

LAYERS, WIDTH = 5, 3


class FakePending:
    """Ready after it was looked at so many times, or when it is waited for."""

    def __init__(self, looks: int) -> None:
        self.looks = looks

    def ready(self) -> bool:
        self.looks -= 1
        return self.looks < 0

    def result(self) -> StepResult:
        self.looks = -1
        return SimpleNamespace()  # type: ignore[return-value]


class FakeEncoding:
    def __init__(self, encoder: FakeEncoder, items: Sequence[Input]) -> None:
        self.items, self.layers_left, self._encoder = items, LAYERS, encoder

    def launch(self, layers: int) -> FakePending:
        taken = self.layers_left if self._encoder.beside else min(layers, self.layers_left)
        self.layers_left -= taken
        self._encoder.launches.append(taken)
        return FakePending(self._encoder.looks)

    def vectors(self, last: FakePending) -> list[np.ndarray]:
        assert self.layers_left == 0
        return [np.full((item.positions.size, WIDTH), item.digest[0], np.float32) for item in self.items]


class FakeEncoder:
    def __init__(self, beside: bool, looks: int = 0) -> None:
        self.beside, self.looks = beside, looks
        self.begun: list[list[bytes]] = []
        self.launches: list[int] = []

    def takes(self, item: Input) -> bool:
        return True

    def begin(self, waiting: Sequence[Input]) -> FakeEncoding:
        self.begun.append([item.digest for item in waiting])
        return FakeEncoding(self, list(waiting))


def item(digest: int, first: int, end: int) -> Input:
    return Input(kind="image", digest=bytes([digest]), positions=np.arange(first, end, dtype=np.int32))


def shows(handle: int, prompt: int, *items: tuple[int, int, int], tokens: int = 3) -> EngineRequest:
    """items: a digest's only byte, and the placeholders [first, end)."""
    return EngineRequest(
        handle=handle, tokens=np.arange(prompt, dtype=np.int32) % 60, prompt_len=prompt,
        sampling=TokenSampling(max_tokens=tokens), inputs=tuple(item(d, a, b) for d, a, b in items),
    )  # fmt: skip


def world(encoder: FakeEncoder, **config: int) -> World:
    w = World(make_config(**config), encoder=encoder)
    w.batch_log = []
    return w


@pytest.mark.parametrize("beside", [True, False])
def test_a_stream_goes_on_while_an_image_is_encoded(beside: bool) -> None:
    encoder = FakeEncoder(beside, looks=12)
    w = world(encoder)
    w.submit(shows(1, 4, tokens=40))
    for _ in range(3):
        w.step()
    w.submit(shows(2, 10, (7, 2, 8)))
    before = w.tracked[1].got
    while not w.tracked[2].got:
        w.step()
    assert w.tracked[1].got - before >= 10  # one token for each look at least
    w.drain()
    assert encoder.begun == [[bytes([7])]]


@pytest.mark.parametrize("beside", [True, False])
def test_images_of_one_prompt_are_encoded_together_and_once(beside: bool) -> None:
    encoder = FakeEncoder(beside)
    w = world(encoder)
    w.submit(shows(1, 30, (1, 2, 6), (2, 10, 14), (1, 20, 24)))
    w.drain()
    w.submit(shows(2, 31, (2, 3, 7)))
    w.drain()
    assert encoder.begun == [[bytes([1]), bytes([2])]]
    assert sum(encoder.launches) == LAYERS


def test_tokens_before_an_image_do_not_wait_for_it_and_those_behind_do() -> None:
    encoder = FakeEncoder(True, looks=6)
    w = world(encoder)
    w.submit(shows(1, 20, (9, 12, 16)))
    w.drain()
    first, *others = (b for b in w.batch_log or [] if b.tokens.size > 1)
    assert first.tokens.size == 12
    assert first.get(Overlays) is None
    (overlays,) = [part for b in others if (part := b.get(Overlays)) is not None]
    assert (overlays.vector == 9).all()
    assert overlays.pick.tolist()[:5] == [0, 1, 2, 3, -1]


def test_a_request_that_waits_for_an_encoder_lets_others_pass() -> None:
    encoder = FakeEncoder(True, looks=50)
    w = world(encoder, max_seqs=2)
    w.submit(shows(1, 8, (9, 0, 4)))
    w.submit(shows(2, 4))
    while w.tracked[2].finished is None:
        w.step()
    assert w.tracked[1].got == 0
    w.drain()


def test_nothing_is_encoded_for_requests_that_have_ended() -> None:
    encoder = FakeEncoder(True, looks=5)
    w = world(encoder)
    w.submit(shows(1, 8, (1, 0, 4)))
    w.step()
    w.submit(shows(2, 8, (2, 0, 4)))
    w.step()
    w.abort(2)
    w.drain()
    assert encoder.begun == [[bytes([1])]]


def test_vectors_are_held_for_requests_that_wait_and_kept_within_a_budget() -> None:
    encoder = FakeEncoder(True)
    items = [item(d, 0, 4) for d in range(1, 5)]
    made = Encodings(encoder, lambda: 0.0, budget=2 * 4 * WIDTH * 4)  # of two items
    assert [made.find(each) for each in items] == [None] * 4
    made.advance(None, wait=True)
    made.advance(None, wait=True)
    assert all(made.find(each) is not None for each in items)
    made.forget(set())
    assert [made.find(each) is not None for each in items] == [False, False, True, True]
    assert len(encoder.begun) == 1


def test_layers_of_a_launch_follow_from_the_time_that_layers_take() -> None:
    now = [0.0]

    class Slow(FakeEncoding):
        def launch(self, layers: int) -> FakePending:
            pending = super().launch(layers)
            now[0] += 0.01 * encoder.launches[-1]
            return pending

    encoder = FakeEncoder(False)
    encoder.begin = lambda waiting: Slow(encoder, list(waiting))  # type: ignore[method-assign]
    made = Encodings(encoder, lambda: now[0], 1 << 20)
    made.find(item(1, 0, 4))
    assert made.advance(0, wait=False) == 0
    assert encoder.launches == []
    while made.busy:
        made.advance(0.025, wait=False)
    assert encoder.launches == [1, 2, 2]


@pytest.mark.parametrize("beside", [True, False])
def test_an_item_that_cannot_be_prepared_ends_its_own_requests_only(beside: bool) -> None:
    class Faulty(FakeEncoder):
        def begin(self, waiting: Sequence[Input]) -> FakeEncoding:
            if any(i.digest == b"\2" for i in waiting):
                raise ValueError("a fault of a package")
            return super().begin(waiting)

    w = World(make_config(vocab=61, max_len=64, blocks=60), encoder=Faulty(beside))
    for handle, digest in enumerate((1, 2, 3, 2)):
        w.submit(shows(handle, 12, (digest, 2, 6)))
    said = dict[int, tuple[str, str]]()
    for _ in range(200):
        out = w.core.step() if w.core.has_work else None
        said |= {f.handle: (f.reason, f.error) for f in (out.finished if out is not None else ())}
    assert [said[handle][0] for handle in range(4)] == ["length", "error", "length", "error"]
    assert "image: the item cannot be prepared for its encoder: ValueError: a fault of a package" in said[1][1]
    w.core.check()
