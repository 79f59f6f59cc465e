"""The block pool against a model of plain dictionaries: who holds what, and which cached block goes first."""

import pytest
from amounts import some
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from thalweg.engine.control.cache.pool import MOST_KEPT, BlockPool
from thalweg.engine.control.invariant import InvariantError

TOTAL = 7


class PoolMachine(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.forgotten: list[int] = []
        self.now = 0.0
        self.pool = BlockPool(TOTAL, self.forgotten.append, lambda: self.now)
        self.until: dict[int, float] = {}
        self.kept: list[int] = []  # oldest release first
        self.holders: dict[int, int] = {}
        self.findable: set[int] = set()
        self.cached: list[int] = []  # oldest release first
        self.taken = {0}

    def free(self) -> set[int]:
        return set(range(1, TOTAL)) - self.holders.keys() - set(self.cached) - set(self.kept)

    def evict(self, block: int) -> None:
        """Cached blocks that may go next: one that was kept long enough, else the least recently released, else any kept one,
        whose order is that of test_kept_blocks.py."""
        over = {b for b in self.kept if self.until[b] <= self.now}
        wanted = over or set(self.cached[:1]) or set(self.kept)
        assert block in wanted, "not the least recently released block, or a kept one before its time"
        if block in self.kept:
            self.kept.remove(block)
            del self.until[block]
        else:
            self.cached.remove(block)

    def keep(self, block: int) -> None:
        if block not in self.kept:
            self.kept.append(block)
        for other in set(self.kept) - set(self.pool._kept):  # it is kept no longer, so that this one is
            self.kept.remove(other)
            del self.until[other]
            self.cached.append(other)
        assert len(self.kept) <= int(MOST_KEPT * TOTAL)

    @precondition(lambda self: self.findable)
    @rule(data=st.data(), seconds=st.integers(1, 5))
    def retain(self, data, seconds) -> None:
        block = data.draw(st.sampled_from(sorted(self.findable)))
        self.pool.retain(block, self.now + seconds)
        if self.now + seconds <= self.until.get(block, 0):
            return
        self.until[block] = self.now + seconds
        if block in self.cached:
            self.cached.remove(block)
            self.keep(block)
        elif block in self.kept:
            self.keep(block)

    @rule(seconds=st.integers(1, 4))
    def wait(self, seconds) -> None:
        self.now += seconds

    @precondition(lambda self: len(self.holders) < TOTAL - 1)
    @rule()
    def take(self) -> None:
        free, before = self.free(), len(self.forgotten)
        block = self.pool.take()
        if free:
            assert block in free
            assert len(self.forgotten) == before
        else:
            self.evict(block)
            assert self.forgotten[before:] == [block]
            self.findable.discard(block)
        self.holders[block] = 1
        self.taken.add(block)

    @precondition(lambda self: self.holders)
    @rule(data=st.data())
    def release(self, data) -> None:
        block = data.draw(st.sampled_from(sorted(self.holders)))
        self.pool.release(block)
        self.holders[block] -= 1
        if not self.holders[block]:
            del self.holders[block]
            if block in self.findable:
                self.keep(block) if block in self.until else self.cached.append(block)

    @precondition(lambda self: self.holders)
    @rule(data=st.data())
    def tag(self, data) -> None:
        block = data.draw(st.sampled_from(sorted(self.holders)))
        self.pool.tag(block)
        self.findable.add(block)

    @precondition(lambda self: self.findable)
    @rule(data=st.data())
    def share(self, data) -> None:
        block = data.draw(st.sampled_from(sorted(self.findable)))
        self.pool.share(block)
        if block in self.cached:
            self.cached.remove(block)
        if block in self.kept:
            self.kept.remove(block)
        self.holders[block] = self.holders.get(block, 0) + 1

    @rule()
    def untag_all(self) -> None:
        self.pool.untag_all()
        for emptied in (self.findable, self.cached, self.kept, self.until):
            emptied.clear()

    @rule(data=st.data())
    def misuse_is_refused(self, data) -> None:
        block = data.draw(st.integers(0, TOTAL - 1))
        if block not in self.holders:
            with pytest.raises(InvariantError):
                self.pool.release(block)
            with pytest.raises(InvariantError):
                self.pool.tag(block)
            if block not in self.cached + self.kept:
                with pytest.raises(InvariantError):
                    self.pool.share(block)

    @invariant()
    def books_balance(self) -> None:
        self.pool.check(self.holders)
        assert self.pool.available == TOTAL - 1 - len(self.holders)
        assert self.pool.blocks_held == len(self.holders)
        assert self.pool.reached == max(self.taken) + 1


TestPoolMachine = PoolMachine.TestCase
TestPoolMachine.settings = settings(max_examples=some(20, 60), stateful_step_count=40, deadline=None)


def test_check_names_a_lost_block():
    pool = BlockPool(4)
    pool.take()
    with pytest.raises(InvariantError, match="reference count"):
        pool.check({})


def test_withheld_blocks_are_not_available():
    pool = BlockPool(5)
    pool.withheld = 3
    assert pool.available == 1
    pool.withheld = 9
    assert pool.available == 0


def test_a_pool_without_a_usable_block_is_refused():
    with pytest.raises(ValueError, match="at least 2"):
        BlockPool(1)
