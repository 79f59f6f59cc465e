"""Layers that read another's cache, and chunked attention: the whole engine, beyond what every family goes through."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from test_against_transformers import prompts, test_greedy_tokens_and_logprobs_equal_transformers_under_pressure
from zoo import make_checkpoint

from thalweg import LLM, SamplingParams

HOST = "thalweg.backends.torch_gpu.testing:HostGpuPlatform"
under_pressure = test_greedy_tokens_and_logprobs_equal_transformers_under_pressure
del test_greedy_tokens_and_logprobs_equal_transformers_under_pressure  # it is collected where it is written


@pytest.mark.slow
def test_chunks_under_pressure(tmp_path: Path) -> None:
    under_pressure("llama4", "cpu", tmp_path)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["gemma4", "gemma3n"])
def test_a_gpu_and_the_processor_write_the_same(name: str, tmp_path: Path) -> None:
    path, made = make_checkpoint(name, tmp_path), []
    params = SamplingParams(temperature=0, max_tokens=6, ignore_eos=True, logprobs=0, detokenize=False)
    for device, more in (("cpu", {}), (HOST, {}), ("cpu", {"kv_cache_dtype": "int8_per_token_head"})):
        llm = LLM(
            str(path), device=device, dtype="float32", skip_tokenizer_init=True, block_size=8, max_model_len=64,
            max_num_batched_tokens=16, max_num_seqs=4, use_tqdm_on_load=False, **more,
        )  # fmt: skip
        asked = [{"prompt_token_ids": p} for p in prompts(llm.config.model.vocab)[:4]]
        outs = [o.outputs[0] for o in llm.generate(asked, params, use_tqdm=False)]
        made.append([[step[t].logprob for step, t in zip(o.logprobs, o.token_ids, strict=True)] for o in outs])
        llm.shutdown()
    np.testing.assert_allclose(made[1], made[0], atol=1e-4)
    np.testing.assert_allclose(
        [m[0] for m in made[2]], [m[0] for m in made[0]], atol=0.2
    )  # codes of 8 bits, and the same tokens
