"""Latent attention on devices whose steps are pipelined, captured and late, and with caches of fewer bits. That the text is
right is test_against_transformers's to say."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from zoo import make_checkpoint

from thalweg import LLM, SamplingParams

HOST = "thalweg.backends.torch_gpu.testing:HostGpuPlatform"


def serve(path: Path, **more: Any) -> tuple[list[tuple[list[int], list[float]]], Any, Any]:
    """(tokens and logprobs of every request, statistics, configuration). Requests share prefixes."""
    rng = np.random.default_rng(11)
    stems = [rng.integers(3, 250, 30).tolist() for _ in range(3)]
    prompts = [stems[i % 3][: 5 + 6 * (i % 5)] + rng.integers(3, 250, 1 + i % 4).tolist() for i in range(12)]
    said: dict[str, Any] = {
        "device": "cpu", "dtype": "float32", "skip_tokenizer_init": True, "block_size": 4, "max_model_len": 64,
        "max_num_seqs": 6, "max_num_batched_tokens": 16, "use_tqdm_on_load": False,
    }  # fmt: skip
    llm = LLM(str(path), **(said | more))
    try:
        params = [
            SamplingParams(temperature=0.9 * (i % 2), seed=i, max_tokens=10, ignore_eos=True, logprobs=1, detokenize=False)
            for i in range(12)
        ]
        outs = [o.outputs[0] for o in llm.generate([{"prompt_token_ids": p} for p in prompts], params, use_tqdm=False)]
        told = [(list(o.token_ids), [by[t].logprob for by, t in zip(o.logprobs, o.token_ids, strict=True)]) for o in outs]
        return told, llm.stats(), llm.config
    finally:
        llm.shutdown()


@pytest.mark.slow
@pytest.mark.parametrize("name", ["deepseek-v3", "glm-moe-dsa"])
def test_a_gpu_s_device_says_what_the_processor_says(name: str, tmp_path: Path) -> None:
    path = make_checkpoint(name, tmp_path)
    (want, _, _), (got, stats, _) = serve(path), serve(path, device=HOST, num_gpu_blocks_override=20)
    assert stats.prefix_hits > 0
    assert stats.preemptions > 0
    assert [t for t, _ in got] == [t for t, _ in want]
    for a, b in zip(got, want, strict=True):
        np.testing.assert_allclose(a[1], b[1], atol=1e-4)


@pytest.mark.slow
def test_a_cache_of_codes_is_a_quarter_as_large_and_says_about_the_same(tmp_path: Path) -> None:
    path = make_checkpoint("deepseek-v3", tmp_path)
    whole, _, config = serve(path)
    small, _, coded = serve(path, kv_cache_dtype="int8_per_token_head")
    assert [c.cache.groups[0].bytes_per_block for c in (config, coded)] == [3 * 4 * 48 * 4, 3 * 4 * (48 + 4)]
    first = [(a[1][0], b[1][0]) for a, b in zip(whole, small, strict=True) if a[0][0] == b[0][0]]
    assert len(first) > 6
    np.testing.assert_allclose(*zip(*first, strict=True), atol=0.15)
