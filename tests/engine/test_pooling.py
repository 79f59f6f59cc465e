"""LLM.embed, classify, score and encode beyond BERT's vectors: decoders as embedders, classifiers, pairs, and what they
refuse. The oracle is transformers, with its own tokenizers."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import torch
import transformers
from zoo import (
    VOCAB,
    describe_pooling,
    edit_config,
    end_texts,
    make_bert_tokenizer,
    make_checkpoint,
    make_classifier,
    make_encoder,
    make_tokenizer,
)

from thalweg import LLM, EngineArgs, PoolingParams
from thalweg.engine.planning.memory import plan
from thalweg.errors import CheckpointError, ConfigError, RequestError, UnsupportedModelError

LENGTHS = (31, 1, 64, 7, 48, 2, 17, 64, 5, 30)
TIGHT = {"max_num_seqs": 2, "max_num_batched_tokens": 24, "block_size": 8}


def texts(lengths: tuple[int, ...] = LENGTHS) -> list[list[int]]:
    rng = np.random.default_rng(5)
    return [rng.integers(3, VOCAB, n).tolist() for n in lengths]


@torch.inference_mode()
def last_state(path: Path, ids: list[int], normalise: bool = True) -> np.ndarray:
    model = transformers.AutoModel.from_pretrained(path, dtype=torch.float32, attn_implementation="eager").eval()
    last = model(torch.tensor([ids])).last_hidden_state[0, -1]
    return (torch.nn.functional.normalize(last, dim=0) if normalise else last).numpy()


@torch.inference_mode()
def logits(path: Path, **inputs: list[int]) -> np.ndarray:
    auto = transformers.AutoModelForSequenceClassification
    model = auto.from_pretrained(path, dtype=torch.float32, attn_implementation="eager").eval()
    return model(**{k: torch.tensor([v]) for k, v in inputs.items()}).logits[0].numpy()


def softmax(x: np.ndarray) -> np.ndarray:
    e = np.exp(x.astype(np.float64) - x.max())
    return e / e.sum()


def sigmoid(x: np.ndarray) -> np.ndarray:
    return 1 / (1 + np.exp(-x.astype(np.float64)))


# ------------------------------------------------------------------ decoders as embedders


@pytest.mark.parametrize("name", ["qwen3", "qwen3-next"])
@pytest.mark.parametrize(
    ("device", "more"),
    [
        ("reference", {}), ("cpu", TIGHT), ("cpu", {"async_scheduling": True}),
        *(pytest.param(*case, marks=pytest.mark.slow)
          for case in (("cpu", {}), ("reference", TIGHT), ("reference", {"async_scheduling": True}))),
    ],
)  # fmt: skip
@pytest.mark.slow
def test_a_decoder_gives_the_state_of_the_last_token(device: str, more: dict, name: str, tmp_path: Path) -> None:
    """Also in chunks, and where steps are launched ahead of results."""
    path = make_checkpoint(name, tmp_path)
    llm = LLM(str(path), runner="pooling", device=device, dtype="float32", **more)
    try:
        assert llm.config.scheduler.chunked_prefill
        outs = llm.embed(texts(), use_tqdm=False)
        for o, ids in zip(outs, texts(), strict=True):
            assert o.error is None
            np.testing.assert_allclose(o.outputs.embedding, last_state(path, ids), atol=1e-5)
        (again,) = llm.embed(texts()[2], use_tqdm=False)
        if name == "qwen3":  # snapshots of a state lie further apart than these texts are long
            assert again.num_cached_tokens > 0
        np.testing.assert_allclose(again.outputs.embedding, outs[2].outputs.embedding, atol=1e-5)
        (fresh,) = llm.embed(texts()[2], use_tqdm=False, pooling_params=PoolingParams(skip_reading_prefix_cache=True))
        assert fresh.num_cached_tokens == 0
        llm._core.check()
        assert llm.stats().blocks_used == 0
    finally:
        llm.shutdown()


def test_preempted_texts_are_computed_again(tmp_path: Path) -> None:
    path = make_checkpoint("qwen3", tmp_path)
    llm = LLM(
        str(path), runner="pooling", device="cpu", dtype="float32", block_size=8, num_gpu_blocks_override=10, max_model_len=64,
        max_num_batched_tokens=16, max_num_seqs=4, enable_prefix_caching=False, max_num_partial_prefills=4,
        max_long_partial_prefills=4,
    )  # fmt: skip
    try:
        for o, ids in zip(llm.embed(texts(), use_tqdm=False), texts(), strict=True):
            np.testing.assert_allclose(o.outputs.embedding, last_state(path, ids), atol=1e-5)
        llm._core.check()
    finally:
        llm.shutdown()


@pytest.mark.parametrize("how", ["modules", "runner", "convert", "override", "class"])
def test_what_makes_an_embedder_of_a_decoder(how: str, tmp_path: Path) -> None:
    path = make_checkpoint("qwen3", tmp_path)
    more: dict = {}
    if how == "modules":
        describe_pooling(path, "lasttoken")
    elif how == "class":
        path = make_encoder("qwen3", tmp_path / "bare")
        make_tokenizer(path)
    else:
        more = {"runner": {"runner": "pooling"}, "convert": {"convert": "embed"},
                "override": {"hf_overrides": {"pooling": {"mode": "last"}}}}[how]  # fmt: skip
    end_texts(path)
    llm = LLM(str(path), device="cpu", dtype="float32", **more)
    try:
        (out,) = llm.embed("a river runs", use_tqdm=False)
        assert out.prompt_token_ids[-1] == 256
        np.testing.assert_allclose(out.outputs.embedding, last_state(path, out.prompt_token_ids), atol=1e-5)
        (cut,) = llm.embed("a river runs", use_tqdm=False, tokenization_kwargs={"truncate_prompt_tokens": 5})
        assert cut.prompt_token_ids == [*out.prompt_token_ids[:4], 256]
    finally:
        llm.shutdown()


def test_generating_stays_possible_where_files_speak_of_vectors(tmp_path: Path) -> None:
    path = make_checkpoint("qwen3", tmp_path)
    plain = LLM(str(path), device="reference")
    want = plain.generate("a", use_tqdm=False)[0].outputs[0].token_ids
    plain.shutdown()
    describe_pooling(path, "lasttoken")
    llm = LLM(str(path), device="reference", runner="generate")
    try:
        assert llm.generate("a", use_tqdm=False)[0].outputs[0].token_ids == want
        with pytest.raises(RequestError, match=r"use generate\(\), or for vectors start it with --runner pooling"):
            llm.embed("a", use_tqdm=False)
    finally:
        llm.shutdown()


def test_the_pooler_may_be_said(tmp_path: Path) -> None:
    path = make_checkpoint("llama", tmp_path)
    said = {"pooling_type": "MEAN", "use_activation": False}
    llm = LLM(str(path), device="cpu", dtype="float32", runner="pooling", pooler_config=said)
    try:
        assert not llm.config.scheduler.chunked_prefill
        model = transformers.AutoModel.from_pretrained(path, dtype=torch.float32, attn_implementation="eager").eval()
        for o, ids in zip(llm.embed(texts(), use_tqdm=False), texts(), strict=True):
            with torch.inference_mode():
                want = model(torch.tensor([ids])).last_hidden_state[0].mean(0).numpy()
            np.testing.assert_allclose(o.outputs.embedding, want, atol=1e-5)
    finally:
        llm.shutdown()


@pytest.mark.parametrize(
    ("name", "said", "words"),
    [
        ("qwen3", {"runner": "pooling", "convert": "none"}, "needs --convert embed"),
        ("qwen3", {"runner": "pooling", "convert": "classify"}, "no head that was trained"),
        ("qwen3", {"runner": "generate", "convert": "embed"}, "goes with --runner pooling"),
        ("qwen3", {"runner": "draft"}, "runner must be one of"),
        ("qwen3", {"pooler_config": {"pooling_type": "MEAN"}}, "generates text"),
        ("qwen3", {"runner": "pooling", "pooler_config": {"pooling_type": "MAX"}}, "one of CLS, LAST, MEAN, ALL, STEP"),
        ("qwen3", {"runner": "pooling", "pooler_config": {"softmax": True}}, "'softmax' is not supported"),
        ("bert", {"runner": "generate"}, "generates no text"),
    ],
)
def test_what_does_not_go_together_is_refused(name: str, said: dict, words: str, tmp_path: Path) -> None:
    path = make_checkpoint(name, tmp_path) if name == "qwen3" else make_encoder(name, tmp_path)
    with pytest.raises(ConfigError, match=words):
        LLM(str(path), device="reference", **said)


# ------------------------------------------------------------------ sizes of vectors


def test_vectors_are_cut_where_the_model_was_trained_for_it(tmp_path: Path) -> None:
    path = make_checkpoint("qwen3", tmp_path)
    edit_config(path, matryoshka_dimensions=[8, 24])
    llm = LLM(str(path), device="reference", runner="pooling")
    try:
        ids = texts()[0]
        (out,) = llm.embed(ids, use_tqdm=False, pooling_params=PoolingParams(dimensions=24))
        want = last_state(path, ids, normalise=False)[:24]
        np.testing.assert_allclose(out.outputs.embedding, want / np.linalg.norm(want), atol=1e-5)
        with pytest.raises(RequestError, match="have 8 or 24 values, not 9"):
            llm.embed(ids, use_tqdm=False, pooling_params=PoolingParams(dimensions=9))
    finally:
        llm.shutdown()
    with pytest.raises(CheckpointError, match="matryoshka_dimensions"):
        LLM(str(path), device="reference", runner="pooling", hf_overrides={"matryoshka_dimensions": [0]})
    llm = LLM(str(path), device="reference", runner="pooling", hf_overrides={"matryoshka_dimensions": None})
    with pytest.raises(RequestError, match="have 48 values, not 24: its files name no other") as e:
        llm.embed([3], use_tqdm=False, pooling_params=PoolingParams(dimensions=24))
    assert e.value.param == "dimensions"
    whole, same = (llm.embed([3], use_tqdm=False, pooling_params=PoolingParams(dimensions=d))[0] for d in (None, 48))
    assert same.outputs.embedding == whole.outputs.embedding
    llm.shutdown()


# ------------------------------------------------------------------ classes


@pytest.mark.parametrize("device", ["reference", "cpu"])
@pytest.mark.parametrize(
    "name", ["bert", "roberta", "xlm-roberta", "qwen3", "llama", "modernbert", "distilbert", "mpnet", "gte"]
)
@pytest.mark.slow
def test_probabilities_are_those_of_transformers(name: str, device: str, tmp_path: Path) -> None:
    labels = {"id2label": {0: "good", 1: "bad", 2: "odd"}, "label2id": {"good": 0, "bad": 1, "odd": 2}}
    path = make_classifier(name, tmp_path, 3, **labels)
    llm = LLM(str(path), device=device, dtype="float32", skip_tokenizer_init=True, max_model_len=64)
    try:
        assert llm.config.model.pooling.labels == ("good", "bad", "odd")
        outs = llm.classify(texts(), use_tqdm=False)
        raw = llm.encode(texts(), PoolingParams(use_activation=False), pooling_task="classify", use_tqdm=False)
        for o, r, ids in zip(outs, raw, texts(), strict=True):
            want = logits(path, input_ids=ids)
            assert o.outputs.num_classes == 3
            np.testing.assert_allclose(o.outputs.probs, softmax(want), atol=1e-5)
            np.testing.assert_allclose(r.outputs.data, want, atol=2e-5)
            assert r.outputs.data.dtype == np.float32
        for ask in (lambda: llm.embed([1]), lambda: llm.score("a", "b"), lambda: llm.encode([1], pooling_task="embed")):
            with pytest.raises(RequestError, match="this model cannot"):
                ask()
    finally:
        llm.shutdown()


@pytest.mark.parametrize(
    ("said", "labels", "want"),
    [
        ({"problem_type": "multi_label_classification"}, 3, sigmoid),
        ({"problem_type": "regression"}, 1, lambda x: x),
        ({"sbert_ce_default_activation_function": "torch.nn.modules.linear.Identity"}, 1, lambda x: x),
        ({"sentence_transformers": {"activation_fn": "torch.nn.modules.activation.Sigmoid"}}, 3, sigmoid),
        ({}, 1, sigmoid),
    ],
)
@pytest.mark.sampled(2)
def test_what_numbers_go_through(said: dict, labels: int, want: object, tmp_path: Path) -> None:
    path = make_classifier("roberta", tmp_path, labels)
    edit_config(path, **said)
    llm = LLM(str(path), device="reference", skip_tokenizer_init=True)
    try:
        (out,) = llm.classify([5, 6, 7], use_tqdm=False)
        np.testing.assert_allclose(out.outputs.probs, want(logits(path, input_ids=[5, 6, 7])), atol=1e-5)
    finally:
        llm.shutdown()
    edit_config(path, sentence_transformers={"activation_fn": "torch.nn.modules.activation.Mish"}, problem_type=None)
    with pytest.raises(UnsupportedModelError, match="Mish"):
        LLM(str(path), device="reference", skip_tokenizer_init=True)


def test_roberta_has_two_positions_less_than_rows(tmp_path: Path) -> None:
    path = make_encoder("roberta", tmp_path)
    assert plan(EngineArgs(model=str(path), device="cpu")).max_model_len == 256
    with pytest.raises(ConfigError, match="exceeds the model's own 256"):
        LLM(str(path), device="reference", max_model_len=257, skip_tokenizer_init=True)
    llm = LLM(str(path), device="reference", skip_tokenizer_init=True)
    (out,) = llm.embed(texts((256,)), use_tqdm=False)
    assert out.error is None
    llm.shutdown()


# ------------------------------------------------------------------ pairs


@pytest.fixture(params=["bert", "roberta"])
def reranker(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[tuple[Path, LLM]]:
    path = make_classifier(request.param, tmp_path, 1)
    make_bert_tokenizer(path, roberta=request.param == "roberta")
    llm = LLM(str(path), device="cpu", dtype="float32")
    yield path, llm
    llm.shutdown()


def test_scores_of_pairs_are_those_of_transformers(reranker: tuple[Path, LLM]) -> None:
    path, llm = reranker
    tokenizer = transformers.AutoTokenizer.from_pretrained(path)
    query, documents = "which way", ["up the river", "down", "the lowest line of a valley " * 3]
    for more, how in (({}, {}), ({"truncate_prompt_tokens": 12}, {"truncation": True, "max_length": 12})):
        outs = llm.score(query, documents, use_tqdm=False, tokenization_kwargs=more)
        for o, document in zip(outs, documents, strict=True):
            both = dict(tokenizer(query, document, return_token_type_ids="roberta" not in str(path), **how))
            assert o.prompt_token_ids == both["input_ids"]
            assert o.outputs.score == pytest.approx(float(sigmoid(logits(path, **both))[0]), abs=1e-5)
    each = llm.score([query, "b"], [{"text": documents[0]}, {"content": [{"type": "text", "text": "down"}]}], use_tqdm=False)
    assert each[0].outputs.score == llm.score(query, documents[0], use_tqdm=False)[0].outputs.score


def test_pairs_that_do_not_match_are_refused(reranker: tuple[Path, LLM]) -> None:
    _, llm = reranker
    with pytest.raises(RequestError, match="data_1: 2 texts for 3 of data_2"):
        llm.score(["a", "b"], ["c", "d", "e"])
    with pytest.raises(RequestError, match="data_2 must not be empty"):
        llm.score("a", [])
    with pytest.raises(RequestError, match=r"data_2\.content\[0\]: this model is text-only"):
        llm.score("a", [{"content": [{"type": "image_url", "image_url": "x"}]}])
    with pytest.raises(RequestError, match="limit is 256"):
        llm.score("a " * 200, "b " * 200)
    with pytest.raises(RequestError, match="leaves no room"):
        llm.score("a", "b", tokenization_kwargs={"truncate_prompt_tokens": 3})
    for wrong in (0, -2, 300, True, "5"):
        with pytest.raises(RequestError, match="truncate_prompt_tokens"):
            llm.score("a", "b", tokenization_kwargs={"truncate_prompt_tokens": wrong})
    with pytest.raises(RequestError, match="'max_size' is not supported"):
        llm.score("a", "b", tokenization_kwargs={"max_size": 3})


def test_types_of_tokens_may_be_said(tmp_path: Path) -> None:
    path = make_classifier("bert", tmp_path, 1)
    llm = LLM(str(path), device="cpu", dtype="float32", skip_tokenizer_init=True)
    try:
        ids, types = [5, 6, 7, 8], [0, 1, 0, 1]
        (out,) = llm.classify({"prompt_token_ids": ids, "token_type_ids": types}, use_tqdm=False)
        want = sigmoid(logits(path, input_ids=ids, token_type_ids=types))
        np.testing.assert_allclose(out.outputs.probs, want, atol=1e-5)
        assert out.prompt_token_ids == ids
        for wrong in ([0, 1], [0, 1, 2, 0], [0, 0, 0, -1], "0101", [0.0] * 4):
            with pytest.raises(RequestError, match="token_type_ids"):
                llm.classify({"prompt_token_ids": ids, "token_type_ids": wrong})
    finally:
        llm.shutdown()


def test_vectors_score_by_their_angle(tmp_path: Path) -> None:
    path = make_encoder("bert", tmp_path)
    make_bert_tokenizer(path)
    llm = LLM(str(path), device="reference")
    try:
        a, b, c = (np.array(o.outputs.embedding) for o in llm.embed(["up", "down the river", "x"], use_tqdm=False))
        first, second = llm.score("up", ["down the river", "x"], use_tqdm=False)
        assert first.outputs.score == pytest.approx(float(a @ b), abs=1e-6)
        assert second.outputs.score == pytest.approx(float(a @ c), abs=1e-6)
    finally:
        llm.shutdown()


def test_a_head_is_never_rounded(tmp_path: Path) -> None:
    """Its numbers are the answer: --quantization is for the layers."""
    path = make_classifier("bert", tmp_path, 3, hidden_size=64, num_attention_heads=4, intermediate_size=128)
    llm = LLM(str(path), device="reference", dtype="float32", quantization="int8", skip_tokenizer_init=True)
    try:
        head = llm._worker.launch.__self__._any.params["classes"]["out"]["weight"]
        stored = transformers.AutoModelForSequenceClassification.from_pretrained(path).classifier.weight
        torch.testing.assert_close(head, stored.detach(), rtol=0, atol=0)
    finally:
        llm.shutdown()


def test_labels_that_make_no_sense_are_refused(tmp_path: Path) -> None:
    path = make_classifier("bert", tmp_path, 3)
    for wrong in ({"0": "a", "2": "b"}, {}, ["a", "b"], {"x": "a"}):
        file = path / "config.json"
        file.write_text(json.dumps({**json.loads(file.read_text()), "id2label": wrong}))
        with pytest.raises(CheckpointError, match="id2label"):
            LLM(str(path), device="reference", skip_tokenizer_init=True)
