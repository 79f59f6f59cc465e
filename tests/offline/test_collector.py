"""What is imported or loaded is walked by no collection, and what was collected or frozen before is so afterwards."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Iterator

import pytest

from thalweg.host.collector import pause_gc


class Node:
    def __init__(self) -> None:
        self.me = self


@pytest.fixture(autouse=True)
def as_it_was() -> Iterator[None]:
    """Other tests may have turned it off, and leave millions of young objects."""
    enabled, frozen = gc.isenabled(), gc.get_freeze_count()
    gc.freeze()
    gc.unfreeze()
    gc.enable()
    yield
    if frozen:
        gc.freeze()
    if not enabled:
        gc.disable()


@pytest.mark.slow
def test_nothing_is_walked_meanwhile_nor_in_the_next_young_collection() -> None:
    walks = []
    gc.callbacks.append(lambda phase, info: walks.append(info["generation"]) if phase == "start" else None)
    try:
        with pause_gc():
            made = [Node() for _ in range(20000)]
            del made[10000:]
        assert not walks
        assert len(gc.get_objects(generation=0)) < 1000
        assert sum(isinstance(x, Node) for x in gc.get_objects(generation=2)) == 20000
    finally:
        gc.callbacks.pop()
    assert gc.isenabled()


@pytest.mark.slow
def test_garbage_is_found_later() -> None:
    with pause_gc():
        node = Node()
        gone = weakref.ref(node)
        del node
    gc.collect()
    assert gone() is None


def test_one_within_another_and_one_where_it_was_off_leave_it_so() -> None:
    with pause_gc():
        with pause_gc():
            pass
        assert not gc.isenabled()
    gc.disable()
    with pause_gc():
        pass
    assert not gc.isenabled()


@pytest.mark.slow
def test_what_others_froze_stays_frozen_and_an_error_turns_it_on_again() -> None:
    gc.freeze()
    with pytest.raises(KeyError), pause_gc():
        raise KeyError
    assert gc.get_freeze_count()
    assert gc.isenabled()
