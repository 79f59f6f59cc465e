"""Groups of every kind and size, on the hash model: what is held, where prefixes are found, and what a cache is made of."""

from __future__ import annotations

import numpy as np
import pytest
from world import World, make_config

from thalweg.config import EngineArgs
from thalweg.engine.control.cache.groups import POLICIES, policy
from thalweg.engine.control.cache.groups.base import GroupContext
from thalweg.engine.control.cache.groups.chunked import Chunked
from thalweg.engine.control.cache.prefix import PrefixCache
from thalweg.engine.control.cache.tables import KVCache
from thalweg.engine.messages import EngineRequest, TokenSampling
from thalweg.engine.planning import resolve
from thalweg.errors import ConfigError
from thalweg.hal.kv import KVSpec

STATE = -1


def ask(w: World, handle: int, prompt, max_tokens: int = 1, **own) -> None:
    tokens = np.array(prompt, np.int32)
    sampling = TokenSampling(max_tokens=max_tokens)
    w.submit(EngineRequest(handle=handle, tokens=tokens, prompt_len=tokens.size, sampling=sampling, **own))


def world(**config) -> World:
    w = World(make_config(**({"max_len": 128, "blocks": 60} | config)), poison=True)
    w.batch_log = []
    return w


def found(w: World, prompt, max_tokens: int = 1) -> int:
    """How many tokens of a prompt come from the cache, when it is asked next."""
    before = w.core.stats().prefix_hits
    ask(w, max(w.tracked, default=-1) + 1, prompt, max_tokens)
    w.drain()
    return w.core.stats().prefix_hits - before


# ---------------------------------------------------------------- recurrent state


def test_a_chunk_ends_where_a_state_can_be_found_again():
    w = world(windows=(0, STATE), block_tokens=(4, 16), max_tokens=64)
    ask(w, 0, range(40))
    w.drain()
    assert [b.query.tolist() for b in w.batch_log] == [[32], [8]]
    assert found(w, range(40)) == 32
    assert found(w, [*range(33), 9]) == 32


def test_a_prefix_is_found_only_where_every_state_group_has_a_snapshot():
    w = world(windows=(0, STATE), block_tokens=(4, 16), max_tokens=64)
    assert found(w, range(40)) == 0
    assert found(w, [*range(24), 9]) == 0  # keys and values of 24 tokens are there, the state after 16 is not
    w = world(windows=(0, STATE), block_tokens=(4, 16), max_tokens=16)
    assert found(w, range(40)) == 0
    assert found(w, [*range(24), 9]) == 16


def test_two_state_groups_are_found_at_common_multiples():
    w = world(windows=(STATE, STATE), block_tokens=(8, 12), max_tokens=64)
    assert found(w, range(60)) == 0
    assert found(w, range(60)) == 48


def test_snapshots_are_taken_while_decoding_too():
    w = world(windows=(STATE,), block_tokens=8, depth=2)
    ask(w, 0, range(10), 30)
    w.drain()
    said = [*range(10), *w.tracked[0].tokens]
    assert found(w, [*said, 1, 2]) == 32  # of 40 tokens the last never entered the cache, so the state after them is not known


@pytest.mark.parametrize(("depth", "most"), [(1, 1), (3, 2)])
def test_a_running_sequence_holds_one_live_block_and_a_snapshot_until_it_has_returned(depth, most):
    w = world(windows=(0, STATE), block_tokens=(4, 8), depth=depth)
    ask(w, 0, range(5), 40)
    held = []
    while w.core.has_work:
        w.step()
        held.append(w.core.kv.groups[1].pool.blocks_held)
    assert set(held[:-1]) == set(range(1, most + 1))
    assert found(w, [*range(5), *w.tracked[0].tokens, 1]) == 40
    w.idle()


@pytest.mark.parametrize("depth", [1, 2, 3])
def test_sequences_of_one_prefix_go_on_from_one_snapshot_and_write_to_blocks_of_their_own(depth):
    w = world(windows=(STATE, 0), block_tokens=(8, 4), depth=depth, max_seqs=6, blocks=(20, 90))
    assert found(w, range(20)) == 0
    for h in range(1, 6):
        ask(w, h, [*range(17), h], 12)
    w.drain()
    assert w.core.stats().prefix_hits == 5 * 16


def test_a_preempted_sequence_goes_on_from_its_snapshots():
    w = world(windows=(0, STATE), block_tokens=(2, 4), blocks=(14, 20), max_len=26, max_seqs=2)
    for h in range(2):
        ask(w, h, [h + 1] * 4, (11, 20)[h])  # the first ends soon after the second gave way
    w.drain()
    stats = w.core.stats()
    assert stats.preemptions >= 1
    assert stats.prefix_hits >= 4
    assert w.core.kv.groups[1].pool.blocks_held == 0


def test_without_a_block_for_snapshots_sequences_run_all_the_same():
    w = world(windows=(STATE,), block_tokens=4, blocks=3, max_seqs=5)
    for h in range(5):
        ask(w, h, range(h, h + 9), 20)
    w.drain()
    assert w.core.stats().preemptions == 0
    assert max(b.slots.size for b in w.batch_log) == 2


def test_without_prefix_caching_no_chunk_is_cut_and_no_snapshot_taken():
    w = world(windows=(STATE,), block_tokens=4, caching=False, max_tokens=64)
    ask(w, 0, range(30), 20)
    w.drain()
    assert [b.query.tolist() for b in w.batch_log[:2]] == [[30], [1]]
    assert all(b.block_tables[0][0, 0] in (0, b.block_tables[0][0, 1]) for b in w.batch_log)


def test_a_reset_forgets_states_also_while_they_are_written():
    w = world(windows=(0, STATE), block_tokens=(4, 8), max_tokens=8)
    ask(w, 0, range(40), 20)
    for _ in range(4):
        w.step()
    w.core.reset_prefix_cache()
    w.drain()
    assert found(w, range(40)) == 0


# ---------------------------------------------------------------- sizes of their own


def test_groups_of_different_block_sizes_share_a_prefix_at_common_multiples():
    w = world(windows=(0, 9), block_tokens=(4, 6), max_tokens=64)
    assert w.core.kv.unit == 2
    assert found(w, range(40)) == 0
    assert found(w, range(40)) == 36
    assert found(w, [*range(35), 9]) == 24


def test_a_prompt_is_held_against_the_group_that_holds_least():
    w = world(windows=(0, 0), block_tokens=(4, 8), blocks=(30, 3))
    ask(w, 0, range(17))
    w.tracked[0].may_fail = True
    frame = w.step()
    assert "needs 3 KV cache blocks, but there are only 2 (16 tokens)" in frame.finished[0].error


FULL, WINDOW = KVSpec("full", 16, 1600, (0,)), KVSpec("window", 16, 800, (1,), window=32)
LARGE, RECURRENT = KVSpec("full", 64, 6400, (2,)), KVSpec("state", 512, 5000, (3,))


def test_memory_is_divided_so_that_every_group_keeps_the_same_number_of_tokens():
    size = resolve.cache_size(EngineArgs(), (FULL, LARGE, RECURRENT), 1 << 20, 4096, 3)
    tokens = (size.blocks[0] - 1) * 16
    assert size.blocks == (tokens // 16 + 1, -(-tokens // 64) + 1, 1 + 3 + -(-tokens // 512))
    cost = lambda blocks: sum(n * g.bytes_per_block for n, g in zip(blocks, (FULL, LARGE, RECURRENT), strict=True))  # noqa: E731
    assert cost(size.blocks) <= 1 << 20 < cost([n + 1 for n in size.blocks])


def test_groups_of_one_size_get_the_same_number_of_blocks():
    assert resolve.cache_size(EngineArgs(), (FULL, WINDOW), 24_000, 4096, 3).blocks == (10, 10)
    assert resolve.cache_size(EngineArgs(num_gpu_blocks_override=7), (FULL, WINDOW), 0, 64, 3).blocks == (8, 8)


def test_blocks_that_one_sequence_holds():
    holds = [policy(g).holds(g, 1000, 100) for g in (FULL, WINDOW, LARGE, RECURRENT)]
    assert holds == [63, 9, 16, 2]


def test_a_chunk_that_is_begun_needs_nothing_of_the_one_before():
    around = GroupContext(PrefixCache(1), slots=2, max_len=128, unit=4, align=4)
    group = Chunked(KVSpec("chunked", 4, 1, (0,), window=16), 20, 0, around)
    assert [group.first_needed(n) for n in (0, 15, 16, 31, 32, 40)] == [0, 0, 4, 4, 8, 8]


def test_a_kind_without_a_policy_is_refused_by_name():
    with pytest.raises(ConfigError, match=r"'other'.*full, latent, encoder, window, chunked, state, cross"):
        policy(KVSpec("other", 16, 1, (0,)))  # type: ignore[arg-type]
    assert set(POLICIES) == {"full", "latent", "encoder", "window", "chunked", "state", "cross"}


def test_a_source_is_one_block_that_nobody_else_finds():
    spec = KVSpec("cross", 16, 1000, (1,))
    kind = policy(spec)
    assert (kind.holds(spec, 4000, 100), kind.num_blocks(spec, 4000, 5), kind.columns) == (1, 6, 1)
    w = World(make_config(max_len=64, blocks=40, max_seqs=3))
    kv = KVCache((w.config.cache.groups[0], spec), (40, 4), w.core.slots, 64, True)
    group = kv.groups[1]
    assert kv.demand((), 50, 8)[1] == 1
    assert group.find((), 3) == 3
    assert [group.lacks(1, n) for n in (1, 64)] == [1, 1]
    for slot in (1, 2, 3):
        assert group.room(slot) == 64
        assert group.grow(slot, 0, 10, True) == 64
    assert (group.lacks(1, 64), group.room(1), group.first_chunk((), 5)) == (0, 64, 0)
    assert sorted(group.rows(np.array([1, 2, 3], np.int32), np.zeros(3, np.int32), 9)[:, 0].tolist()) == [1, 2, 3]
    for slot in (1, 2, 3):
        group.check(slot)
        group.release(slot)
    assert (group.pool.available, group.pool.blocks_held, group.blocks_of(1)) == (3, 0, [])
