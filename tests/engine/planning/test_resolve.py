"""Merging configuration: who wins, and what is refused in words."""

import pytest

from thalweg.config import EngineArgs, check_args
from thalweg.engine.planning import resolve
from thalweg.errors import ConfigError
from thalweg.hal.device import DeviceInfo, Memory
from thalweg.hal.kv import KVSpec
from thalweg.hal.platform import Defaults, ModelInfo

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


def test_the_cache_takes_what_the_fraction_leaves_and_too_little_is_told_with_the_sum():
    memory = Memory(total=80 << 30, free=79 << 30)
    args, gib = EngineArgs(gpu_memory_utilization=0.9), 1 << 30
    assert resolve.cache_bytes(args, Defaults(), memory, 16 * gib, 2 * gib) == int(80 * gib * 0.9) - (1 + 16 + 2) * gib
    with pytest.raises(ConfigError) as e:
        resolve.cache_bytes(args, Defaults(), memory, 140 * gib, 2 * gib)
    for words in ("0.9 of 80.00 GiB is 72.00 GiB", "1.00 GiB", "weights 140.00 GiB", "71.00 GiB too little", "larger device"):
        assert words in str(e.value)
    assert resolve.cache_bytes(EngineArgs(kv_cache_memory_bytes=7), Defaults(), memory, 140 * gib, 0) == 7
