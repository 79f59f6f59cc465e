"""A server inside another program's process, and Ray's uses of it, with the bundled model."""

from __future__ import annotations

import asyncio
import inspect
import json

import numpy as np
import pytest

from thalweg import LLM, SamplingParams
from thalweg.errors import ConfigError
from thalweg.integrations.embedded import InProcessRequest, split_options
from thalweg.integrations.ray import serve
from thalweg.integrations.ray.data import BatchGenerator, plain

CHAT = {"model": "nano", "messages": [{"role": "user", "content": "Sort: pear, apple, plum"}], "temperature": 0}


def test_an_unknown_option_is_named_before_anything_starts() -> None:
    with pytest.raises(ConfigError, match="unknown options: maxlen, modle;"):
        split_options({"modle": "x", "model": "y", "maxlen": 1})
    with pytest.raises(ConfigError, match="unknown options: modle;"):
        serve.build_app({"modle": "x"})
    with pytest.raises(ConfigError, match="unknown options: api_key;"):
        BatchGenerator({"api_key": ["x"]})


def test_a_config_file_of_serve_builds_the_application_with_one_argument() -> None:
    """Serve refuses a builder with another number of parameters."""
    assert len(inspect.signature(serve.build_from_config).parameters) == 1
    with pytest.raises(ConfigError, match="args: unknown fields: model; there are options and deployment"):
        serve.build_from_config({"model": "x"})
    with pytest.raises(ConfigError, match="args: options: must be a mapping, not str"):
        serve.build_from_config({"options": "x"})
    with pytest.raises(ConfigError, match="unknown options: modle;"):
        serve.build_from_config({"options": {"modle": "x"}})


def test_a_replica_answers_to_the_names_of_its_cluster_and_to_the_key_of_its_environment(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("THALWEG_API_KEY", "secret")
    _, settings = split_options(serve.find_defaults())
    assert settings.api_key == ["secret"]
    monkeypatch.delenv("THALWEG_API_KEY")
    _, settings = split_options(serve.find_defaults())
    assert settings.api_key == []
    assert settings.hosts is None


async def test_an_answer_arrives_while_the_application_runs_and_leaving_ends_it() -> None:
    ended = asyncio.Event()

    async def app(scope, receive, send) -> None:
        body = (await receive())["body"]
        await send({"type": "http.response.start", "status": 201, "headers": [(b"X-Path", scope["path"].encode())]})
        try:
            while True:
                await send({"type": "http.response.body", "body": body, "more_body": True})
                await asyncio.sleep(0)
        finally:
            ended.set()

    async with InProcessRequest(app, "/v1/x", b"ab", {"Authorization": "Bearer k"}) as answer:
        assert (answer.status, answer.headers) == (201, {"x-path": "/v1/x"})
        chunks = answer.chunks()
        assert [await anext(chunks) for _ in range(40)] == [b"ab"] * 40
        assert not ended.is_set()
    assert ended.is_set()


async def test_the_application_s_error_is_the_caller_s() -> None:
    async def app(scope, receive, send) -> None:
        raise OSError("no answer")

    with pytest.raises(OSError, match="no answer"):
        async with InProcessRequest(app, "/", b"", {}):
            pass


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:coroutine 'ServerReplica.__del__'")  # Serve awaits it, and the collector does not
async def test_a_replica_of_ray_serve_answers_as_the_engine_does() -> None:
    replica = serve.ServerReplica.__new__(serve.ServerReplica)
    await replica.__init__({"served_model_name": ["nano"], "max_model_len": 256, "api_key": ["k"]})
    server, key = replica.server, {"Authorization": "Bearer k"}
    try:
        await replica.check_health()
        async with InProcessRequest(serve.get_app(), "/v1/chat/completions", json.dumps(CHAT).encode(), key) as answer:
            whole = json.loads(await answer.read())["choices"][0]["message"]["content"]
        async with InProcessRequest(
            server.app, "/v1/chat/completions", json.dumps({**CHAT, "stream": True}).encode(), key
        ) as answer:
            lines = (await answer.read()).decode().splitlines()
        parts = [json.loads(line[6:])["choices"][0]["delta"] for line in lines if line.startswith("data: {")]
        oracle = LLM(max_model_len=256).chat(CHAT["messages"], SamplingParams(temperature=0, max_tokens=64), use_tqdm=False)
        assert whole == "".join(p.get("content") or "" for p in parts) == oracle[0].outputs[0].text
        async with InProcessRequest(server.app, "/v1/chat/completions", json.dumps(CHAT).encode(), {}) as answer:
            assert answer.status == 401
    finally:
        await replica.__del__()
    assert server.engine.is_stopped


@pytest.mark.slow
def test_a_batch_keeps_its_columns_and_one_refused_row_fails_no_other() -> None:
    generate = BatchGenerator({"max_model_len": 256}, {"max_tokens": 8, "temperature": 0})
    out = generate({"id": np.array([7, 8, 9]), "prompt": np.array(["1, 2,", "x" * 9000, "red:"], object)})
    oracle = [o.outputs[0] for o in generate._llm.generate(["1, 2,", "red:"], SamplingParams(max_tokens=8, temperature=0))]
    assert out["id"].tolist() == [7, 8, 9]
    assert out["generated_text"].tolist() == [oracle[0].text, "", oracle[1].text]
    assert out["num_generated_tokens"].tolist() == [len(oracle[0].token_ids), 0, len(oracle[1].token_ids)]
    assert out["finish_reason"].tolist()[1] == "error"
    assert "shorten the prompt" in out["error"][1]
    assert out["error"].tolist()[::2] == ["", ""]
    turns = np.array([np.array([{"role": "user", "content": "Sort: pear, apple", "name": None}], object), None], object)[:1]
    assert generate({"messages": turns})["error"].tolist() == [""]


def test_rows_of_arrow_become_plain_values_without_their_empty_fields() -> None:
    row = np.array([{"role": "user", "name": None, "content": np.array(["a"], object), "n": np.int64(3)}], object)
    assert plain(row) == [{"role": "user", "content": ["a"], "n": 3}]
