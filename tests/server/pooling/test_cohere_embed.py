"""Cohere's vectors beside those of /v1/embeddings."""

from __future__ import annotations

import base64

import msgspec
import numpy as np
from fake_pooling import EMBEDS, MOST, FakePooling


def test_vectors(start):
    running = start(FakePooling(EMBEDS))
    texts = ["river bank", "money"]
    same = running.post("/v1/embeddings", {"input": texts}).json()["data"]
    kinds = ["float", "base64", "binary", "ubinary"]
    body = {"model": "fake", "texts": texts, "input_type": "search_query", "embedding_types": kinds}
    answer = running.post("/v2/embed", body)
    assert answer.headers["x-ignored-fields"] == "input_type"
    r = answer.json()
    floats = np.array(r["embeddings"]["float"], np.float32)
    assert floats.tolist() == np.array([d["embedding"] for d in same], np.float32).tolist()
    back = [np.frombuffer(base64.b64decode(b), "<f4") for b in r["embeddings"]["base64"]]
    assert np.array_equal(np.stack(back), floats)
    bits = np.packbits(floats > 0, axis=1)
    assert r["embeddings"]["ubinary"] == bits.tolist()
    assert r["embeddings"]["binary"] == (bits.astype(int) - 128).tolist()
    assert (r["texts"], r["response_type"]) == (texts, "embeddings_by_type")
    parts = {"model": "fake", "inputs": [{"content": [{"type": "text", "text": t}]} for t in texts]}
    again = running.post("/cohere/v2/embed", parts).json()
    assert again["embeddings"] == {"float": r["embeddings"]["float"]}
    long = {"model": "fake", "texts": ["river " * MOST + "money"]}
    start_, end = (running.post("/v2/embed", {**long, "truncate": t}).json() for t in ("START", "END"))
    assert start_["embeddings"] != end["embeddings"]
    assert start_["meta"]["billed_units"]["input_tokens"] == MOST
    shorter = running.post("/v2/embed", {**long, "output_dimension": 2, "max_tokens": 5}).json()
    assert (len(shorter["embeddings"]["float"][0]), shorter["meta"]["billed_units"]["input_tokens"]) == (2, 5)
    for wrong, param in (
        ({"truncate": "NONE"}, "input"),
        ({"texts": []}, "texts"),
        ({"embedding_types": ["int8"]}, "embedding_types"),
        ({"output_dimension": 5}, "output_dimension"),
        ({"texts": None, "images": ["data:"]}, "images"),
    ):
        assert running.post("/v2/embed", {**long, **wrong}).json()["param"] == param, wrong


def test_an_input_type_chooses_the_prompt_of_the_models_files(start):
    running = start(FakePooling(msgspec.structs.replace(EMBEDS, prompts={"query": "find ", "search_document": "note "})))
    for kind, before in (("search_query", "find "), ("search_document", "note ")):
        answer = running.post("/v2/embed", {"model": "fake", "texts": ["river"], "input_type": kind})
        assert "x-ignored-fields" not in answer.headers
        assert answer.json()["texts"] == ["river"]
        assert running.engine.prompts[-1]["prompt_token_ids"] == running.engine.tokenizer.encode(before + "river")
    answer = running.post("/v2/embed", {"model": "fake", "texts": ["river"], "input_type": "clustering"})
    assert answer.headers["x-ignored-fields"] == "input_type"
