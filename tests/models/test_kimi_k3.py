"""Kimi K3 against its definition, which transformers does not have."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from kimi_k3_definition import CHANGES, TEXT, VOCAB, Definition, write
from rig import Rig

from thalweg import LLM, SamplingParams
from thalweg.errors import CheckpointError, UnsupportedModelError
from thalweg.models import registry


@pytest.mark.parametrize("platform", ["cpu", pytest.param("reference", marks=pytest.mark.slow)])
@pytest.mark.parametrize("change", CHANGES)
def test_tokens_and_logprobs_are_those_of_the_definition(change: str, platform: str, tmp_path: Path) -> None:
    oracle = Definition(*write(tmp_path, change))
    rng = np.random.default_rng(3)
    prompts = [rng.integers(0, VOCAB, n).tolist() for n in (31, 1, 18, 7)]
    for s in Rig(tmp_path, platform=platform).generate(prompts, 8, chunk=6, budget=17):
        logp = oracle(s.tokens).log_softmax(-1)
        assert s.tokens[s.prompt :] == logp[s.prompt - 1 : -1].argmax(-1).tolist()
        chosen = logp[torch.arange(len(s.tokens) - 1), torch.tensor(s.tokens[1:])].numpy()
        np.testing.assert_allclose(s.scores, chosen[: s.prompt - 1], atol=1e-4)
        np.testing.assert_allclose(s.logprobs, chosen[s.prompt - 1 :], atol=1e-4)


@pytest.mark.slow
def test_chunks_preemption_and_prefix_hits_change_nothing(tmp_path: Path) -> None:
    oracle = Definition(*write(tmp_path, "whole"))
    llm = LLM(
        str(tmp_path), device="cpu", dtype="float32", skip_tokenizer_init=True, block_size=4, max_model_len=64, max_num_seqs=9,
        max_num_batched_tokens=16, num_gpu_blocks_override=17, use_tqdm_on_load=False, mamba_block_size=8,
    )  # fmt: skip
    rng = np.random.default_rng(5)
    shared, *fresh = (rng.integers(3, VOCAB - 1, n).tolist() for n in (16, 1, 7, 23, 40, 12))
    work = [*fresh, *(shared + each for each in fresh[:3]), list(fresh[3])]
    params = SamplingParams(temperature=0, max_tokens=12, ignore_eos=True, logprobs=0, detokenize=False)
    try:
        for _ in range(2):  # the second round finds prefixes of the first
            outs = llm.generate([{"prompt_token_ids": p} for p in work], params, use_tqdm=False)
            for prompt, out in zip(work, outs, strict=True):
                got = list(out.outputs[0].token_ids)
                rows = oracle([*prompt, *got[:-1]])[len(prompt) - 1 :].log_softmax(-1)
                assert got == rows.argmax(-1).tolist()
                mine = [step[t].logprob for step, t in zip(out.outputs[0].logprobs, got, strict=True)]
                np.testing.assert_allclose(mine, rows.amax(-1).numpy(), atol=1e-4)
        stats = llm.stats()
        assert stats.preemptions > 0
        assert stats.prefix_hits > 0
    finally:
        llm.shutdown()


@pytest.mark.parametrize(
    ("said", "error", "match"),
    [
        ({"mla_use_nope": False}, UnsupportedModelError, "mla_use_nope"),
        ({"linear_attn_config": None}, CheckpointError, "linear_attn_config: must be"),
        ({"linear_attn_config": {**TEXT["linear_attn_config"], "odd": 1}}, UnsupportedModelError, "'odd'"),
        ({"hidden_act": "relu"}, UnsupportedModelError, "hidden_act"),
        ({"activation_situ_beta": -1.0}, CheckpointError, "activation_situ_beta"),
    ],
)
def test_what_is_refused(said: dict[str, object], error: type[Exception], match: str) -> None:
    config = {**TEXT, **said, "architectures": ["KimiK3LinearForCausalLM"]}
    with pytest.raises(error, match=match):
        registry.family(config)(config)
