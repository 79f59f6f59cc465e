"""A draft model in the target's steps: its drafts are those of transformers' run of it, and no text depends on them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import transformers
from amounts import some
from draft_rounds import record_rounds
from zoo import make_checkpoint

from thalweg import LLM, SamplingParams
from thalweg.backends.torch_gpu.attention import GatherAttention
from thalweg.checkpoint.hub import resolve_model
from thalweg.config import EngineArgs
from thalweg.engine.control.speculation.gain import Gain
from thalweg.engine.planning.memory import plan
from thalweg.errors import ConfigError, ThalwegError
from thalweg.hal.attention import AttentionBackend
from thalweg.nano import score

MOST = 3
DRAFT = {"method": "draft_model", "model": "thalweg-nano-draft", "num_speculative_tokens": MOST}
HOST = "thalweg.backends.torch_gpu.testing:HostGpuPlatform"
PROMPTS = ["one two three one two three one two", "12 + 30 =", "Reverse the word: lantern\nReverse the", "a b c d a b"]
KINDS: list[dict[str, Any]] = [
    {}, {"temperature": 0.8, "seed": 5}, {"temperature": 1.0, "seed": 9, "n": 3}, {"stop": [" two", "an"]},
    {"frequency_penalty": 0.5, "logprobs": 1}, {"temperature": 0.7, "seed": 1, "min_tokens": 9, "ignore_eos": False},
]  # fmt: skip


@pytest.fixture(autouse=True)
def always(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Gain, "allows", lambda self, streams: True)  # whatever this machine's clock says


def serve(drafts: Any, **args: Any) -> LLM:
    sizes = {"max_model_len": 160, "max_num_seqs": 4, "dtype": "float32"}
    return LLM(seed=0, speculative_config=drafts, use_tqdm_on_load=False, **{"device": "cpu", **sizes, **args})


@pytest.mark.slow
def test_drafts_are_those_that_transformers_computes(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of chats in chunks, with prefix hits: round by round, after accepted, rejected and partly accepted drafts."""
    seen = record_rounds(monkeypatch)
    llm = serve(DRAFT, max_num_batched_tokens=24, max_model_len=256)
    chats = [list(e.messages) for task in ("count", "reverse", "copy") for e in score.held_out(task, some(2, 6), 0)]
    for _ in range(2):
        llm.chat(chats, SamplingParams(max_tokens=16, temperature=0), use_tqdm=False)
    stats = llm.stats()
    llm.shutdown()
    assert stats.prefix_hits
    assert stats.accepted_per_position[0] > 0.6 * stats.drafts
    model = transformers.AutoModelForCausalLM.from_pretrained(resolve_model("thalweg-nano-draft")).float()
    right, ends = 0, llm.llm_engine.frontend.eos_ids
    seen = [(known, drafts) for known, drafts in seen if known[-1] not in ends]  # others ended, perhaps before accepted drafts
    with torch.no_grad():
        for known, drafts in seen:
            ids = list(known)
            for _ in range(MOST):
                ids.append(int(model(torch.tensor([ids])).logits[0, -1].argmax()))
            right += ids[len(known) :] == drafts
    assert right >= 0.99 * len(seen)
    assert len(seen) > 40


def texts(drafts: Any, **args: Any) -> tuple[list[Any], Any]:
    llm = serve(drafts, **args)
    try:
        work = [(p, {"max_tokens": 24, "temperature": 0, "ignore_eos": True} | kind) for kind in KINDS for p in PROMPTS]
        outs = llm.generate([p for p, _ in work], [SamplingParams(**kind) for _, kind in work], use_tqdm=False)
        return [(c.text, tuple(c.token_ids), c.stop_reason, c.logprobs) for o in outs for c in o.outputs], llm.stats()
    finally:
        llm.shutdown()


@pytest.mark.slow
@pytest.mark.parametrize("device", ["cpu", *(pytest.param(name, marks=pytest.mark.nightly) for name in ("reference", HOST))])
def test_text_is_the_same_with_a_draft_model(device: str) -> None:
    """Sequences give way to others, prompts come in chunks next to drafts, and prefixes are found."""
    tight = {
        "num_gpu_blocks_override": 14,
        "max_num_batched_tokens": 24,
        "block_size": 8,
        "max_model_len": 96,
        "device": device,
    }
    without, _ = texts(None, **tight)
    with_drafts, stats = texts(DRAFT, **tight)
    assert with_drafts == without
    assert stats.preemptions
    assert stats.draft_tokens > stats.accepted_tokens > 10


def test_the_plan_counts_the_draft() -> None:
    args = {"device": "cpu", "max_model_len": 256}
    target, draft = (plan(EngineArgs(model=str(resolve_model(n)), **args)) for n in ("thalweg-nano", "thalweg-nano-draft"))
    both = plan(EngineArgs(model=str(resolve_model("thalweg-nano")), speculative_config=DRAFT, **args))
    assert both.weights == target.weights + draft.weights
    assert both.kv_per_token == target.kv_per_token + draft.kv_per_token
    ranks = {"model": str(resolve_model("thalweg-nano")), "tensor_parallel_size": 2, **args}
    target = plan(EngineArgs(**ranks))
    whole = plan(EngineArgs(**ranks, speculative_config={**DRAFT, "draft_tensor_parallel_size": 1}))
    both = plan(EngineArgs(**ranks, speculative_config=DRAFT))
    assert whole.weights == target.weights + draft.weights
    assert target.weights + draft.weights // 2 <= both.weights < whole.weights
    with pytest.raises(ConfigError, match=r"draft_tensor_parallel_size: 3 ranks do not divide .*; set it to 1"):
        plan(EngineArgs(**{**ranks, "tensor_parallel_size": 3}, speculative_config=DRAFT))


def test_drafts_that_cannot_be_are_refused_in_words(tmp_path: Path) -> None:
    other = str(make_checkpoint("llama", tmp_path))
    for config, args, words in (
        ({"model": other}, {}, "has id .* and the target .*: choose one of the same family"),
        ({"model": None}, {}, "model: draft_model needs a directory or a hub id"),
        ({"model": 7}, {}, "model: must be a directory or a hub id"),
        ({"model": str(tmp_path / "none")}, {}, "speculative_config: model: .* does not exist"),
        ({"draft_sample_method": "block"}, {}, "draft_sample_method: must be one of probabilistic, greedy"),
        ({"draft_tensor_parallel_size": 2}, {}, "draft_tensor_parallel_size: must be 1"),
    ):
        with pytest.raises(ThalwegError, match=words):
            serve({**DRAFT, **config}, **args)
    mamba = str(make_checkpoint("mamba2", tmp_path / "m"))
    with pytest.raises(ConfigError, match="has layers other than attention"):
        serve({**DRAFT, "model": mamba})
    with pytest.raises(ConfigError, match="no layer of this model has that"):
        serve({**DRAFT, "model": other}, model=mamba)


def test_attention_that_plans_on_the_host_only_is_refused_in_words(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(GatherAttention, "plan_on_device", AttentionBackend.plan_on_device)
    with pytest.raises(ConfigError, match=r"draft_model: attention .*torch-gather.* plans each step on the host"):
        serve(DRAFT, device=HOST)


def test_drafts_after_the_end_of_the_context_harm_nothing() -> None:
    llm = serve(DRAFT, max_model_len=32, block_size=8)
    ids = np.random.default_rng(0).integers(10, 900, 20).tolist()
    out = llm.generate(
        [{"prompt_token_ids": ids}], SamplingParams(max_tokens=40, temperature=0, ignore_eos=True), use_tqdm=False
    )
    llm.shutdown()
    assert len(out[0].outputs[0].token_ids) == 12
