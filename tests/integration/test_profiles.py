"""A profile of a real engine's steps: files that name its operations, and words where there is nothing to do."""

from __future__ import annotations

import gzip
import json

import pytest

from thalweg import AsyncLLM, EngineArgs, SamplingParams
from thalweg.config import check_args
from thalweg.errors import ConfigError, RequestError
from thalweg.options.observation import read_profiler_config

TORCH = {"profiler": "torch", "torch_profiler_dir": "/tmp/x"}


@pytest.mark.slow
async def test_a_profile_has_the_operations_of_steps(tmp_path) -> None:
    config = {**TORCH, "torch_profiler_dir": str(tmp_path / "new"), "torch_profiler_with_stack": False}
    args = EngineArgs(
        device="reference", max_model_len=64, use_tqdm_on_load=False, standby_engine=False, profiler_config=config
    )
    engine = await AsyncLLM.start(args)
    try:
        with pytest.raises(RequestError, match="no profile is running"):
            await engine.stop_profile()
        await engine.start_profile()
        with pytest.raises(RequestError, match="a profile is running"):
            await engine.start_profile()
        async for _ in engine.generate([5, 6], SamplingParams(max_tokens=2, ignore_eos=True), "a"):
            pass
        await engine.stop_profile()
    finally:
        await engine.shutdown()
    trace, table = sorted((tmp_path / "new").iterdir())
    events = json.loads(gzip.decompress(trace.read_bytes()))["traceEvents"]
    assert any(str(e.get("name", "")).startswith("aten::") for e in events)
    assert "aten::" in table.read_text()


@pytest.mark.parametrize(
    ("config", "words"),
    [
        ({"profiler": "cuda", "torch_profiler_dir": "/x"}, "profiler"),
        ({"profiler": "torch"}, "torch_profiler_dir"),
        ({**TORCH, "torch_profiler_dir": "here"}, "absolute"),
        ({**TORCH, "warmup_iterations": 2}, "warmup_iterations"),
    ],
)
def test_what_cannot_be_honoured_is_refused(config, words) -> None:
    with pytest.raises(ConfigError, match=f"profiler_config: .*{words}"):
        check_args(EngineArgs(profiler_config=config))


def test_no_profiler_is_none() -> None:
    assert read_profiler_config(EngineArgs()) is None
    assert read_profiler_config(EngineArgs(profiler_config={"profiler": None})) is None
    assert read_profiler_config(EngineArgs(profiler_config=TORCH)).torch_profiler_use_gzip
