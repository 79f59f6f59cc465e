"""Routes of pooling models over a real socket, a fake engine behind them. The official client is the oracle for vectors."""

from __future__ import annotations

import asyncio
import base64
import threading
import time

import msgspec
import numpy as np
import openai
import pytest
from fake_engine import FakeEngine
from fake_pooling import EMBEDS, LATE, MOST, RANKS, SORTS, FakePooling, numbers

ROUTES = ("/v1/embeddings", "/pooling", "/classify", "/score", "/v1/score", "/rerank", "/v1/rerank", "/v2/rerank")
LONG = "river " * MOST


def ids_of(running, text: str) -> list[int]:
    return running.engine.tokenizer.encode(text)


def unit(x: np.ndarray) -> np.ndarray:
    return x / np.linalg.norm(x)


def sigmoid(x: float) -> float:
    return float(1 / (1 + np.exp(-np.float64(x))))


@pytest.fixture(scope="module")
def embeds():
    yield from served(FakePooling(EMBEDS))


@pytest.fixture(scope="module")
def ranks():
    yield from served(FakePooling(RANKS))


@pytest.fixture(scope="module")
def sorts():
    yield from served(FakePooling(SORTS))


@pytest.fixture(scope="module")
def late():
    yield from served(FakePooling(LATE))


def served(engine):
    from conftest import Running

    from thalweg.server.settings import ServerSettings

    running = Running(engine, ServerSettings())
    yield running
    running.stop()


def error(answer, status: int = 400) -> dict:
    assert answer.status_code == status, answer.text
    return answer.json()["error"]


# ------------------------------------------------------------------ vectors


def test_the_official_client_reads_vectors_as_numbers_and_as_bytes(embeds):
    texts = ["up the river", "down", "a"]
    create = embeds.client().embeddings.create
    as_bytes = create(model="fake", input=texts)  # the client asks for base64 unless told otherwise
    as_numbers = create(model="fake", input=texts, encoding_format="float")
    for i, text in enumerate(texts):
        ids = ids_of(embeds, text)
        want = unit(numbers(ids, [0] * len(ids), 4)).astype(np.float32)
        assert as_bytes.data[i].index == as_numbers.data[i].index == i
        got = np.array(as_numbers.data[i].embedding, np.float32)
        np.testing.assert_array_equal(np.array(as_bytes.data[i].embedding, np.float32), got)
        np.testing.assert_allclose(got, want, rtol=1e-6)
    tokens = sum(len(ids_of(embeds, t)) for t in texts)
    assert (as_bytes.usage.prompt_tokens, as_bytes.usage.total_tokens) == (tokens, tokens)
    assert (as_bytes.object, as_bytes.model, as_bytes.data[0].object) == ("list", "fake", "embedding")


@pytest.mark.parametrize(("given", "count"), [([5, 6], 1), ([[5, 6], [7]], 2), ("up", 1), (["up", "a"], 2)])
def test_every_form_of_input(embeds, given, count):
    answer = embeds.post("/v1/embeddings", {"input": given})
    assert answer.status_code == 200
    data = answer.json()["data"]
    assert [d["index"] for d in data] == list(range(count))
    if given == [5, 6]:
        np.testing.assert_allclose(data[0]["embedding"], unit(numbers([5, 6], [0, 0], 4)), rtol=1e-6)


@pytest.mark.parametrize("dtype", ["float32", "float16"])
@pytest.mark.parametrize("order", ["native", "little", "big"])
def test_bytes_in_the_type_and_order_asked_for(embeds, dtype, order):
    body = {"input": [5, 6], "encoding_format": "base64", "embed_dtype": dtype, "endianness": order}
    raw = base64.b64decode(embeds.post("/v1/embeddings", body).json()["data"][0]["embedding"])
    kind = np.dtype(dtype).newbyteorder({"native": "=", "little": "<", "big": ">"}[order])
    np.testing.assert_allclose(np.frombuffer(raw, kind), unit(numbers([5, 6], [0, 0], 4)), rtol=1e-3)


def test_dimensions_are_those_the_model_declares(embeds):
    cut = embeds.client().embeddings.create(model="fake", input="up", dimensions=2).data[0].embedding
    ids = ids_of(embeds, "up")
    np.testing.assert_allclose(cut, unit(numbers(ids, [0] * len(ids), 2)), rtol=1e-6)
    with pytest.raises(openai.BadRequestError, match="have 2 or 3 values, not 1") as e:
        embeds.client().embeddings.create(model="fake", input="up", dimensions=1)
    assert e.value.param == "dimensions"


@pytest.mark.parametrize("sizes", [None, (), (2, 3)])
def test_the_size_that_vectors_have_is_accepted_everywhere(sizes, start):
    """Clients such as mem0 and LangChain always send it. sizes: others that the model declares; (): any."""
    running = start(FakePooling(msgspec.structs.replace(EMBEDS, dimensions=sizes)))
    for path, body, field in (
        ("/v1/embeddings", {"input": "up"}, "dimensions"),
        ("/pooling", {"input": "up", "task": "embed"}, "dimensions"),
        ("/v2/embed", {"texts": ["up"], "input_type": "clustering"}, "output_dimension"),
    ):
        whole, same = (running.post(path, {"model": "fake", **body, **more}) for more in ({}, {field: 4}))
        assert (whole.status_code, same.status_code) == (200, 200), (path, same.text)
        kept = [{k: v for k, v in r.json().items() if k in ("data", "embeddings")} for r in (whole, same)]
        assert kept[0]
        assert kept[0] == kept[1]
        assert running.post(path, {"model": "fake", **body, field: 5}).status_code == 400


def test_many_vectors_are_written_on_a_thread_as_ever(embeds, monkeypatch):
    from thalweg.server.pooling import work

    body = {"input": ["up", "a", "down the river"]}
    whole = embeds.post("/v1/embeddings", body).json()["data"]
    monkeypatch.setattr(work, "HEAVY", 3)
    assert embeds.post("/v1/embeddings", body).json()["data"] == whole


def test_pooling_gives_what_the_model_gives(embeds, sorts):
    raw = embeds.post("/pooling", {"input": [5, 6], "use_activation": False}).json()
    assert (raw["object"], raw["data"][0]["object"]) == ("list", "pooling")
    assert raw["data"][0]["data"] == [2, 11, 0, 6]
    assert embeds.post("/pooling", {"input": [5, 6], "task": "embed"}).status_code == 200
    probs = sorts.post("/pooling", {"input": [5, 6], "task": "classify"}).json()["data"][0]["data"]
    assert sum(probs) == pytest.approx(1)
    assert "cannot embed" in error(sorts.post("/pooling", {"input": [5], "task": "embed"}))["message"]
    each = embeds.post("/pooling", {"input": [5, 6], "task": "token_embed", "use_activation": False}).json()["data"]
    assert each == [{"index": 0, "object": "pooling", "data": [[1, 5, 0, 5], [1, 6, 0, 6]]}]
    packed = {"input": [5, 6], "task": "token_embed", "use_activation": False, "encoding_format": "base64"}
    data = base64.b64decode(embeds.post("/pooling", packed).json()["data"][0]["data"])
    np.testing.assert_array_equal(np.frombuffer(data, np.float32).reshape(2, -1), [[1, 5, 0, 5], [1, 6, 0, 6]])
    assert "token_classify" in error(embeds.post("/pooling", {"input": [5], "task": "token_classify"}))["message"]


def test_texts_are_compared_token_by_token_where_each_has_a_vector(late):
    def rows(text: str) -> np.ndarray:
        made = np.stack([numbers([i], [0], 4) for i in ids_of(late, text)]).astype(np.float64)
        return made / np.linalg.norm(made, axis=1, keepdims=True)

    query, documents = "which way", ["up the river", "down", "z"]
    want = [(rows(query) @ rows(d).T).max(1).sum() for d in documents]
    scored = late.post("/score", {"queries": query, "documents": documents}).json()["data"]
    np.testing.assert_allclose([each["score"] for each in scored], want, atol=1e-5)
    ranked = late.post("/rerank", {"query": query, "documents": documents}).json()["results"]
    assert [each["index"] for each in ranked] == np.argsort(want)[::-1].tolist()
    assert "/v1/embeddings needs a model that gives vectors" in error(late.post("/v1/embeddings", {"input": "a"}))["message"]


# ------------------------------------------------------------------ classes, scores, ranks


def test_classes_have_names_and_probabilities(sorts):
    answer = sorts.post("/classify", {"input": ["up", "down the river"]}).json()
    for i, text in enumerate(("up", "down the river")):
        x = numbers(ids_of(sorts, text), [0] * len(ids_of(sorts, text)), 3).astype(np.float64)
        want = np.exp(x - x.max()) / np.exp(x - x.max()).sum()
        got = answer["data"][i]
        np.testing.assert_allclose(got["probs"], want, atol=1e-6)
        assert (got["index"], got["num_classes"], got["label"]) == (i, 3, ("good", "bad", "odd")[want.argmax()])


def pair_score(running, first: str, second: str) -> float:
    backend = running.engine.tokenizer.backend
    both = backend.encode(first, second)
    return sigmoid(numbers(both.ids, both.type_ids, 1)[0])


@pytest.mark.parametrize("names", [("text_1", "text_2"), ("data_1", "data_2"), ("queries", "documents"), ("queries", "items")])
def test_pairs_are_scored_by_a_model_that_reads_both(ranks, names):
    one, many = "up the river", ["down", "the river", "a"]
    answer = ranks.post("/score", {names[0]: one, names[1]: many}).json()
    assert [d["score"] for d in answer["data"]] == pytest.approx([pair_score(ranks, one, m) for m in many], abs=1e-6)
    assert [(d["index"], d["object"]) for d in answer["data"]] == [(i, "score") for i in range(3)]
    each = ranks.post("/v1/score", {names[0]: ["up", "a"], names[1]: ["b", {"text": "c"}]}).json()
    assert [d["score"] for d in each["data"]] == pytest.approx([pair_score(ranks, "up", "b"), pair_score(ranks, "a", "c")])
    assert each["usage"]["prompt_tokens"] == 11


def test_vectors_are_compared_by_their_angle_and_the_query_read_once(embeds):
    answer = embeds.post("/score", {"text_1": "up", "text_2": ["down", "up"]}).json()
    a, b = (numbers(ids_of(embeds, t), [0] * len(ids_of(embeds, t)), 4) for t in ("up", "down"))
    assert [d["score"] for d in answer["data"]] == pytest.approx([float(unit(a) @ unit(b)), 1.0], abs=1e-6)
    assert answer["usage"]["prompt_tokens"] == 2 * len(ids_of(embeds, "up")) + len(ids_of(embeds, "down"))
    asked = embeds.post("/score", {"text_1": "up", "text_2": "a", "use_activation": False})
    assert error(asked)["param"] == "use_activation"


@pytest.mark.parametrize("path", ["/rerank", "/v1/rerank", "/v2/rerank"])
def test_documents_come_best_first(ranks, path):
    query, documents = "up", ["down the river", "zz", "a", {"text": "the valley"}]
    texts = [d if isinstance(d, str) else d["text"] for d in documents]
    scores = [pair_score(ranks, query, t) for t in texts]
    answer = ranks.post(path, {"model": "fake", "query": query, "documents": documents}).json()
    order = sorted(range(4), key=lambda i: -scores[i])
    assert [r["index"] for r in answer["results"]] == order
    assert [r["relevance_score"] for r in answer["results"]] == pytest.approx([scores[i] for i in order], abs=1e-6)
    assert [r["document"]["text"] for r in answer["results"]] == [texts[i] for i in order]
    assert answer["id"].startswith("rerank-")
    few = ranks.post(path, {"query": query, "documents": documents, "top_n": 2, "return_documents": False}).json()
    assert [r["index"] for r in few["results"]] == order[:2]
    assert all("document" not in r for r in few["results"])
    parts = [{"type": "text", "text": "the "}, {"type": "text", "text": "valley"}]
    whole = ranks.post(path, {"query": query, "documents": ["a", {"content": parts}]}).json()
    assert {r["index"]: r["document"] for r in whole["results"]} == {0: {"text": "a"}, 1: {"multi_modal": parts}}


def test_queries_and_documents_may_be_cut_each(ranks):
    seen = ranks.engine.prompts
    ranks.post(
        "/rerank", {"query": "up down", "documents": ["the river", "a"], "max_tokens_per_query": 2, "max_tokens_per_doc": 3}
    )
    encode = ranks.engine.tokenizer.encode
    q, d = encode("up down", False)[:2], encode("the river", False)[:3]
    assert seen[-2]["prompt_token_ids"] == [0, *q, 2, *d, 2]
    assert seen[-2]["token_type_ids"] == [0] * 4 + [1] * 4


def test_an_instruction_stands_where_the_form_has_a_place_for_it(ranks):
    pooling = msgspec.structs.replace(RANKS, form="qwen3-reranker", types=1)
    for running in served(FakePooling(pooling, most=1024)):
        asked = {"query": "up", "documents": ["z river"], "max_tokens_per_doc": 1, "instruction": "find water"}
        assert running.post("/rerank", asked).status_code == 200
        encode, ids = running.engine.tokenizer.encode, running.engine.prompts[-1]["prompt_token_ids"]

        def holds(text: str, ids=ids, encode=encode) -> bool:
            word = encode(text, False)
            return any(ids[i : i + len(word)] == word for i in range(len(ids)))

        assert holds("find water")
        assert holds("z")
        assert not holds("river")
        assert "token_type_ids" not in running.engine.prompts[-1]
    answer = error(ranks.post("/score", {"text_1": "up", "text_2": "a", "instruction": "find"}))
    assert answer["param"] == "instruction"
    assert "a query that begins with it" in answer["message"]


# ------------------------------------------------------------------ what is refused


@pytest.mark.parametrize(
    ("path", "body", "param"),
    [
        ("/v1/embeddings", {}, "input"),
        ("/v1/embeddings", {"input": ""}, "input"),
        ("/v1/embeddings", {"input": []}, "input"),
        ("/v1/embeddings", {"input": ["a", []]}, "input"),
        ("/v1/embeddings", {"input": [[5], []]}, "input[1]"),
        ("/v1/embeddings", {"input": {"a": 1}}, "input"),
        ("/v1/embeddings", {"input": "a", "encoding_format": "bytes"}, "encoding_format"),
        ("/v1/embeddings", {"input": "a", "embed_dtype": "float16"}, "embed_dtype"),
        ("/v1/embeddings", {"input": "a", "dimensions": 0}, "dimensions"),
        ("/v1/embeddings", {"input": "a", "use_activation": "maybe"}, "use_activation"),
        ("/v1/embeddings", {"input": "a", "messages": [{"role": "user", "content": "a"}]}, "messages"),
        ("/v1/embeddings", {"input": "a", "priority": 3}, "priority"),
        ("/v1/embeddings", {"input": LONG}, "input"),
        ("/v1/embeddings", {"input": ["a", LONG]}, "input[1]"),
        ("/v1/embeddings", {"input": [[5] * 65]}, "input"),
        ("/v1/embeddings", {"input": "a", "truncate_prompt_tokens": 0}, "truncate_prompt_tokens"),
        ("/v1/embeddings", {"input": "a", "truncate_prompt_tokens": 65}, "truncate_prompt_tokens"),
        ("/v1/embeddings", {"input": "a", "truncate_prompt_tokens": 2}, "truncate_prompt_tokens"),
        ("/v1/embeddings", {"input": "a", "truncation_side": "middle"}, "truncation_side"),
        ("/v1/embeddings", {"input": [10**6]}, "input"),
        ("/score", {"text_1": "a"}, "text_1"),
        ("/score", {"text_1": None, "text_2": "a"}, "text_1"),
        ("/score", {"text_1": "a", "text_2": {"text": "b", "content": [{"type": "text", "text": "c"}]}}, "text_2"),
        ("/score", {"text_1": ["a", "b"], "text_2": ["c", "d", "e"]}, "text_1"),
        ("/score", {"text_1": [], "text_2": ["c"]}, "text_1"),
        ("/score", {"text_1": "a", "text_2": {"content": [{"type": "image_url", "image_url": "x"}]}}, "text_2.content[0]"),
        ("/rerank", {"query": "a", "documents": []}, "documents"),
        ("/rerank", {"documents": ["a"]}, "query"),
        ("/rerank", {"query": "a", "documents": ["b", LONG]}, "documents[1]"),
        ("/rerank", {"query": "a", "documents": ["b"], "top_n": -1}, "top_n"),
        ("/rerank", {"query": "a", "documents": ["b"], "instruction": "find"}, "instruction"),
    ],
)  # fmt: skip
def test_what_is_wrong_is_named(embeds, path, body, param):
    ran = len(embeds.engine.prompts)
    assert error(embeds.post(path, body))["param"] == param
    assert len(embeds.engine.prompts) <= ran + (body.get("input") == [10**6])


def test_a_model_that_is_not_served(embeds):
    with pytest.raises(openai.NotFoundError, match="'other' does not exist here"):
        embeds.client().embeddings.create(model="other", input="a")


def test_long_texts_are_cut_on_demand_around_what_is_added(embeds):
    def used(**more):
        embeds.engine.prompts.clear()
        answer = embeds.post("/v1/embeddings", {"input": LONG, **more})
        (prompt,) = embeds.engine.prompts
        assert answer.json()["usage"]["prompt_tokens"] == len(prompt["prompt_token_ids"])
        return prompt["prompt_token_ids"]

    whole = ids_of(embeds, LONG)
    assert used(truncate_prompt_tokens=-1) == [*whole[: MOST - 1], 2]
    assert used(truncate_prompt_tokens=10) == [*whole[:9], 2]
    assert used(truncate_prompt_tokens=10, truncation_side="left") == [0, *whole[-9:]]
    assert used(truncate_prompt_tokens=10, add_special_tokens=False) == whole[1:11]
    embeds.engine.prompts.clear()
    embeds.post("/v1/embeddings", {"input": list(range(3, 43)), "truncate_prompt_tokens": 5})
    assert embeds.engine.prompts[0]["prompt_token_ids"] == [3, 4, 5, 6, 7]


BODIES = {
    "/v1/completions": {"prompt": "a"}, "/v1/chat/completions": {"messages": [{"role": "user", "content": "a"}]},
    "/v1/embeddings": {"input": "a"}, "/pooling": {"input": "a"}, "/classify": {"input": "a"},
    "/score": {"text_1": "a", "text_2": "b"}, "/v1/score": {"text_1": "a", "text_2": "b"},
    "/rerank": {"query": "a", "documents": ["b"]}, "/v1/rerank": {"query": "a", "documents": ["b"]},
    "/v2/rerank": {"query": "a", "documents": ["b"]},
}  # fmt: skip
SCORES = {"/score", "/v1/score", "/rerank", "/v1/rerank", "/v2/rerank"}


@pytest.mark.parametrize(
    ("engine", "able"),
    [
        (lambda: FakeEngine(), {"/v1/completions", "/v1/chat/completions"}),
        (lambda: FakePooling(EMBEDS), {"/v1/embeddings", "/pooling", *SCORES}),
        (lambda: FakePooling(RANKS), {"/classify", "/pooling", *SCORES}),
        (lambda: FakePooling(SORTS), {"/classify", "/pooling"}),
    ],
)
def test_a_route_that_the_model_has_nothing_for_says_which_models_have(start, engine, able):
    running = start(engine())
    for path, body in BODIES.items():
        answer = running.post(path, body)
        if path in able:
            assert answer.status_code == 200, answer.text
        else:
            told = error(answer)
            assert told["param"] == "model"
            assert f"{path} needs " in told["message"]
            assert "the model here is asked at /" in told["message"]
    assert running.post("/tokenize", {"prompt": "a"}).status_code == 200
    assert running.get("/v1/models").json()["data"][0]["id"] == "fake"


def test_unknown_fields_are_counted_or_refused(start):
    body = {"input": "a", "colour": "blue"}
    running = start(FakePooling())
    assert running.post("/v1/embeddings", body).status_code == 200
    assert 'unknown_request_fields_total{field="colour"} 1.0' in running.get("/metrics").text
    assert error(start(FakePooling(), strict_requests=True).post("/v1/embeddings", body))["param"] == "colour"


# ------------------------------------------------------------------ as every other route


def test_keys_guard_every_route(start):
    running = start(FakePooling(), api_key=["k"])
    for path in ROUTES:
        assert running.post(path, BODIES[path]).status_code == 401
    assert running.client("k").embeddings.create(model="fake", input="a").data[0].index == 0


def test_an_engine_that_fails_is_an_error_of_its_request_alone(embeds):
    told = error(embeds.post("/v1/embeddings", {"input": ["a", "x"]}), 500)
    assert told["message"] == "it broke"
    assert embeds.post("/v1/embeddings", {"input": "a"}).status_code == 200


@pytest.mark.slow
def test_a_full_queue_refuses_and_says_when_to_come_again(start):
    running = start(FakePooling(delay=300.0), max_queued_requests=2)
    held = threading.Thread(target=running.post, args=("/v1/embeddings", {"input": ["a"] * 12}))
    held.start()
    _until(lambda: len(running.engine.waiting) == 10)
    answer = running.post("/v1/embeddings", {"input": ["a"] * 2})
    assert error(answer, 429)["type"] == "RateLimitError"
    assert int(answer.headers["Retry-After"]) >= 1
    assert running.engine.most_running == 10
    asyncio.run_coroutine_threadsafe(running.app.serving.cut(), running._loop).result(60)
    held.join()
    _until(lambda: running.app.serving.admission.running == 0)


@pytest.mark.slow
def test_who_leaves_stops_the_work(start):
    running = start(FakePooling(delay=30.0))
    with pytest.raises(openai.APITimeoutError):
        running.client().with_options(timeout=5).embeddings.create(model="fake", input=["a", "b", "c"])
    _until(lambda: len(running.engine.aborted) == 3)
    _until(lambda: running.app.serving.admission.running == 0)
    assert not running.app.serving.running


def test_the_end_of_a_server_ends_what_is_open_with_503(start):
    running = start(FakePooling(delay=30.0))
    answers: list = []
    asking = threading.Thread(target=lambda: answers.append(running.post("/v1/embeddings", {"input": ["a", "b"]})))
    asking.start()
    _until(lambda: len([w for w in running.engine.waiting.values() if w._loop is not None]) == 2)  # type: ignore[attr-defined]
    loop = next(iter(running.engine.waiting.values()))._loop  # type: ignore[attr-defined]
    asyncio.run_coroutine_threadsafe(running.app.serving.cut(), loop).result(60)
    asking.join(60)
    assert error(answers[0], 503)["message"].startswith("the server is shutting down")


def test_requests_are_counted(start):
    running = start(FakePooling())
    running.post("/v1/embeddings", {"input": ["a", "b"]})
    running.post("/v1/embeddings", {"input": "x"})
    text = running.get("/metrics").text
    for line in (
        'vllm:request_success_total{engine="0",finished_reason="stop",model_name="fake"} 2.0',
        'vllm:request_success_total{engine="0",finished_reason="error",model_name="fake"} 1.0',
        'vllm:request_prompt_tokens_count{engine="0",model_name="fake"} 3.0',
        'vllm:e2e_request_latency_seconds_sum{engine="0",model_name="fake"} 6.0',
        'vllm:time_to_first_token_seconds_count{engine="0",model_name="fake"} 0.0',
        'http_requests_total{handler="/v1/embeddings",method="POST",status="200"} 1.0',
    ):
        assert line in text, line


def test_the_routes_are_described(embeds):
    paths = embeds.get("/openapi.json").json()["paths"]
    assert set(ROUTES) <= set(paths)


def _until(true, seconds: float = 60) -> None:
    end = time.monotonic() + seconds
    while not true():
        assert time.monotonic() < end
        time.sleep(0.01)
