"""The `server_cls` of Ray Serve LLM, with an application that is written here. `ci/fleets.py` runs it behind Ray's ingress."""

from __future__ import annotations

import importlib
import json
import sys
from types import SimpleNamespace
from typing import Any

import pytest

from thalweg.compat import PATH, requests
from thalweg.integrations.ray.llm import LLMServer

pytestmark = pytest.mark.filterwarnings("ignore:coroutine 'LLMServer.__del__'")  # Serve awaits it, and the collector does not


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> LLMServer:
    """Its application answers with the request: as a stream, whole, or with status 400 if the model is "wrong"."""

    async def app(scope: Any, receive: Any, send: Any) -> None:
        body = json.loads((await receive())["body"])
        headers = {k.decode(): v.decode() for k, v in scope["headers"]}
        content = {"path": scope["path"], "body": body, "headers": headers}
        if body.get("model") == "wrong":
            content = {"error": {"message": "no such model", "type": "NotFoundError", "param": "model", "code": None}}
        kind = b"text/event-stream" if body.get("stream") else b"application/json"
        status = 404 if body.get("model") == "wrong" else 200
        await send({"type": "http.response.start", "status": status, "headers": [(b"content-type", kind)]})
        parts = [b"data: 1\n\n", b"data: [DONE]\n\n"] if body.get("stream") else [json.dumps(content).encode()]
        for part in parts:
            await send({"type": "http.response.body", "body": part, "more_body": True})
        await send({"type": "http.response.body", "body": b""})

    ray = SimpleNamespace(openai_api_models=requests)
    monkeypatch.setitem(sys.modules, "ray.llm._internal.serve.core.configs", ray)
    made = LLMServer.__new__(LLMServer)
    made._server = SimpleNamespace(app=app)
    return made


async def test_a_request_reaches_the_route_with_every_field_and_none_of_the_key(server: LLMServer) -> None:
    request = requests.ChatCompletionRequest(
        messages=[{"role": "user", "content": "a"}], top_k=3, chat_template_kwargs={"x": 1}
    )
    info = SimpleNamespace(headers={"Authorization": "Bearer k", "X-Request-Id": "7"})
    (answer,) = [part async for part in server.chat(request, info)]
    assert isinstance(answer, requests.ChatCompletionResponse)
    got = answer.model_dump()
    assert got["path"] == "/v1/chat/completions"
    assert got["body"] == {"messages": [{"role": "user", "content": "a"}], "top_k": 3, "chat_template_kwargs": {"x": 1}}
    assert got["headers"]["x-request-id"] == "7"
    assert "authorization" not in got["headers"]


async def test_a_stream_is_passed_on_and_an_error_has_its_status(server: LLMServer) -> None:
    streamed = requests.CompletionRequest(prompt="a", stream=True)
    assert [part async for part in server.completions(streamed)] == ["data: 1\n\n", "data: [DONE]\n\n"]
    (error,) = [part async for part in server.tokenize(requests.TokenizeCompletionRequest(prompt="a", model="wrong"))]
    assert isinstance(error, requests.ErrorResponse)
    assert (error.error.code, error.error.message) == (404, "no such model")


def test_the_types_that_ray_imports_are_under_the_names_of_vllm(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [n for n in sys.modules if n == "vllm" or n.startswith("vllm.")]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.syspath_prepend(str(PATH))
    for place, name in (
        ("openai.chat_completion", "ChatCompletionRequest"), ("openai.completion", "CompletionStreamResponse"),
        ("pooling.embed", "EmbeddingChatRequest"), ("pooling.scoring", "ScoreTextRequest"), ("serve.engine", "ErrorInfo"),
        ("serve.tokenize", "DetokenizeResponse"), ("speech_to_text.transcription", "TranscriptionRequest"),
    ):  # fmt: skip
        module = importlib.import_module(f"vllm.entrypoints.{place}.protocol")
        assert getattr(module, name) is getattr(requests, name)
    for name in [n for n in sys.modules if n == "vllm" or n.startswith("vllm.")]:
        monkeypatch.delitem(sys.modules, name)
