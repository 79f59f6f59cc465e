"""Vectors and scores of images over HTTP: `thalweg serve` with a small embedding model that sees."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import httpx
import numpy as np
import pytest
import torch
from test_serve_process import Process

pytest.importorskip("PIL.Image", reason="images need Pillow: pip install 'thalweg[images]'")

from test_serving_images import URL, A, seeing

pytestmark = pytest.mark.nightly
SHOWN = {"type": "image_url", "image_url": {"url": URL}}


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[str, Any]]:
    path = tmp_path_factory.mktemp("seeing")
    model = seeing.make("qwen3-vl", path)
    process = Process(
        str(path), "--port", "0", "--device", "cpu", "--dtype", "float32", "--max-model-len", "512", "--runner", "pooling",
        "--served-model-name", "m",
    )  # fmt: skip
    try:
        yield process.url(), model
    finally:
        process.end()


def post(url: str, **body: Any) -> Any:
    return httpx.post(url, json={"model": "m", **body}, timeout=60)


def test_conversations_and_pairs_may_hold_images(server: tuple[str, Any]) -> None:
    url, model = server
    messages = [{"role": "user", "content": [SHOWN, {"type": "text", "text": "boats"}]}]
    count = post(f"{url}/tokenize", messages=messages, add_generation_prompt=False).json()["tokens"]
    made = post(f"{url}/v1/embeddings", messages=messages).json()
    assert made["usage"]["prompt_tokens"] == len(count)
    with torch.inference_mode():
        want = model.model(**seeing.given("qwen3-vl", count, [A])).last_hidden_state[0, -1].numpy()
    got = np.array(made["data"][0]["embedding"])
    np.testing.assert_allclose(got, want / np.linalg.norm(want), atol=1e-5)
    assert np.shape(post(f"{url}/pooling", messages=messages, task="token_embed").json()["data"][0]["data"]) == (len(count), 48)

    image = {"content": [SHOWN]}
    texts = [{"content": [{"type": "text", "text": t}]} for t in ("boats", "down")]
    scored = post(f"{url}/score", text_1=image, text_2=[*texts, image]).json()["data"]
    assert scored[2]["score"] == pytest.approx(1)
    ranked = post(f"{url}/rerank", query="boats", documents=[image, {"text": "boats"}]).json()["results"]
    assert [each["index"] for each in ranked] == [1, 0]

    for body, said in (
        ({"messages": messages, "input": "a"}, "either input or messages"),
        ({}, "send input, or messages"),
        ({"messages": messages, "truncate_prompt_tokens": 8}, "not supported with"),
        ({"messages": [{"role": "user", "content": [{"type": "input_audio"}]}]}, "needs input_audio"),
    ):
        answer = post(f"{url}/v1/embeddings", **body)
        assert (answer.status_code, said in answer.text) == (400, True), answer.text
