"""Ranks over processes: a row has the same bits in any batch and chunk, and float32 gives the text of one rank."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from lora_files import ALL, ATTENTION, write_adapter
from zoo import make_checkpoint

from thalweg import LLM, LoRARequest, SamplingParams
from thalweg.engine.control.speculation.gain import Gain
from thalweg.engine.planning.memory import plan

HOST_GPU = "thalweg.backends.torch_gpu.testing:HostGpuPlatform"
PROMPTS = ["Once upon a time", "2 + 2 =", "a b a b a", "one two three " * 15, "The capital of", "hello there " * 9]
PARAMS = [
    SamplingParams(temperature=1.0 if i % 2 else 0, seed=i, max_tokens=24, ignore_eos=True, logprobs=1)
    for i in range(len(PROMPTS))
]


def answer(llm: LLM, prompts: list[str], params: list[SamplingParams], loras: Any = None) -> list[Any]:
    """Tokens and log-probabilities of each prompt."""
    made = [out.outputs[0] for out in llm.generate(prompts, params, use_tqdm=False, lora_request=loras)]
    return [(o.token_ids, [sorted((t, p.logprob) for t, p in each.items()) for each in o.logprobs or ()]) for o in made]


def start(ranks: int, dtype: str, tokens: int = 2048, device: str = "cpu", **more: Any) -> LLM:
    return LLM(
        device=device, tensor_parallel_size=ranks, dtype=dtype, max_model_len=256, max_num_seqs=8,
        max_num_batched_tokens=tokens, use_tqdm_on_load=False, enable_prefix_caching=False,
        kv_cache_memory_bytes=1 << 23, **more,
    )  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize(("ranks", "mixture"), [(2, ""), pytest.param(4, "", marks=pytest.mark.nightly), (2, "mixtral")])
def test_a_request_has_the_same_bits_alone_in_a_crowd_and_in_chunks(ranks: int, mixture: str, tmp_path: Path) -> None:
    more = {"model": str(make_checkpoint(mixture, tmp_path)), "enable_expert_parallel": True} if mixture else {}
    llm = start(ranks, "bfloat16", tokens=24, **more)
    crowd = answer(llm, PROMPTS, PARAMS)
    assert crowd == answer(llm, PROMPTS, PARAMS)
    assert crowd == [answer(llm, [prompt], [params])[0] for prompt, params in zip(PROMPTS, PARAMS, strict=True)]
    llm.llm_engine.shutdown()
    llm = start(ranks, "bfloat16", **more)
    assert crowd == answer(llm, PROMPTS, PARAMS)
    llm.llm_engine.shutdown()


@pytest.mark.slow
@pytest.mark.parametrize("ranks", [pytest.param(1, marks=pytest.mark.nightly), 2])
def test_stages_of_layers_give_the_bits_of_all_layers_in_one_place(ranks: int) -> None:
    found = []
    for more in ({}, {"pipeline_parallel_size": 2}, {"pipeline_parallel_size": 2, "pipeline_layer_partition": [1, 5]}):
        llm = start(ranks, "bfloat16", tokens=24, **more)
        found.append(answer(llm, PROMPTS, PARAMS))
        llm.llm_engine.shutdown()
    assert found[1] == found[2] == found[0]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("ranks", "device"),
    [(2, "cpu"), *(pytest.param(*each, marks=pytest.mark.nightly) for each in ((4, "cpu"), (2, HOST_GPU)))],
)
def test_rows_with_adapters_have_the_text_of_one_rank_and_the_same_bits_alone(ranks: int, device: str, tmp_path: Path) -> None:
    """Eight adapters and the base model in one batch. Every rank writes its part of each into the slots."""
    base = make_checkpoint("qwen3", tmp_path / "base")
    paths = [write_adapter(base, tmp_path / str(i), i, (1, 3, 8)[i % 3], ALL if i % 2 else ATTENTION) for i in range(1, 9)]
    loras = [None, *(LoRARequest(path.name, int(path.name), str(path)) for path in paths)]
    prompts, found = [PROMPTS[i % 6] for i in range(9)], {}
    params = [SamplingParams(temperature=0, max_tokens=6, ignore_eos=True, logprobs=1)] * 9
    for each in (1, ranks):
        llm = start(each, "float32", tokens=24, device=device, model=str(base), enable_lora=True, max_loras=8)
        found[each] = answer(llm, prompts, params, loras)
        executor: Any = llm.llm_engine.executor
        state = executor.worker.operations["write_adapter"].__self__._state.value["adapters"].values()
        if device == "cpu":
            assert plan(llm.llm_engine.frontend.args).adapters == sum(t.nbytes for arrays in state for t in arrays.values())
        if each > 1:
            for i in (0, 3, 8):
                assert answer(llm, prompts[i : i + 1], params[:1], loras[i : i + 1]) == found[each][i : i + 1]
        llm.llm_engine.shutdown()
    assert [tokens for tokens, _ in found[1]] == [tokens for tokens, _ in found[ranks]]
    assert len({tuple(tokens) for tokens, _ in found[1]}) == 9


@pytest.mark.nightly
@pytest.mark.parametrize(
    ("ranks", "more"),
    [(2, {}), (4, {}), (2, {"quantization": "int4"}), (2, {"quantization": "int8"}), (2, {"device": HOST_GPU})],
)
def test_ranks_that_divide_no_sum_have_the_bits_of_one(ranks: int, more: dict[str, str]) -> None:
    found = []
    for each in (1, ranks):
        llm = start(each, "bfloat16", tokens=24, tp_invariant=True, **more)
        found.append(answer(llm, PROMPTS, PARAMS))
        llm.llm_engine.shutdown()
    assert found[0] == found[1]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("method", "more"),
    [
        ("draft_model", {"model": "thalweg-nano-draft"}),
        pytest.param(
            "draft_model", {"model": "thalweg-nano-draft", "draft_tensor_parallel_size": 1}, marks=pytest.mark.nightly
        ),
        *(pytest.param(name, {}, marks=pytest.mark.nightly) for name in ("ngram", "suffix")),
    ],
)
def test_drafts_change_no_bit_of_what_ranks_answer(method: str, more: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Gain, "allows", lambda self, streams: True)  # whatever this machine's clock says
    found = []
    for config in (None, {"method": method, "num_speculative_tokens": 3, **more}):
        llm = start(2, "bfloat16", tokens=24, speculative_config=config)
        found.append(answer(llm, PROMPTS, PARAMS))
        stats = llm.stats()
        llm.llm_engine.shutdown()
    assert found[0] == found[1]
    assert stats.draft_tokens >= stats.accepted_tokens > 10


@pytest.mark.slow
@pytest.mark.parametrize("device", ["cpu", HOST_GPU])
def test_the_text_of_ranks_is_that_of_one(device: str) -> None:
    """On the hosted GPU, most steps are graphs that hold the collectives."""
    texts = []
    for ranks in (1, 2):
        llm = start(ranks, "float32", device=device)
        texts.append([tokens for tokens, _ in answer(llm, PROMPTS, PARAMS)])
        if device == HOST_GPU:
            runtime = llm.llm_engine.core._executor.worker.device._runtime
            assert runtime.replays > len(PROMPTS)
        llm.llm_engine.shutdown()
    assert texts[0] == texts[1]
