"""What the control plane promises about order, room and prefixes. Tokens are compared with the oracle throughout."""

import hashlib
from itertools import pairwise

import msgspec
import numpy as np
import pytest
from world import World, make_config

from thalweg.engine.control.core import EngineCore
from thalweg.engine.control.executor import LaunchOnlyExecutor
from thalweg.engine.control.pace import FIRST
from thalweg.engine.messages import EngineRequest, Input, TokenSampling
from thalweg.errors import ConfigError
from thalweg.hal.kv import KVSpec
from thalweg.hal.parts.history import History
from thalweg.hal.parts.mask import Mask
from thalweg.hal.parts.penalties import Penalties


def request(handle: int, prompt, max_tokens: int = 4, **fields) -> EngineRequest:
    names = {"priority", "cache_salt", "inputs", "read_prefix_cache", "streamed"} & fields.keys()
    own = {n: fields.pop(n) for n in names}
    tokens = np.array(prompt, np.int32)
    sampling = TokenSampling(max_tokens=max_tokens, **fields)
    return EngineRequest(handle=handle, tokens=tokens, prompt_len=tokens.size, sampling=sampling, **own)


def world(**config) -> World:
    w = World(make_config(**config))
    w.batch_log = []
    return w


def started(w: World) -> list[int]:
    """Handles in the order in which they first ran."""
    out: list[int] = []
    while w.core.has_work:
        frame = w.step()
        out += [s.handle for s in frame.started] if frame else []
    w.idle()
    return out


def test_first_come_first_served_ignores_priority():
    w = world(max_seqs=1)
    for h in range(4):
        w.submit(request(h, [h, 1], priority=4 - h))
    assert started(w) == [0, 1, 2, 3]


def test_priority_runs_lower_values_first_and_ties_by_arrival():
    w = world(max_seqs=1, policy="priority")
    for h, priority in enumerate([2, 1, 2, 0, 1]):
        w.submit(request(h, [h, 1], priority=priority))
    assert started(w) == [3, 1, 4, 0, 2]


def test_a_step_mixes_decodes_and_a_chunk_within_its_budget():
    w = world(max_tokens=8, depth=1, max_len=64)
    w.submit(request(0, [1, 2], 20))
    w.step()
    w.submit(request(1, list(range(20)), 2))
    w.drain()
    assert [b.query.tolist() for b in w.batch_log[1:4]] == [[1, 7], [1, 7], [1, 6]]
    assert [b.emit.tolist() for b in w.batch_log[1:4]] == [[True, False], [True, False], [True, True]]


def test_a_sequence_is_in_one_step_at_a_time_where_a_step_passes_several_stages():
    """Its next token is known once the last stage has run. Meanwhile the others decode, so that no stage waits."""
    w = world(depth=2, stages=2)
    for h in range(5):
        w.submit(request(h, [h, 1], 6))
    w.drain()
    assert all((b.tokens >= 0).all() for b in w.batch_log)
    assert max(len(b.slots) for b in w.batch_log[2:]) == 3  # of five
    assert all(not set(a.slots) & set(b.slots) for a, b in pairwise(w.batch_log[1:]))


@pytest.mark.parametrize("streamed", [True, False])
def test_prompts_are_rationed_only_beside_what_somebody_reads_as_it_comes(streamed):
    w = world(max_tokens=256, depth=1, max_len=256, blocks=80, max_prefill_slowdown=2.0)
    w.submit(request(0, [1, 2], 20, streamed=streamed))
    w.step()
    w.submit(request(1, [7] * 200, 2))
    w.step()
    assert w.batch_log[1].query.tolist() == [1, FIRST if streamed else 200]
    w.drain()


def test_a_stream_that_waits_for_a_slot_to_go_on_lifts_no_ration():
    """It computes nothing yet, and may wait for long: the server suspends streams, and puts them back."""
    w = world(max_tokens=256, depth=1, max_len=256, blocks=80, max_prefill_slowdown=2.0, max_seqs=2)
    w.submit(request(0, [1, 2], 20))
    w.step()
    w.submit(request(1, [7] * 200, 2))
    w.step()
    first = request(2, [3] * 5, 20)
    made = w.oracle.generate(first, 256)[0][:4]
    w.submit(msgspec.structs.replace(first, tokens=np.array([3] * 5 + made, np.int32)))
    w.step()
    assert [b.query.tolist() for b in w.batch_log[1:3]] == [[1, FIRST], [1, FIRST]]
    w.drain()


def test_without_chunked_prefill_a_prompt_runs_whole_or_waits():
    w = world(max_tokens=16, depth=1, chunked_prefill=False, max_len=16)
    w.submit(request(0, list(range(10)), 3))
    w.submit(request(1, list(range(20, 30)), 3))
    w.drain()
    assert [b.query.tolist() for b in w.batch_log[:2]] == [[10], [1, 10]]


def test_a_prompt_larger_than_a_step_is_refused_without_chunked_prefill():
    w = world(max_tokens=8, chunked_prefill=False)
    w.submit(request(0, list(range(10))))
    w.tracked[0].may_fail = True
    frame = w.step()
    assert frame.finished[0].reason == "error"
    assert "chunked prefill" in frame.finished[0].error


def test_at_most_max_partial_prefills_prompts_are_unfinished():
    for most in (1, 2):
        w = world(max_tokens=12, long_prefill_threshold=5, max_partial_prefills=most, max_long_partial_prefills=9, depth=1)
        for h in range(3):
            w.submit(request(h, [h] * 16, 1))
        w.drain()
        assert max(int((~b.emit).sum()) for b in w.batch_log) == most


def test_short_prompts_pass_long_ones_while_enough_long_ones_are_in_progress():
    w = world(max_tokens=8, long_prefill_threshold=4, max_partial_prefills=4, max_long_partial_prefills=1, depth=1)
    w.submit(request(0, [9] * 20, 1))
    w.submit(request(1, [8] * 20, 1))
    w.submit(request(2, [7] * 3, 1))
    assert started(w) == [0, 2, 1]


def test_the_latest_arrival_gives_way_when_blocks_run_out():
    w = world(blocks=13, block_tokens=2, max_len=24, max_seqs=3, depth=2)
    for h in range(3):
        w.submit(request(h, [h + 1] * 2, 18))
    order, preempted = [], []
    while w.core.has_work:
        out = w.step()
        order += [f.handle for f in out.finished]
        preempted += out.preempted
    assert order == [0, 1, 2]
    assert w.core.stats().preemptions >= 1
    assert len(preempted) == w.core.stats().preemptions
    assert 0 not in preempted
    w.idle()


def test_the_lowest_priority_gives_way_when_blocks_run_out():
    w = world(blocks=13, block_tokens=2, max_len=24, max_seqs=2, policy="priority")
    w.submit(request(0, [1, 1], 20, priority=5))
    w.submit(request(1, [2, 2], 20, priority=0))
    order = []
    while w.core.has_work:
        order += [f.handle for f in w.step().finished]
    assert order == [1, 0]


def test_what_can_never_fit_ends_with_an_error_in_words_and_harms_nobody():
    w = world(blocks=5, block_tokens=4, max_len=64)
    w.submit(request(0, list(range(17))))  # needs 5 blocks, there are 4
    w.submit(request(1, list(range(10)), 40))  # fits at first, then grows past the cache
    w.submit(request(2, [5, 6, 7], 4))
    w.tracked[0].may_fail = w.tracked[1].may_fail = True
    w.drain()
    assert [w.tracked[h].finished for h in range(3)] == ["error", "error", "length"]
    assert w.tracked[1].got == 16 - 10 + 1


@pytest.mark.parametrize(
    ("bad", "word"),
    [
        ({"tokens": np.array([], np.int32)}, "tokens"),
        ({"tokens": np.array([64], np.int32)}, "vocabulary"),
        ({"tokens": np.array([-1], np.int32)}, "vocabulary"),
        ({"tokens": np.zeros(64, np.int32), "prompt_len": 64}, "context holds 64"),
        ({"prompt_len": 0}, "prompt_len"),
        ({"sampling": TokenSampling(max_tokens=0)}, "max_tokens"),
        ({"sampling": TokenSampling(max_tokens=1, allowed_ids=(64,))}, "allowed_ids"),
    ],
)
def test_a_bad_request_is_news_not_an_exception(bad, word):
    w = world()
    good = {"handle": 7, "tokens": np.array([1], np.int32), "prompt_len": 1, "sampling": TokenSampling(max_tokens=1)}
    w.core.add([EngineRequest(**(good | bad))])
    frame = w.core.step()
    assert [(f.handle, f.reason) for f in frame.finished] == [(7, "error")]
    assert word in frame.finished[0].error
    assert not w.core.has_work


def test_a_handle_in_use_is_refused_and_its_owner_goes_on():
    w = world()
    w.submit(request(1, [1, 2]))
    w.core.add([request(1, [3, 4])])
    frames = [w.core.step() for _ in range(8)]
    ends = [f for frame in frames if frame for f in frame.finished]
    assert [f.reason for f in ends] == ["error", "length"]


def test_aborting_twice_or_unknown_handles_is_harmless_and_frees_everything():
    w = world(depth=3)
    for h in range(4):
        w.submit(request(h, [1, 2, 3, h], 30))
    w.step()
    w.core.abort([0, 0, 99, 3])
    w.drain()
    assert [w.tracked[h].finished for h in range(4)] == ["abort", "length", "length", "abort"]


def test_unsupported_kv_groups_are_refused_in_words():
    config = make_config()
    group = KVSpec("other", 4, 32, (0,))  # type: ignore[arg-type]
    import msgspec

    bad = msgspec.structs.replace(config, cache=msgspec.structs.replace(config.cache, groups=(group,)))
    with pytest.raises(ConfigError, match="other"):
        EngineCore(LaunchOnlyExecutor(bad, lambda batch: None))


# ---------------------------------------------------------------- prefixes


def test_a_known_prompt_computes_only_its_last_token():
    w = world(block_tokens=4)
    w.submit(request(0, list(range(9)), 1))
    w.drain()
    w.submit(request(1, list(range(9)), 1))
    w.submit(request(2, list(range(8)), 1))  # ends on a block boundary: its last block is computed again
    w.batch_log.clear()
    w.drain()
    assert w.batch_log[0].context.tolist() == [8, 4]
    assert w.batch_log[0].query.tolist() == [1, 4]
    assert w.core.stats().prefix_hits == 12


def test_requests_that_arrive_together_compute_a_shared_prefix_once():
    w = world(max_tokens=16, max_len=64, max_seqs=8)
    prefix = list(range(40))
    for h in range(6):
        w.submit(request(h, [*prefix, h], 2))
    w.drain()
    computed = sum(int(b.query.sum()) for b in w.batch_log)
    assert computed <= 40 + 6 * (1 + 2)


def test_waiting_for_a_prefix_ends_when_its_owner_is_aborted():
    w = world(max_tokens=4, max_len=64, max_seqs=8, depth=1)
    for h in range(3):
        w.submit(request(h, [*range(40), h], 2))
    w.step()
    assert len(w.core.scheduler.running) == 1
    w.abort(0)
    w.drain()
    assert [w.tracked[h].finished for h in range(3)] == ["abort", "length", "length"]


def test_salts_do_not_share():
    w = world()
    for h, salt in enumerate(["", "a", "b", "a"]):
        w.submit(request(h, list(range(16)), 1, cache_salt=salt))
        w.drain()
    assert w.core.stats().prefix_hits == 12  # only the second "a" finds anything


def test_colliding_keys_never_give_a_wrong_hit():
    def weak(parent: bytes, salt: bytes, tokens: bytes) -> bytes:
        return hashlib.sha256(tokens).digest()[:1].translate(bytes(i % 3 for i in range(256)))

    w = World(make_config(vocab=40), hash_fn=weak)
    rng = np.random.default_rng(1)
    for h in range(60):
        salt = "ab"[h % 2]
        w.submit(request(h, rng.integers(0, 2, int(rng.integers(5, 40))), 6, cache_salt=salt))
        if h % 5 == 4:
            w.drain()
    assert w.core.stats().prefix_hits > 0


def test_not_reading_the_cache_still_fills_it():
    w = world()
    w.submit(request(0, list(range(16)), 1, read_prefix_cache=False))
    w.drain()
    w.submit(request(1, list(range(16)), 1, prompt_logprobs=0))
    w.drain()
    assert w.core.stats().prefix_hits == 0
    w.submit(request(2, list(range(16)), 1))
    w.drain()
    assert w.core.stats().prefix_hits == 12


def test_reset_forgets_every_prefix_also_while_sequences_run():
    w = world(max_tokens=8)
    w.submit(request(0, list(range(30)), 4))
    w.step()
    assert w.core.reset_prefix_cache()
    w.submit(request(1, list(range(30)), 4))
    w.drain()
    w.core.reset_prefix_cache()
    w.submit(request(2, list(range(30)), 4))
    w.drain()
    assert w.core.stats().prefix_hits == 0


def test_a_window_group_drops_what_it_has_passed_and_a_hit_needs_only_the_window():
    w = world(block_tokens=2, windows=(0, 6), blocks=(40, 6), max_len=60)
    w.submit(request(0, list(range(20)), 20))
    held = []
    while w.core.has_work:
        w.step()
        held.append(w.core.kv.groups[1].pool.blocks_held)
    assert max(held) <= 5  # of the 20 blocks the sequence spans
    w.idle()


def test_poisoned_output_ends_only_its_request_and_is_not_cached():
    w = world(max_tokens=64)
    w.submit(request(0, list(range(20)), 4))
    w.submit(request(1, list(range(30, 50)), 4))
    w.sick[0] = 1
    w.tracked[0].may_fail = True
    w.drain()
    assert [w.tracked[h].finished for h in (0, 1)] == ["error", "length"]
    w.submit(request(2, list(range(20)), 4))
    w.drain()
    assert w.core.stats().prefix_hits == 0


# ---------------------------------------------------------------- ends and what sampling is told


def test_stop_ids_do_not_count_before_min_tokens_even_if_the_device_ignores_the_ban():
    from thalweg.bench.host import null_config, null_executor

    for min_tokens, stops, stop_id in ((0, {"eos_ids": (7,)}, -1), (3, {"stop_ids": (7,)}, 7), (3, {"eos_ids": (7,)}, -1)):
        config = null_config(seqs=2, max_len=32, depth=2)
        core = EngineCore(null_executor(config, tokens="fixed", fixed=7))
        core.add([request(0, [1, 2], 9, min_tokens=min_tokens, **stops)])
        tokens, ends = [], []
        while core.has_work:
            frame = core.step()
            tokens += frame.tokens.tolist()
            ends += frame.finished
        assert len(tokens) == max(1, min_tokens)
        assert (ends[0].reason, ends[0].stop_id) == ("stop", stop_id)


def test_the_context_ends_a_request_and_nothing_is_scheduled_beyond_a_limit():
    w = world(max_len=16, depth=3)
    w.submit(request(0, list(range(10)), 100))
    w.submit(request(1, list(range(20, 24)), 3))
    w.drain()
    assert [w.tracked[h].got for h in (0, 1)] == [6, 3]
    assert w.tracked[0].finished == w.tracked[1].finished == "length"
    assert sum(int(b.emit.sum()) for b in w.batch_log) == 9


def test_tokens_in_flight_are_named_on_device():
    w = world(depth=2)
    w.submit(request(0, [1, 2, 3], 5))
    w.drain()
    assert [b.tokens.tolist() for b in w.batch_log] == [[1, 2, 3], [-1], [-1], [-1], [-1]]


def test_sampling_parameters_reach_their_row():
    w = world(max_seqs=4, depth=1)
    w.submit(request(0, [1], 6))
    w.submit(request(1, [2], 6, temperature=0.5, top_k=7, top_p=0.9, min_p=0.1, seed=(3 << 32) | 5, presence_penalty=1.5))
    w.step()
    b = w.batch_log[0]
    s = b.sampling
    assert s.temperature.tolist() == [0, 0.5]
    assert s.top_k.tolist() == [0, 7]
    assert s.seed.tolist() == [[0, 0], [5, 3]]
    assert b.get(Penalties).presence.tolist() == [0, 1.5]
    assert b.get(Penalties).prompt_len.tolist() == [0, 1]
    assert (b.features.random, b.features.truncate, b.features.level(Penalties)) == (True, True, 0)
    w.drain()


def test_history_of_cached_tokens_is_sent_once_to_sequences_that_look_back():
    w = world(block_tokens=4, depth=1, max_tokens=8)
    w.submit(request(0, list(range(12)), 1))
    w.drain()
    w.batch_log.clear()
    w.submit(request(1, list(range(10)), 3, repetition_penalty=1.3))
    w.submit(request(2, list(range(10)), 3))
    w.drain()
    first = w.batch_log[0]
    slot = int(first.slots[0])
    seen = first.get(History)
    assert seen.slot.tolist() == [slot] * 8
    assert seen.position.tolist() == list(range(8))
    assert seen.token.tolist() == list(range(8))
    assert all(b.get(History) is None for b in w.batch_log[1:])


def test_allowed_ids_are_packed_by_token():
    w = world(vocab=70, depth=1)
    w.submit(request(0, [1], 1, allowed_ids=(0, 33, 69)))
    w.submit(request(1, [2], 1))
    w.drain()
    assert w.batch_log[0].get(Mask).allowed.tolist() == [[1, 2, 32], [0xFFFFFFFF] * 3]


def test_a_resubmitted_request_continues_where_it_was():
    w = world()
    w.submit(request(0, [1, 2, 3, 4, 5], 9))
    whole = w.tracked[0].tokens
    w.drain()
    again = request(1, [1, 2, 3, 4, 5, *whole[:4]], 9)
    again = EngineRequest(handle=1, tokens=again.tokens, prompt_len=5, sampling=again.sampling)
    w.submit(again)
    w.drain()
    assert w.tracked[1].tokens == whole
    assert w.tracked[1].finished == "length"


def test_the_same_requests_give_the_same_schedule():
    def log():
        w = world(blocks=20, block_tokens=2, max_len=32, max_seqs=5, max_tokens=9)
        for h in range(9):
            w.submit(request(h, [h % 3] * (h + 2), 12))
        w.drain()
        return [(b.slots.tolist(), b.tokens.tolist(), b.context.tolist(), b.block_tables[0].tolist()) for b in w.batch_log]

    assert log() == log()


@pytest.mark.parametrize(
    "odd",
    [
        {"cache_salt": "\ud800"},
        {"max_tokens": 2**31 - 1, "min_tokens": 2**31 - 1, "eos_ids": (3,)},
        {"seed": 2**63 - 1},
        {"seed": -(2**63)},
        {"top_k": 2**31 - 1, "temperature": 1e30},
        {"logit_bias": ((1, 100.0), (1, -100.0))},
    ],
)
def test_extreme_values_are_served(odd):
    w = world()
    w.submit(request(0, [1, 2, 3], **odd))
    w.drain()
    assert w.tracked[0].finished == "length"


@pytest.mark.parametrize("odd", [{"top_k": 2**31}, {"stop_ids": (2**31,)}, {"eos_ids": (-1,)}, {"min_tokens": -1}])
def test_values_no_array_can_hold_are_refused(odd):
    w = world()
    w.core.add([request(0, [1, 2, 3], **odd)])
    frame = w.core.step()
    assert frame.finished[0].reason == "error"
    assert next(iter(odd)) in frame.finished[0].error


def test_a_found_prefix_waits_while_blocks_are_withheld():
    w = world(block_tokens=2, windows=(8,), blocks=8, max_len=24)
    w.submit(request(0, list(range(12)), 1))
    w.drain()
    pool = w.core.kv.groups[0].pool
    pool.withheld = pool.total - 2  # one available: fewer than the cached blocks the prefix would hold
    w.submit(request(1, list(range(12)), 1))
    assert w.step() is None
    pool.withheld = 0
    w.drain()
    assert w.core.stats().prefix_hits > 0


def test_a_step_tells_how_many_tokens_it_dealt_with():
    """Those of the prompt it computed and those it made; what the prefix cache held is neither, and counted apart."""
    w = world(max_tokens=8, block_tokens=2, depth=1)
    w.submit(request(0, [9] * 13, 10))
    told = []
    while w.core.has_work:
        told.append(w.step().step_tokens)
    assert sum(told) == 23
    assert told[:2] == [8, 6]
    w.submit(request(1, [9] * 13, 1))
    assert w.step().step_tokens == 2
    stats = w.core.stats()
    assert (stats.prompt_tokens, stats.prompt_cached) == (26, 12)


def told(w: World) -> tuple[dict[int, str], dict[int, int]]:
    """What each waited for, and in how many chunks its prompt was computed."""
    held, chunks = {}, {}
    while w.core.has_work:
        frame = w.step()
        if frame is not None:
            held |= {s.handle: s.held for s in frame.started}
            chunks |= {f.handle: f.chunks for f in frame.finished}
    return held, chunks


def test_who_waited_says_for_what():
    w = world(max_seqs=1)
    for h in range(2):
        w.submit(request(h, [h, 1]))
    assert told(w)[0] == {0: "", 1: "slots"}
    w = world(max_tokens=8, max_len=64, depth=1)
    for h in range(2):
        w.submit(request(h, [h, *range(8, 30)]))
    held, chunks = told(w)
    assert held == {0: "", 1: "partial"}
    assert chunks[0] >= 3


def test_a_paused_core_starts_nothing_and_goes_on_where_it_was():
    w = world(max_len=64)
    w.submit(request(0, [1, 2], 20))
    for _ in range(3):
        w.step()
    w.core.paused = True
    while w.core.has_work:
        w.step()
    steps = len(w.batch_log)
    w.submit(request(1, [3, 4], 2))
    assert not w.core.has_work
    assert w.step() is None
    assert len(w.batch_log) == steps
    w.core.paused = False
    w.drain()


def test_a_watermark_keeps_blocks_free_when_a_prompt_starts_beside_others():
    held = {}
    for share in (0.0, 0.5):
        w = world(blocks=21, block_tokens=4, max_len=64, watermark=share)
        w.submit(request(0, [1] * 16, 12))
        w.submit(request(1, [2] * 30, 2))
        held[share] = told(w)[0]
    assert held == {0.0: {0: "", 1: ""}, 0.5: {0: "", 1: "cache"}}


def test_a_prompt_enters_for_its_first_chunk_where_it_need_not_fit_whole():
    held = {}
    for whole in (True, False):
        w = world(blocks=17, block_tokens=4, max_len=64, max_tokens=8, depth=1, whole_prompts=whole)
        w.submit(request(0, [1] * 4, 20))
        w.step()
        w.submit(request(1, [2] * 60, 2))
        held[whole] = told(w)[0][1]
    assert held == {True: "cache", False: ""}


def test_prompts_start_in_every_so_many_steps_beside_running_sequences():
    w = world(depth=1, max_len=64, prefill_interval=4)
    w.submit(request(0, [1, 2], 40))
    w.step()
    for h in range(1, 4):
        w.submit(request(h, [h, 5], 30))
    held, _ = told(w)
    assert held == {1: "interval", 2: "interval", 3: "interval"}
    assert [i for i, b in enumerate(w.batch_log) if max(b.query.tolist()) > 1] == [0, 4]


def test_what_is_not_to_be_cut_is_computed_in_one_step():
    def uncut(first, end):
        at, vectors = np.arange(first, end, dtype=np.int32), np.zeros((end - first, 3), np.float32)
        return (Input(kind="image", digest=b"", positions=at, vectors=vectors, uncut=True),)

    for inputs, takes in (((), [8, 8, 4]), (uncut(6, 12), [6, 8, 6])):
        w = world(depth=1, max_len=64, max_tokens=8)
        w.submit(request(0, range(20), 1, inputs=inputs))
        w.drain()
        assert [int(b.query.sum()) for b in w.batch_log] == takes
    w = world(depth=1, max_len=64, max_tokens=8)
    w.submit(request(0, range(20), 1, inputs=uncut(2, 14)))
    w.tracked[0].may_fail = True
    assert "an image has 12 tokens, which are computed together" in w.step().finished[0].error


def test_steps_are_logged_where_asked_for(caplog):
    for asked in (False, True):
        caplog.clear()
        with caplog.at_level("INFO", logger="thalweg.engine.control.core"):
            w = world(depth=1, log_steps=asked)
            w.submit(request(0, [1, 2, 3], 3))
            w.drain()
        lines = [r.getMessage() for r in caplog.records]
        if not asked:
            assert lines == []
            continue
        assert lines[0].startswith("step 0: 3 prompt tokens, 0 sequences decode, ")
        assert [line.partition(" ms")[0].rpartition(",")[0] for line in lines[1:]] == [
            f"step {i}: 0 prompt tokens, 1 sequences decode" for i in (1, 2)
        ]
