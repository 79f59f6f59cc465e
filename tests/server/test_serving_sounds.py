"""Sounds over HTTP: `thalweg serve` with a small model that hears, behind the official client."""

from __future__ import annotations

import base64
import io
import sys
import wave
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import openai
import pytest
from test_serve_process import Process

sys.path.insert(0, str(Path(__file__).parents[1] / "models"))
import hearing

pytestmark = pytest.mark.slow  # a server, and a model that is made for it
NAME, NEW = "qwen2-audio", 8


def coded(samples: np.ndarray) -> str:
    out = io.BytesIO()
    with wave.open(out, "wb") as file:
        file.setparams((1, 2, hearing.RATE, 0, "NONE", ""))
        file.writeframes(samples.tobytes())
    return base64.b64encode(out.getvalue()).decode()


A, B = (np.round(hearing.sound(seconds, seed) * 32767).astype("<i2") for seed, seconds in enumerate((1.2, 1.7)))


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[str, Any]]:
    path = tmp_path_factory.mktemp("hearing")
    model = hearing.make(NAME, path)
    process = Process(
        str(path), "--port", "0", "--device", "cpu", "--dtype", "float32", "--max-model-len", "256", "--served-model-name", "m",
        "--limit-mm-per-prompt", '{"audio": 2}', "--num-gpu-blocks-override", "64",
    )  # fmt: skip
    try:
        yield process.url(), model
    finally:
        process.end()


def chat(url: str, *parts: Any) -> Any:
    client = openai.OpenAI(base_url=f"{url}/v1", api_key="none", max_retries=0)
    return client.chat.completions.create(
        model="m", messages=[{"role": "user", "content": [*parts, {"type": "text", "text": "?"}]}], temperature=0,
        max_tokens=NEW, extra_body={"ignore_eos": True, "return_token_ids": True},
    )  # fmt: skip


def said(samples: np.ndarray) -> dict[str, Any]:
    return {"type": "input_audio", "input_audio": {"data": coded(samples), "format": "wav"}}


def test_sounds_are_heard_over_http(server: tuple[str, Any]) -> None:
    url, model = server
    a, b = (each.astype(np.float32) / 32768 for each in (A, B))
    made = chat(url, said(A))
    ids = made.prompt_token_ids
    assert ids.count(hearing.IDS["<|AUDIO|>"]) == 30
    assert made.usage.prompt_tokens == len(ids)
    assert made.choices[0].token_ids == hearing.greedy(model, NAME, ids, [a], [], NEW)
    both = chat(url, said(A), {"type": "audio_url", "audio_url": {"url": f"data:audio/wav;base64,{coded(B)}"}})
    assert both.choices[0].token_ids == hearing.greedy(model, NAME, both.prompt_token_ids, [a, b], [], NEW)


@pytest.mark.parametrize(
    ("parts", "words"),
    [
        ([said(A)] * 3, "3 audio clips; this server accepts 2"),
        ([{"type": "input_audio", "input_audio": {"data": "bm8gc291bmQ=", "format": "wav"}}], "content[0]: it is no"),
        ([{"type": "audio_url", "audio_url": {"url": "http://127.0.0.1/a.wav"}}], "URLs are not fetched"),
        ([{"type": "image_url", "image_url": {"url": "data:image/png;base64,AAAA"}}], "images are not supported by this model"),
        ([{"type": "input_audio"}], "input_audio"),
        ([{"type": "video_url", "video_url": {"url": "x"}}], "videos are not supported by this model"),
    ],
)
def test_what_cannot_be_heard_is_a_400(server: tuple[str, Any], parts: list[Any], words: str) -> None:
    with pytest.raises(openai.BadRequestError) as error:
        chat(server[0], *parts)
    assert words in str(error.value)
