"""Adapters by request, from files to text: each as transformers computes it with that adapter added to the weights."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from lora_files import ALL, ATTENTION, write_adapter
from safetensors.torch import load_file, save_file
from zoo import load_reference, make_checkpoint

from thalweg import LLM, BeamSearchParams, LoRARequest, RequestOutput, SamplingParams
from thalweg.engine.planning.memory import plan
from thalweg.engine.worker.adapters import AdapterStore
from thalweg.errors import CheckpointError, ConfigError, RequestError, UnsupportedModelError
from thalweg.options.engine import EngineArgs

SIZES: dict[str, Any] = {
    "device": "cpu", "dtype": "float32", "max_model_len": 64, "block_size": 4, "max_num_seqs": 8, "max_num_batched_tokens": 24,
    "kv_cache_memory_bytes": 1 << 20, "use_tqdm_on_load": False, "threads": 1,
}  # fmt: skip
NEW = 6
GREEDY = SamplingParams(max_tokens=NEW, logprobs=0, ignore_eos=True, temperature=0)
PROMPTS = [list(b"the same prompt for all of them"), list(b"another"), list(b"the same prompt, until here")]


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_checkpoint("qwen3", tmp_path_factory.mktemp("base"))


@pytest.fixture(scope="module")
def adapters(base: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    at = tmp_path_factory.mktemp("adapters")
    return {
        "a": write_adapter(base, at / "a", 1, 3, ALL, use_rslora=True),
        "b": write_adapter(base, at / "b", 2, 8, ATTENTION),
    }


@pytest.fixture(scope="module")
def requests(adapters: dict[str, Path]) -> dict[str, LoRARequest]:
    return {name: LoRARequest(name, i, str(path)) for i, (name, path) in enumerate(adapters.items(), 1)}


@pytest.fixture(scope="module")
def llm(base: Path) -> Iterator[LLM]:
    made = LLM(base, enable_lora=True, max_loras=2, **SIZES)
    yield made
    made.shutdown()


def store_of(llm: LLM) -> AdapterStore:
    """What the worker keeps."""
    return llm.llm_engine.executor.worker.operations["write_adapter"].__self__  # type: ignore[attr-defined]


def ask(llm: LLM, prompts: list[list[int]], loras: Any, params: SamplingParams = GREEDY) -> list[RequestOutput]:
    return llm.generate([{"prompt_token_ids": p} for p in prompts], params, use_tqdm=False, lora_request=loras)


def told(output: RequestOutput) -> tuple[list[int], list[float]]:
    """Its tokens, and their log-probabilities, bit by bit."""
    (choice,) = output.outputs
    return list(choice.token_ids), [p[t].logprob for t, p in zip(choice.token_ids, choice.logprobs, strict=True)]


def check(output: RequestOutput, checkpoint: Path) -> None:
    """Each token is the argmax of transformers on this checkpoint."""
    tokens, logprobs = told(output)
    ids = [*output.prompt_token_ids, *tokens]
    with torch.inference_mode():
        logits = load_reference(checkpoint, torch.float32)(torch.tensor([ids])).logits[0, -NEW - 1 : -1].float()
    assert tokens == logits.argmax(-1).tolist()
    want = logits.log_softmax(-1)[torch.arange(NEW), torch.tensor(tokens)]
    np.testing.assert_allclose(logprobs, want.numpy(), atol=1e-4)


@pytest.mark.slow
def test_one_prompt_has_the_answer_of_each_adapter_whatever_is_cached(
    llm: LLM, base: Path, adapters: dict[str, Path], requests: dict[str, LoRARequest]
) -> None:
    for _ in range(2):  # the second time every prefix is in the cache
        outputs = ask(llm, [PROMPTS[0]] * 3, [requests["a"], None, requests["b"]])
        for output, checkpoint in zip(outputs, (adapters["a"] / "merged", base, adapters["b"] / "merged"), strict=True):
            check(output, checkpoint)
    assert [o.num_cached_tokens for o in outputs] == [28, 28, 28]
    assert len({tuple(told(o)[0]) for o in outputs}) == 3
    assert [o.lora_request for o in outputs] == [requests["a"], None, requests["b"]]


@pytest.mark.slow
@pytest.mark.parametrize(
    "fields",
    [
        {"threads": 2, "dtype": "bfloat16"},
        {"threads": 2, "quantization": "int4"},
        {"additional_config": {"isa": "portable"}},
        {"device": "thalweg.backends.torch_gpu.testing:HostGpuPlatform", "threads": None},
    ],
    ids=["bfloat16", "int4", "portable", "gpu"],
)
def test_a_row_has_the_same_bits_alone_and_beside_any_adapter(
    fields: dict[str, Any], base: Path, requests: dict[str, LoRARequest]
) -> None:
    """Prompts are computed in chunks beside others, and the cache is too small for all: some are preempted and computed again.
    Rows without an adapter are compared with an engine that has none."""
    a, b, sizes = requests["a"], requests["b"], {**SIZES, **fields}
    params = SamplingParams(max_tokens=4 * NEW, logprobs=0, ignore_eos=True, temperature=0)
    plain, llm = LLM(base, **sizes), LLM(base, enable_lora=True, max_loras=2, **sizes, num_gpu_blocks_override=18)
    alone = {lora: [told(ask(llm, [p], lora, params)[0]) for p in PROMPTS] for lora in (None, a, b)}
    assert [told(o) for o in ask(plain, PROMPTS, None, params)] == alone[None]
    assert len({tuple(alone[lora][0][0]) for lora in alone}) == 3
    for order in ([None, a, b], [b, None, None], [b, a, None]):
        llm.reset_prefix_cache()
        mixed = ask(llm, PROMPTS * 2, [*order, *reversed(order)], params)
        for i, lora in enumerate([*order, *reversed(order)]):
            assert told(mixed[i]) == alone[lora][i % len(PROMPTS)], (order, i)
    assert llm.stats().preemptions
    plain.shutdown()
    llm.shutdown()


def test_more_adapters_than_slots_take_turns(base: Path, adapters: dict[str, Path], requests: dict[str, LoRARequest]) -> None:
    llm = LLM(base, enable_lora=True, **SIZES)  # one slot, and one idle adapter is kept
    names = ["a", "b", "a", "b"]
    for output, name in zip(ask(llm, PROMPTS[:1] * 4, [requests[n] for n in names]), names, strict=True):
        check(output, adapters[name] / "merged")
    assert llm.llm_engine.list_loras() == {1, 2}
    check(ask(llm, PROMPTS[:1], requests["a"])[0], adapters["a"] / "merged")
    assert len(store_of(llm)._loaded) == 1
    llm.shutdown()


@pytest.mark.slow
def test_files_that_change_are_another_adapter(base: Path, adapters: dict[str, Path], tmp_path: Path) -> None:
    folder = tmp_path / "x"
    shutil.copytree(adapters["a"], folder)
    llm = LLM(base, enable_lora=True, enable_sleep_mode=True, **SIZES)
    check(ask(llm, PROMPTS[:1], LoRARequest("x", 1, str(folder)))[0], adapters["a"] / "merged")
    shutil.copytree(adapters["b"], folder, dirs_exist_ok=True)
    check(ask(llm, PROMPTS[:1], LoRARequest("x", 1, str(folder)))[0], adapters["a"] / "merged")
    check(ask(llm, PROMPTS[:1], LoRARequest("x", 1, str(folder), load_inplace=True))[0], adapters["b"] / "merged")
    llm.sleep()
    llm.wake_up()
    check(ask(llm, PROMPTS[:1], LoRARequest("x", 1, str(folder)))[0], adapters["b"] / "merged")
    llm.enqueue({"prompt_token_ids": PROMPTS[0]}, GREEDY, lora_request=LoRARequest("x", 1, str(folder)))
    shutil.copytree(adapters["a"], folder, dirs_exist_ok=True)
    llm.sleep(mode="keep")
    llm.wake_up()
    (lost,) = llm.wait_for_completion(use_tqdm=False)
    assert lost.outputs[0].finish_reason == "error"
    assert "the adapter has changed since it was first read" in str(lost.error)
    llm.shutdown()


@pytest.mark.slow
def test_what_cannot_be_served_is_refused_in_words_and_the_engine_goes_on(
    llm: LLM, base: Path, requests: dict[str, LoRARequest], tmp_path: Path
) -> None:
    other = make_checkpoint("llama", tmp_path / "other", tokenizer=False)
    cases = {
        "wide": (write_adapter(base, tmp_path / "wide", 1, 17, ATTENTION), UnsupportedModelError, r"rank 17 .*--max-lora-rank"),
        "norm": (
            write_adapter(base, tmp_path / "norm", 1, 2, ATTENTION),
            UnsupportedModelError,
            r"norm\.weight: whole",
        ),
        "resized": (
            write_adapter(base, tmp_path / "resized", 1, 2, ("embed_tokens",)),
            CheckpointError,
            r"embed_tokens\.weight: the adapter holds a base matrix .*\[3, 48\].*save_embedding_layers=False",
        ),
        "other": (write_adapter(other, tmp_path / "other", 1, 2, ATTENTION), CheckpointError, r"q_proj.* another model"),
        "missing": (tmp_path / "nowhere", CheckpointError, "does not exist"),
        "steep": (
            write_adapter(base, tmp_path / "steep", 1, 2, ATTENTION, lora_alpha=1e300),
            CheckpointError,
            "overflows float32",
        ),
        "twice": (write_adapter(base, tmp_path / "twice", 1, 2, ATTENTION), CheckpointError, "names the same matrix"),
        "long": (Path("/" + 200 * "n" + "a" * 3000), CheckpointError, "cannot be read"),
    }
    for name, more in (("norm", {"model.norm.weight": 48}), ("resized", {"model.embed_tokens.base_layer.weight": (3, 48)})):
        file = tmp_path / name / "adapter_model.safetensors"
        save_file(load_file(file) | {k: torch.ones(shape) for k, shape in more.items()}, file)
    file = tmp_path / "twice" / "adapter_model.safetensors"
    tensors = load_file(file)
    save_file(tensors | {name.replace(".model.model.", ".model."): values.clone() for name, values in tensors.items()}, file)
    for i, (name, (path, error, words)) in enumerate(cases.items(), 10):
        with pytest.raises(error, match=words) as e:
            ask(llm, PROMPTS[:1], LoRARequest(name, i, str(path)))
        assert str(path)[:200] in str(e.value)
    ask(llm, PROMPTS[:1] * 2, list(requests.values()))
    with pytest.raises(RequestError, match=r"lora_int_id: 1 is that of 'a'"):
        ask(llm, PROMPTS[:1], [LoRARequest("z", requests["a"].lora_int_id, str(requests["a"].lora_path))])
    with pytest.raises(RequestError, match="lora_request: 2 given for 1 prompts"):
        ask(llm, PROMPTS[:1], [requests["a"], None])
    with pytest.raises(RequestError, match="must be a LoRARequest, not str"):
        llm.generate("a", GREEDY, lora_request="a", use_tqdm=False)
    for fields in (("", 1, "/a"), ("a", 0, "/a"), ("a", True, "/a"), ("a", 1, "")):
        with pytest.raises(RequestError, match=r"^lora_"):
            LoRARequest(*fields)
    with pytest.raises(RequestError, match="base_model_name must be text, not 5"):
        LoRARequest("a", 1, "/a", base_model_name=5)  # type: ignore[arg-type]
    plain = LLM(**SIZES)
    with pytest.raises(RequestError, match="enable_lora"):
        plain.generate("a", GREEDY, lora_request=requests["a"], use_tqdm=False)
    plain.shutdown()
    assert llm.llm_engine.list_loras() == {1, 2}
    assert len(ask(llm, PROMPTS[:1], requests["b"])) == 1


def test_adapters_added_ahead_stay_within_max_cpu_loras(base: Path, requests: dict[str, LoRARequest]) -> None:
    llm = LLM(base, enable_lora=True, max_loras=1, **SIZES)
    for request in requests.values():
        llm.llm_engine.add_lora(request)
    assert len(store_of(llm)._loaded) == 1
    llm.shutdown()


@pytest.mark.slow
def test_vectors_are_those_of_the_merged_model(base: Path, adapters: dict[str, Path], requests: dict[str, LoRARequest]) -> None:
    prompts = [{"prompt_token_ids": p} for p in PROMPTS]
    llm = LLM(base, runner="pooling", enable_lora=True, max_loras=2, **SIZES)
    mixed = llm.embed(prompts, use_tqdm=False, lora_request=[requests["a"], None, requests["b"]])
    llm.shutdown()
    for i, path in enumerate((adapters["a"] / "merged", base, adapters["b"] / "merged")):
        plain = LLM(path, runner="pooling", **SIZES)
        (want,) = plain.embed(prompts[i], use_tqdm=False)
        plain.shutdown()
        np.testing.assert_allclose(mixed[i].outputs.embedding, want.outputs.embedding, atol=1e-5)


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"max_lora_rank": 5}, "max_lora_rank must be one of 1, 8, 16"),
        ({"max_loras": 0}, "max_loras must be at least 1"),
        ({"max_loras": 3, "max_cpu_loras": 2}, "max_cpu_loras"),
        ({"pipeline_parallel_size": 2}, "enable_lora: adapters are not divided among pipeline stages"),
        ({"device": "null", "threads": None}, "enable_lora: platform 'null' runs no model"),
    ],
)
@pytest.mark.sampled(2)
def test_an_engine_that_cannot_have_adapters_does_not_start(fields: dict[str, Any], words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        LLM(enable_lora=True, **{**SIZES, **fields})


def test_the_slots_are_in_the_plan(llm: LLM, base: Path) -> None:
    args = EngineArgs(model=str(base), enable_lora=True, max_loras=2, **SIZES)
    state = store_of(llm)._state.value["adapters"].values()
    held = sum(t.nbytes for target in state for t in target.values())
    planned = plan(args)
    assert planned.adapters == held > 0
    assert planned.total == plan(EngineArgs(model=str(base), **SIZES)).total + held


@pytest.mark.slow
def test_only_the_named_modules_have_room_and_others_are_refused(base: Path, adapters: dict[str, Path]) -> None:
    fields: dict[str, Any] = {"enable_lora": True, "lora_target_modules": [*ATTENTION, "layers.0.mlp.down_proj"], **SIZES}
    llm = LLM(base, lora_dtype="float32", **fields)
    check(ask(llm, PROMPTS[:1], LoRARequest("b", 1, str(adapters["b"])))[0], adapters["b"] / "merged")
    with pytest.raises(UnsupportedModelError, match=r"gate_proj\.weight: .*\(--lora-target-modules\): add"):
        ask(llm, PROMPTS[:1], LoRARequest("a", 2, str(adapters["a"])))
    held = sum(t.nbytes for target in store_of(llm)._state.value["adapters"].values() for t in target.values())
    llm.shutdown()
    planned = plan(EngineArgs(model=str(base), **fields))
    assert planned.adapters == held < plan(EngineArgs(model=str(base), enable_lora=True, **SIZES)).adapters
    for more, words in (
        ({"lora_target_modules": ["q_proj", "qkv_proj"]}, r"lora_target_modules: qkv_proj: .*down_proj, embed_tokens"),
        ({"lora_dtype": "bfloat16"}, "lora_dtype: bfloat16, but .* float32"),
    ):
        with pytest.raises(ConfigError, match=words):
            LLM(base, **{**fields, **more})


@pytest.mark.slow
@pytest.mark.parametrize(
    ("device", "options", "rounds"),
    [
        ("thalweg.backends.torch_gpu.testing:HostGpuPlatform", {}, (["a", "", "b"], ["b", "a", ""])),
        ("reference", {}, (["a", "", "b"], ["b", "a", ""])),
        ("tpu", {"jax_platform": "cpu", "precompile": "none"}, (["a"], ["b"])),
    ],
    ids=["gpu", "reference", "tpu"],
)
def test_other_devices_serve_them_too(
    device: str, options: dict[str, Any], rounds: tuple[list[str], ...], base: Path, adapters: dict[str, Path],
    requests: dict[str, LoRARequest],
) -> None:  # fmt: skip
    """One slot, so that it is written again while graphs and programs that read it exist."""
    sizes = {**SIZES, "device": device, "threads": None, "additional_config": options or None}
    llm = LLM(base, enable_lora=True, **sizes)
    for names in rounds:
        outputs = ask(llm, [PROMPTS[1]] * len(names), [requests.get(n) for n in names])
        for output, name in zip(outputs, names, strict=True):
            check(output, adapters[name] / "merged" if name else base)
    llm.shutdown()


@pytest.mark.slow
def test_beams_and_scores_of_an_adapter_are_those_of_the_merged_weights(
    llm: LLM, base: Path, adapters: dict[str, Path], requests: dict[str, LoRARequest]
) -> None:
    params = BeamSearchParams(beam_width=2, max_tokens=3, ignore_eos=True)
    prompts = [{"prompt_token_ids": p} for p in (PROMPTS[1], PROMPTS[1])]
    adapted, plain = llm.beam_search(prompts, params, lora_request=[requests["b"], None])
    assert adapted.sequences[0].lora_request == requests["b"]
    merged = LLM(adapters["b"] / "merged", **SIZES)
    (want,) = merged.beam_search(prompts[:1], params)
    merged.shutdown()
    assert [s.tokens for s in adapted.sequences] == [s.tokens for s in want.sequences] != [s.tokens for s in plain.sequences]
    vectors = LLM(base, runner="pooling", enable_lora=True, **SIZES)
    scores = [
        vectors.score("which way", "down", use_tqdm=False, lora_request=r)[0].outputs.score for r in (requests["b"], None)
    ]
    with pytest.raises(RequestError, match="one adapter for all"):
        vectors.score("which way", "down", lora_request=[requests["b"]])
    vectors.shutdown()
    merged = LLM(adapters["b"] / "merged", runner="pooling", **SIZES)
    (out,) = merged.score("which way", "down", use_tqdm=False)
    merged.shutdown()
    assert scores[0] == pytest.approx(out.outputs.score, abs=1e-5) != scores[1]
