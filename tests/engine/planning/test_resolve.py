"""Merging configuration: who wins, and what is refused in words."""

from dataclasses import replace

import pytest

from thalweg.config import EngineArgs, check_args
from thalweg.engine.planning import resolve
from thalweg.errors import ConfigError
from thalweg.hal.device import DeviceInfo, Memory
from thalweg.hal.kv import KVSpec
from thalweg.hal.platform import Defaults, ModelInfo
from thalweg.models.spec import MLP, Attention, DeltaNet, Layer, ModelSpec, Norms

FACTS = ModelInfo("X", "float16", layers=2, hidden=8, heads=2, kv_heads=1, head_dim=4, vocab=10, max_len=1000, weight_bytes=0)
DEVICE = DeviceInfo("d", "some", memory_bytes=1 << 30, cores=2, dtypes=("bfloat16", "float32"))
GROUPS = (KVSpec("full", 16, 1024, (0, 1)),)


def test_user_wins_over_platform_wins_over_global():
    assert resolve.scheduler(EngineArgs(max_num_seqs=3), Defaults(max_num_seqs=5), 100).max_seqs == 3
    assert resolve.scheduler(EngineArgs(), Defaults(max_num_seqs=5), 100).max_seqs == 5
    assert resolve.scheduler(EngineArgs(), Defaults(), 100).max_seqs == resolve.MAX_SEQS


def test_auto_dtype_keeps_what_the_device_runs_well_and_replaces_what_it_does_not():
    assert resolve.dtype(EngineArgs(), FACTS, DEVICE, Defaults()) == "bfloat16"
    f32 = ModelInfo("X", "float32", 2, 8, 2, 1, 4, 10, 1000, 0)
    assert resolve.dtype(EngineArgs(), f32, DEVICE, Defaults(dtype="bfloat16")) == "float32"
    assert resolve.dtype(EngineArgs(dtype="float"), FACTS, DEVICE, Defaults()) == "float32"
    with pytest.raises(ConfigError, match=r"float16.*bfloat16, float32"):
        resolve.dtype(EngineArgs(dtype="half"), FACTS, DEVICE, Defaults())


def test_without_chunked_prefill_a_step_holds_the_longest_prompt_or_it_is_refused():
    assert resolve.scheduler(EngineArgs(enable_chunked_prefill=False), Defaults(), 9000).token_budget == 9000
    with pytest.raises(ConfigError, match="max_num_batched_tokens 512"):
        resolve.scheduler(EngineArgs(enable_chunked_prefill=False, max_num_batched_tokens=512), Defaults(), 9000)


def test_every_sequence_has_a_token_per_step():
    assert resolve.scheduler(EngineArgs(max_num_batched_tokens=8), Defaults(max_num_seqs=64), 100).max_seqs == 8
    assert resolve.scheduler(EngineArgs(max_num_seqs=4096), Defaults(max_num_batched_tokens=64), 100).token_budget == 4096
    with pytest.raises(ConfigError, match="max_num_batched_tokens 8 is below max_num_seqs 64"):
        resolve.scheduler(EngineArgs(max_num_seqs=64, max_num_batched_tokens=8), Defaults(), 100)


def test_the_cache_is_never_larger_than_useful_and_scratch_comes_on_top():
    size = resolve.cache_size(EngineArgs(), GROUPS, 1 << 30, length=160, seqs=2)
    assert size.blocks == (2 * 10 + 1,)
    assert size.max_len == 160


def test_a_context_that_does_not_fit_shrinks_unless_the_user_insists():
    assert resolve.cache_size(EngineArgs(), GROUPS, 11 * 1024, 1000, 4).max_len == 160
    with pytest.raises(ConfigError, match="lower max_model_len to 160, or raise kv_cache_memory_bytes"):
        resolve.cache_size(EngineArgs(max_model_len=1000), GROUPS, 11 * 1024, 1000, 4)
    with pytest.raises(ConfigError, match=r"kv_cache_memory_bytes.*raise it to at least"):
        resolve.cache_size(EngineArgs(), GROUPS, 1024, 1000, 4)


def test_every_objection_is_told_at_once():
    with pytest.raises(ConfigError) as e:
        check_args(EngineArgs(dtype="int3", max_num_seqs=0, gpu_memory_utilization=2.0, trust_remote_code=True))
    assert len(e.value.problems) == 4


def test_more_context_than_the_model_has_is_refused():
    with pytest.raises(ConfigError, match="1001 exceeds the model's own 1000"):
        resolve.max_len(EngineArgs(max_model_len=1001), FACTS)
    stretched = replace(FACTS, longest=2000)
    assert resolve.max_len(EngineArgs(max_model_len=2000), stretched) == 2000
    assert resolve.max_len(EngineArgs(), stretched) == 1000, "nobody asked for more"
    with pytest.raises(ConfigError, match=r"2001 exceeds .* 1000 positions, which its dynamic rope scaling stretches to 2000"):
        resolve.max_len(EngineArgs(max_model_len=2001), stretched)


def test_too_few_blocks_are_the_overrides_fault():
    with pytest.raises(ConfigError, match=r"^num_gpu_blocks_override: 1 blocks of 16 .*at least 2, or omit"):
        resolve.cache_size(EngineArgs(num_gpu_blocks_override=1), GROUPS, 1 << 30, 1000, 4)
    asked = EngineArgs(num_gpu_blocks_override=10, max_model_len=1000)
    with pytest.raises(ConfigError, match=r"^num_gpu_blocks_override: 10 .* of 1000; raise it to at least 63, lower"):
        resolve.cache_size(asked, GROUPS, 1 << 30, 1000, 4)
    assert resolve.cache_size(EngineArgs(num_gpu_blocks_override=2), GROUPS, 1 << 30, 1000, 4).max_len == 32


def test_the_cache_takes_what_the_fraction_leaves_and_too_little_is_told_with_the_sum():
    memory = Memory(total=80 << 30, free=79 << 30)
    args, gib = EngineArgs(gpu_memory_utilization=0.9), 1 << 30
    assert resolve.cache_bytes(args, Defaults(), memory, 16 * gib, 2 * gib) == int(80 * gib * 0.9) - (1 + 16 + 2) * gib
    with pytest.raises(ConfigError) as e:
        resolve.cache_bytes(args, Defaults(), memory, 140 * gib, 2 * gib)
    for words in ("0.9 of 80.00 GiB is 72.00 GiB", "1.00 GiB", "weights 140.00 GiB", "71.00 GiB too little", "larger device"):
        assert words in str(e.value)
    assert resolve.cache_bytes(EngineArgs(kv_cache_memory_bytes=7), Defaults(), memory, 140 * gib, 0) == 7


STATES = (KVSpec("state", 64, 1 << 20, (0, 1)), KVSpec("full", 16, 1024, (2,)))


def test_blocks_are_counted_by_the_group_whose_are_smallest_wherever_it_stands():
    size = resolve.cache_size(EngineArgs(), STATES, 16 << 20, length=160, seqs=4)
    assert size.tokens == (size.blocks[1] - 1) * 16
    assert size.blocks[0] == 1 + 4 - (-size.tokens // 64)
    assert resolve.cache_cost(STATES, size.tokens, 4) <= 16 << 20 < resolve.cache_cost(STATES, size.tokens + 64, 4)


def test_states_of_running_sequences_take_at_most_half_of_the_cache_unless_asked_for():
    made = resolve.scheduler(EngineArgs(), Defaults(max_num_seqs=64), 1000)
    assert resolve.with_states(EngineArgs(), STATES, 16 << 20, made).max_seqs == 8
    assert resolve.with_states(EngineArgs(), STATES, 1 << 10, made).max_seqs == 1
    assert resolve.with_states(EngineArgs(), STATES, 1 << 40, made).max_seqs == 64
    assert resolve.with_states(EngineArgs(), GROUPS, 16 << 20, made) == made
    asked = resolve.scheduler(EngineArgs(max_num_seqs=12), Defaults(), 1000)
    assert resolve.with_states(EngineArgs(max_num_seqs=12), STATES, 16 << 20, asked).max_seqs == 12
    with pytest.raises(ConfigError, match=r"beside 33,554,432 bytes of states of max_num_seqs 32.*or lower max_num_seqs"):
        resolve.cache_size(EngineArgs(max_num_seqs=32), STATES, 16 << 20, 160, 32)


@pytest.mark.parametrize(
    ("said", "words"),
    [
        ({"mamba_block_size": 24}, "24 is no multiple of the 16 tokens"),
        ({"mamba_block_size": 32, "enable_prefix_caching": False}, "without prefix caching"),
    ],
)
def test_a_distance_of_states_that_cannot_be_is_refused(said, words):
    delta = DeltaNet(key_heads=1, value_heads=1, key_dim=8, value_dim=8, kernel=4, eps=1e-6)
    mlp = MLP(inner=8)
    recurrent, plain = (
        ModelSpec(vocab=9, hidden=8, layers=(Layer(m, mlp, Norms()),), norm=None)
        for m in (delta, Attention(heads=1, kv_heads=1, head_dim=8))
    )
    with pytest.raises(ConfigError, match=words):
        resolve.state_tokens(EngineArgs(**said), recurrent, 16)
    with pytest.raises(ConfigError, match="no recurrent layers"):
        resolve.state_tokens(EngineArgs(**said), plain, 16)
    assert [resolve.state_tokens(EngineArgs(), recurrent, n) for n in (16, 48, 4096)] == [1024, 1008, 4096]
    assert resolve.state_tokens(EngineArgs(enable_prefix_caching=False), recurrent, 16) > 1 << 29
