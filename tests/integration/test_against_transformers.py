"""The whole engine against an independent implementation: same weights, same greedy tokens, close log-probabilities,
while prefill is chunked, prefixes hit and sequences are preempted."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from zoo import CONFIGS, load_reference, make_checkpoint

from thalweg import LLM, SamplingParams
from thalweg.errors import ConfigError

NEW = 12


def prompts(vocab: int) -> list[list[int]]:
    """Some share 16 tokens, one repeats another, lengths from 1 to 40."""
    rng = np.random.default_rng(5)
    shared = rng.integers(3, vocab, 16).tolist()
    fresh = [rng.integers(3, vocab, n).tolist() for n in (1, 7, 23, 40, 12)]
    return [*fresh, shared + fresh[0], shared + fresh[1], shared + fresh[2], list(fresh[3])]


@torch.inference_mode()
def chosen(model: torch.nn.Module, prompt: list[int], told: list[int]) -> tuple[list[int], list[float]]:
    """The model's likeliest token after the prompt and after each of `told` but the last, and their log-probabilities: those
    of `told` if and only if that is what the model would write. One forward of them all: no cache to share a bug with."""
    rows = model(torch.tensor([[*prompt, *told[:-1]]])).logits[0, len(prompt) - 1 :].float().log_softmax(-1)
    return rows.argmax(-1).tolist(), rows.amax(-1).tolist()


QUICK = ("llama", "qwen3-windowed")
"""What `make check` runs, on one device: one kind of cache, and two. tests/models has every family, without an engine."""
RECURRENT = ("qwen3-next", "qwen3.5", "qwen4-exp", "nemotron-h", "jamba", "lfm2", "minimax", "zamba2", "zaya", "inkling")
STATES = {name: {"mamba_block_size": 8} for name in RECURRENT}
"""States are kept so often that these short prompts share some."""
MORE = ("minimax", "deepseek-v4", "qwen4-exp", "zamba2", "diffllama", "dots3-note", "zaya", "inkling")
"""Whose caches differ from those of all `CONFIGS`."""
NAMES = [pytest.param(n, marks=() if n in QUICK else pytest.mark.slow) for n in sorted(CONFIGS)]


@pytest.mark.sampled(8, 20)
@pytest.mark.parametrize("device", [pytest.param("reference", marks=pytest.mark.slow), "cpu"])
@pytest.mark.parametrize("name", [*NAMES, *(pytest.param(n, marks=pytest.mark.slow) for n in MORE)])
@pytest.mark.slow
def test_greedy_tokens_and_logprobs_equal_transformers_under_pressure(name, device, tmp_path):
    path = make_checkpoint(name, tmp_path)
    reference = load_reference(path, torch.float32)
    llm = LLM(
        str(path), device=device, dtype="float32", skip_tokenizer_init=True, block_size=4, max_model_len=64,
        max_num_seqs=9, max_num_batched_tokens=16, num_gpu_blocks_override=17, use_tqdm_on_load=False, **STATES.get(name, {}),
    )  # fmt: skip
    work = prompts(llm.config.model.vocab)
    params = SamplingParams(temperature=0, max_tokens=NEW, ignore_eos=True, logprobs=0, detokenize=False)
    # Twice: the second round finds prefixes of the first.
    for _ in range(2):
        for prompt, out in zip(
            work, llm.generate([{"prompt_token_ids": p} for p in work], params, use_tqdm=False), strict=True
        ):
            got = out.outputs[0]
            tokens, logprobs = chosen(reference, prompt, list(got.token_ids))
            assert list(got.token_ids) == tokens
            assert len(tokens) == NEW
            mine = [step[t].logprob for step, t in zip(got.logprobs, got.token_ids, strict=True)]
            np.testing.assert_allclose(mine, logprobs, atol=1e-4)
    stats = llm.stats()
    if any(g.kind in ("full", "latent") for g in llm.config.cache.groups):  # a sequence that only keeps a window stops growing
        assert stats.preemptions > 0, "the pressure this test is about did not happen"
    assert stats.prefix_hits > 0
    assert stats.blocks_used == 0
    assert max(len(p) for p in work) > llm.config.scheduler.token_budget, "no prompt needed more than one chunk"
    llm.shutdown()


@pytest.mark.parametrize("name", NAMES)
def test_prompt_logprobs_equal_transformers(name, tmp_path):
    path = make_checkpoint(name, tmp_path)
    reference = load_reference(path, torch.float32)
    llm = LLM(str(path), device="cpu", dtype="float32", skip_tokenizer_init=True, block_size=4, max_model_len=64,
              max_num_batched_tokens=16, max_num_seqs=4, use_tqdm_on_load=False)  # fmt: skip
    prompt = prompts(llm.config.model.vocab)[3]
    params = SamplingParams(temperature=0, max_tokens=1, prompt_logprobs=3, detokenize=False)
    for _ in range(2):  # the second time the prefix is cached, and must not be read
        (out,) = llm.generate({"prompt_token_ids": prompt}, params, use_tqdm=False)
        with torch.inference_mode():
            rows = reference(torch.tensor([prompt])).logits[0].float().log_softmax(-1)
        assert out.prompt_logprobs[0] is None
        assert len(out.prompt_logprobs) == len(prompt)
        for i in range(1, len(prompt)):
            got, row = out.prompt_logprobs[i], rows[i - 1]
            assert next(iter(got)) == prompt[i]
            assert got[prompt[i]].logprob == pytest.approx(float(row[prompt[i]]), abs=1e-4)
            assert got[prompt[i]].rank == int((row > row[prompt[i]]).sum()) + 1
            assert {t for t in got if got[t].rank <= 3} == set(row.topk(3).indices.tolist())
    llm.shutdown()


def test_positions_of_dynamic_scaling_are_stretched_as_far_as_the_user_asks(tmp_path, caplog):
    """Transformers takes the frequencies of the sequence at hand, an engine those of the longest that it serves."""
    path = make_checkpoint("llama-dynamic", tmp_path)
    reference, length = load_reference(path, torch.float32), 512  # twice what it was trained for
    with pytest.raises(ConfigError, match=r"513 exceeds .* 256 positions, which its dynamic rope scaling stretches to 512"):
        LLM(str(path), device="cpu", max_model_len=513)
    with caplog.at_level("INFO"):
        llm = LLM(str(path), device="cpu", dtype="float32", skip_tokenizer_init=True, max_model_len=length,
                  kv_cache_memory_bytes=4_000_000)  # fmt: skip
    try:
        assert "stretched to 512 tokens for every sequence; --max-model-len 256 leaves them as trained" in caplog.text
        prompt = np.random.default_rng(5).integers(3, llm.config.model.vocab, length - 1).tolist()
        params = SamplingParams(temperature=0, max_tokens=1, prompt_logprobs=0, ignore_eos=True, detokenize=False)
        (out,) = llm.generate({"prompt_token_ids": prompt}, params, use_tqdm=False)
        told = list(out.outputs[0].token_ids)
        with torch.inference_mode():
            rows = reference(torch.tensor([prompt + told])).logits[0].float().log_softmax(-1)
        assert told == [int(rows[-2].argmax())]
        got = [out.prompt_logprobs[i][t].logprob for i, t in enumerate(prompt) if i]
        np.testing.assert_allclose(got, rows[torch.arange(length - 2), torch.tensor(prompt[1:])].numpy(), atol=1e-4)
    finally:
        llm.shutdown()
