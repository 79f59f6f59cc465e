"""--kv-cache-dtype: what caches keep instead of the model's dtype, on every way to attend, planned for and refused in words."""

from __future__ import annotations

import pytest

from thalweg import LLM, SamplingParams
from thalweg.checkpoint.hub import resolve_model
from thalweg.config import EngineArgs
from thalweg.engine.planning.memory import plan
from thalweg.errors import ConfigError, DeviceError
from thalweg.options.cache import KV_CACHE_DTYPES

PROMPTS = ["Reverse the word: lantern", "12 + 30 =", "The capital of France is"]
SMALL = ("fp8", "fp8_e5m2", "int8_per_token_head")
WITHIN = {"fp8": 0.5, "fp8_e5m2": 1.0, "int8_per_token_head": 0.1}
"""Largest difference of a prompt token's log-probability from that with an exact cache; 3, 2 and 7 bits are kept."""


def scores(**args: object) -> list[float]:
    llm = LLM("thalweg-nano", max_model_len=128, max_num_seqs=4, dtype="float32", **args)
    out = llm.generate(PROMPTS, SamplingParams(max_tokens=1, temperature=0, prompt_logprobs=0))
    llm.shutdown()
    return [next(iter(t.values())).logprob for o in out for t in o.prompt_logprobs if t]


@pytest.fixture(scope="module")
def exact() -> list[float]:
    return scores(device="reference")


@pytest.mark.parametrize("kept", SMALL)
@pytest.mark.parametrize("device", ["reference", "cpu"])
@pytest.mark.sampled(2)
def test_answers_stay_close(device: str, kept: str, exact: list[float]) -> None:
    got = scores(device=device, kv_cache_dtype=kept, max_num_batched_tokens=8)  # in chunks: later ones read the cache
    worst = max(abs(a - b) for a, b in zip(got, exact, strict=True))
    assert 0 < worst <= WITHIN[kept]


def test_compiled_kernels_keep_int8_themselves() -> None:
    llm = LLM("thalweg-nano", device="cpu", kv_cache_dtype="int8_per_token_head", max_model_len=64, max_num_seqs=2)
    (line,) = {line for line in llm.kernel_plan if line.startswith("attention(")}
    assert "kv_dtype=int8" in line
    assert llm.config.cache.dtype == "int8"
    if "compiled" in dict(llm.device.info.notes)["kernels"] and "no compiled" not in dict(llm.device.info.notes)["kernels"]:
        assert "-> native-" in line
    first = llm.generate(PROMPTS * 2, SamplingParams(max_tokens=12, temperature=0))
    again = llm.generate(PROMPTS, SamplingParams(max_tokens=12, temperature=0))  # from the prefix cache, and recorded steps
    assert [o.outputs[0].token_ids for o in first[:3]] == [o.outputs[0].token_ids for o in again]
    llm.shutdown()


def test_less_memory_is_planned() -> None:
    def per_token(kept: str) -> int:
        args = EngineArgs(model=str(resolve_model("thalweg-nano")), device="cpu", dtype="float32", kv_cache_dtype=kept)
        return plan(args).kv_per_token

    assert per_token("fp8") * 4 == per_token("auto")
    assert per_token("fp8") < per_token("int8_per_token_head") < per_token("auto")


def test_what_cannot_be_is_refused_before_anything_is_loaded() -> None:
    with pytest.raises(ConfigError, match=r"kv_cache_dtype must be one of auto, .*int8_per_token_head"):
        LLM("thalweg-nano", device="cpu", kv_cache_dtype="nvfp4")
    with pytest.raises(DeviceError, match="the cache holds float32 or int8, not bfloat16"):
        LLM("thalweg-nano", device="cpu", dtype="float32", kv_cache_dtype="bfloat16")


def test_every_name_is_one_that_backends_know() -> None:
    from thalweg.hal.kv import BYTES

    assert {name for name in KV_CACHE_DTYPES.values() if name} <= set(BYTES)
