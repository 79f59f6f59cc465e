"""HRM-Text: all tokens of a prompt attend to each other, in steps of several requests, cached, preempted, or too long."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
import pytest
import torch
import transformers
from test_images import GREEDY, engine
from zoo import make_checkpoint

from thalweg.errors import RequestError
from thalweg.params import BeamSearchParams

BUDGET = 64
PROMPTS = [list(range(30 + i, 30 + i + 5 * i + 3)) for i in range(4)]


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_checkpoint("hrm-text", tmp_path_factory.mktemp("hrm"))


@pytest.fixture(scope="module")
def model(path: Path) -> Any:
    return transformers.HrmTextForCausalLM.from_pretrained(path, dtype=torch.float32).eval()


def greedy(model: Any, ids: list[int], new: int, prefix: bool = True) -> tuple[list[int], list[float]]:
    """transformers' tokens and their log-probabilities, of a prompt with token types 1."""
    types = torch.full((1, len(ids)), int(prefix))
    with torch.inference_mode():
        out = model.generate(
            torch.tensor([ids]), token_type_ids=types, max_new_tokens=new, do_sample=False, output_logits=True,
            return_dict_in_generate=True, eos_token_id=None, pad_token_id=0,
        )  # fmt: skip
    tokens = out.sequences[0, len(ids) :].tolist()
    return tokens, [float(torch.log_softmax(row[0].float(), -1)[t]) for row, t in zip(out.logits, tokens, strict=True)]


def check(model: Any, out: Any, new: int) -> None:
    tokens, scores = greedy(model, list(out.prompt_token_ids), new)
    answer = out.outputs[0]
    assert list(answer.token_ids) == tokens
    if answer.logprobs:
        found = [row[t].logprob for row, t in zip(answer.logprobs, tokens, strict=True)]
        assert found == pytest.approx(scores, abs=2e-4)


@pytest.mark.slow
def test_tokens_of_a_prompt_attend_to_each_other(path: Path, model: Any) -> None:
    """Several prompts in a step, then the same from the prefix cache, which only equal prompts share."""
    llm = engine(path, max_num_batched_tokens=BUDGET, max_model_len=160)
    params = msgspec.structs.replace(GREEDY, max_tokens=12, logprobs=0, ignore_eos=True)
    try:
        asked = [{"prompt_token_ids": ids} for ids in PROMPTS]
        for out in llm.generate(asked, params, use_tqdm=False):
            check(model, out, 12)
        assert any(greedy(model, ids, 12) != greedy(model, ids, 12, prefix=False) for ids in PROMPTS)
        hits = llm.stats().prefix_hits
        for ids in ([*PROMPTS[-1][:-1], 99], [*PROMPTS[-1], 99]):
            check(model, llm.generate({"prompt_token_ids": ids}, params, use_tqdm=False)[0], 12)
        assert llm.stats().prefix_hits == hits
        check(model, llm.generate(asked[-1], params, use_tqdm=False)[0], 12)
        assert llm.stats().prefix_hits > hits
        out = llm.generate({"prompt_token_ids": [30] * (BUDGET + 1)}, params, use_tqdm=False)[0]
        assert out.outputs[0].finish_reason == "error"
        with pytest.raises(RequestError, match="beam search is not supported"):
            llm.beam_search([asked[0]], BeamSearchParams(beam_width=2, max_tokens=2))
    finally:
        llm.shutdown()


@pytest.mark.slow
def test_a_preempted_request_sees_the_whole_prompt_again(path: Path, model: Any) -> None:
    llm = engine(path, max_num_batched_tokens=BUDGET, num_gpu_blocks_override=14, max_model_len=160)
    try:
        params = msgspec.structs.replace(GREEDY, max_tokens=90, ignore_eos=True)
        for out in llm.generate([{"prompt_token_ids": ids} for ids in PROMPTS], params, use_tqdm=False):
            check(model, out, 90)
        assert llm.stats().preemptions > 0
    finally:
        llm.shutdown()


@pytest.mark.nightly
def test_two_ranks_give_the_same_tokens(path: Path, model: Any) -> None:
    """Rows of the tensor of q, k, v and the gate are divided by heads."""
    llm = engine(path, max_num_batched_tokens=BUDGET, max_model_len=160, tensor_parallel_size=2)
    try:
        params = msgspec.structs.replace(GREEDY, max_tokens=12, ignore_eos=True)
        for out in llm.generate([{"prompt_token_ids": ids} for ids in PROMPTS], params, use_tqdm=False):
            check(model, out, 12)
    finally:
        llm.shutdown()


@pytest.mark.slow
def test_without_prefix_lm_a_prompt_is_causal(path: Path, model: Any) -> None:
    """In chunks, and from the prefix cache after another ending."""
    overrides = {"prefix_lm": False}
    llm = engine(path, max_num_batched_tokens=8, long_prefill_token_threshold=7, max_model_len=160, hf_overrides=overrides)
    params = msgspec.structs.replace(GREEDY, max_tokens=12, ignore_eos=True)
    try:
        for out in llm.generate([{"prompt_token_ids": ids} for ids in PROMPTS], params, use_tqdm=False):
            assert list(out.outputs[0].token_ids) == greedy(model, list(out.prompt_token_ids), 12, prefix=False)[0]
        other = [*PROMPTS[-1][:-1], 99]
        out = llm.generate({"prompt_token_ids": other}, params, use_tqdm=False)[0]
        assert list(out.outputs[0].token_ids) == greedy(model, other, 12, prefix=False)[0]
        assert llm.stats().prefix_hits > 0
    finally:
        llm.shutdown()
