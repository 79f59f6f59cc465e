"""N-gram drafts end to end: text with them equals text without, byte for byte, whatever else is asked for."""

from __future__ import annotations

from typing import Any

import pytest
from amounts import some

from thalweg import LLM, SamplingParams
from thalweg.backends.torch_gpu.executable import GpuExecutable
from thalweg.engine.control.speculation.gain import Gain
from thalweg.errors import ConfigError
from thalweg.hal.step import StepBatch

DRAFTS = {"method": "ngram", "num_speculative_tokens": 4, "prompt_lookup_min": 2, "prompt_lookup_max": 4}
PROMPTS = [
    "one two three one two three one two",
    "Reverse the word: lantern\nReverse the word: lantern\nReverse the",
    "12 + 30 =",
    "a b c d a b c d a b",
    "The capital of France is",
]
PARAMS = {
    "greedy": {},
    "seeded": {"temperature": 0.8, "seed": 5},
    "truncated": {"temperature": 1.0, "seed": 6, "top_k": 20, "top_p": 0.9, "min_p": 0.01},
    "several": {"temperature": 0.7, "seed": 9, "n": 3},
    "stopped": {"stop": [" two", "an"], "include_stop_str_in_output": True},
    "penalties": {"repetition_penalty": 1.3, "frequency_penalty": 0.2},
    "logprobs": {"logprobs": 2},
    "biased": {"logit_bias": {5: 3.0}, "min_tokens": 12},
    "ends": {"ignore_eos": False},
}
HOST = "thalweg.backends.torch_gpu.testing:HostGpuPlatform"
"""Steps run late and two at a time, by graphs of padded sizes."""


def serve(device: str, drafts: bool, **args: Any) -> tuple[list[Any], Any]:
    llm = LLM(
        device=device, dtype="float32", max_model_len=192, seed=0, speculative_config=DRAFTS if drafts else None,
        use_tqdm_on_load=False, **args,
    )  # fmt: skip
    try:
        work = [(p, SamplingParams(**{"max_tokens": some(40, 70), "temperature": 0, "ignore_eos": True} | kind))
                for kind in PARAMS.values() for p in PROMPTS[: some(3, 5)]]  # fmt: skip
        outputs = llm.generate([p for p, _ in work], [s for _, s in work], use_tqdm=False)
        said = [[(c.text, tuple(c.token_ids), c.finish_reason, c.stop_reason) for c in o.outputs] for o in outputs]
        return said, llm.stats()
    finally:
        llm.shutdown()


@pytest.mark.slow
@pytest.mark.parametrize("device", ["cpu", *(pytest.param(name, marks=pytest.mark.nightly) for name in ("reference", HOST))])
def test_text_is_the_same_with_drafts_and_without(device: str) -> None:
    without, plain = serve(device, False, max_num_seqs=8)
    with_drafts, stats = serve(device, True, max_num_seqs=8)
    assert with_drafts == without
    assert plain.draft_tokens == 0
    assert stats.accepted_tokens > 10  # how many depends on whether they pay


@pytest.mark.slow
def test_text_is_the_same_where_sequences_give_way_and_find_prefixes() -> None:
    tight = {"max_num_seqs": 6, "num_gpu_blocks_override": 24, "max_num_batched_tokens": 24}
    without, _ = serve("cpu", False, max_num_seqs=8)
    with_drafts, stats = serve("cpu", True, **tight)
    assert with_drafts == without
    assert stats.preemptions > 0
    assert stats.prefix_hits > 0
    assert stats.accepted_tokens > 10


@pytest.mark.slow
def test_steps_that_verify_drafts_are_captured_and_replayed_in_their_buckets(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Gain, "allows", lambda self, streams: True)  # whatever this machine's clock says
    widths: list[int] = []
    replay = GpuExecutable._replay

    def noted(self: GpuExecutable, graph: Any, batch: StepBatch, *rest: Any) -> Any:
        widths.append(batch.uniform)
        return replay(self, graph, batch, *rest)

    monkeypatch.setattr(GpuExecutable, "_replay", noted)
    said, accepted = [], 0
    for drafts in (DRAFTS, None):
        llm = LLM(
            device=HOST, dtype="float32", max_model_len=64, max_num_seqs=1, seed=0, speculative_config=drafts,
            additional_config={"mixed": True},  # attention that is the same in a graph
            use_tqdm_on_load=False,
        )  # fmt: skip
        try:
            params = SamplingParams(max_tokens=24, temperature=0, ignore_eos=True)
            said.append(llm.generate(PROMPTS[0], params, use_tqdm=False)[0].outputs[0].token_ids)
            accepted = max(accepted, llm.stats().accepted_tokens)
        finally:
            llm.shutdown()
    assert said[0] == said[1]
    assert accepted > 5
    assert {2, 4, 5} & set(widths)


def test_what_cannot_be_is_refused_before_anything_is_loaded() -> None:
    with pytest.raises(ConfigError, match=r"must be one of dflash, .*, suffix, not .medusa."):
        LLM(speculative_config={"method": "medusa", "num_speculative_tokens": 3})
