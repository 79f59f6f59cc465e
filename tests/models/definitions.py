"""Comparison of a checkpoint with its model's definition, a function of token ids -> logits [T, vocab], where transformers has
none."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from rig import Rig
from torch import Tensor

from thalweg import LLM, SamplingParams

Definition = Callable[[list[int]], Tensor]


def compare(path: Path, definition: Definition, vocab: int, platform: str = "cpu") -> None:
    """Greedy tokens, and log-probabilities of prompts and of generated tokens, over mixed batches of chunks and decodes."""
    rng = np.random.default_rng(3)
    prompts = [rng.integers(0, vocab, n).tolist() for n in (31, 1, 18, 7)]
    for s in Rig(path, platform=platform).generate(prompts, 8, chunk=6, budget=17):
        logp = definition(s.tokens).log_softmax(-1)
        assert s.tokens[s.prompt :] == logp[s.prompt - 1 : -1].argmax(-1).tolist()
        chosen = logp[torch.arange(len(s.tokens) - 1), torch.tensor(s.tokens[1:])].numpy()
        np.testing.assert_allclose(s.scores, chosen[: s.prompt - 1], atol=1e-4)
        np.testing.assert_allclose(s.logprobs, chosen[s.prompt - 1 :], atol=1e-4)


def compare_under_pressure(path: Path, definition: Definition, vocab: int, **settings: int) -> None:
    """The same of the whole engine on cpu, where sequences are preempted, and prefixes hit. settings: of LLM."""
    llm = LLM(
        str(path), device="cpu", dtype="float32", skip_tokenizer_init=True, block_size=4, max_model_len=64, max_num_seqs=9,
        max_num_batched_tokens=16, num_gpu_blocks_override=17, use_tqdm_on_load=False, **settings,
    )  # fmt: skip
    rng = np.random.default_rng(5)
    shared, *fresh = (rng.integers(3, vocab - 1, n).tolist() for n in (16, 1, 7, 23, 40, 12))
    work = [*fresh, *(shared + each for each in fresh[:3]), list(fresh[3])]
    params = SamplingParams(temperature=0, max_tokens=12, ignore_eos=True, logprobs=0, detokenize=False)
    try:
        for _ in range(2):  # the second round finds prefixes of the first
            outs = llm.generate([{"prompt_token_ids": p} for p in work], params, use_tqdm=False)
            for prompt, out in zip(work, outs, strict=True):
                got = list(out.outputs[0].token_ids)
                rows = definition([*prompt, *got[:-1]])[len(prompt) - 1 :].log_softmax(-1)
                assert got == rows.argmax(-1).tolist()
                mine = [step[t].logprob for step, t in zip(out.outputs[0].logprobs, got, strict=True)]
                np.testing.assert_allclose(mine, rows.amax(-1).numpy(), atol=1e-4)
        stats = llm.stats()
        assert stats.preemptions > 0
        assert stats.prefix_hits > 0
    finally:
        llm.shutdown()


def compare_with_one_by_one(path: Path, vocab: int) -> None:
    """The whole engine on cpu, where sequences are preempted, and prefixes hit, with the same requests one after
    the other."""
    rng = np.random.default_rng(5)
    shared, *fresh = (rng.integers(3, vocab - 1, n).tolist() for n in (16, 1, 7, 23, 40, 12))
    work = [{"prompt_token_ids": p} for p in (*fresh, *(shared + each for each in fresh[:3]), list(fresh[3]))]
    params = SamplingParams(temperature=0, max_tokens=12, ignore_eos=True, logprobs=0, detokenize=False)
    common: dict[str, Any] = {
        "dtype": "float32",
        "skip_tokenizer_init": True,
        "block_size": 4,
        "max_model_len": 64,
        "use_tqdm_on_load": False,
    }
    answers: list[Any] = []
    said: dict[str, Any]
    for said in ({"max_num_seqs": 1, "enable_prefix_caching": False}, {
        "max_num_seqs": 9, "max_num_batched_tokens": 16, "num_gpu_blocks_override": 17,
    }):  # fmt: skip
        llm = LLM(str(path), device="cpu", **common, **said)
        try:
            answers += [llm.generate(work, params, use_tqdm=False) for _ in range(len(answers) + 1)]  # the last finds prefixes
            stats = llm.stats()
        finally:
            llm.shutdown()
    assert stats.preemptions > 0
    assert stats.prefix_hits > 0
    for outs in answers[1:]:
        for first, second in zip(answers[0], outs, strict=True):
            (a,), (b,) = first.outputs, second.outputs
            assert list(a.token_ids) == list(b.token_ids)
            scores = ([s[t].logprob for s, t in zip(x.logprobs, x.token_ids, strict=True)] for x in (a, b))
            np.testing.assert_allclose(*scores, atol=1e-4)
