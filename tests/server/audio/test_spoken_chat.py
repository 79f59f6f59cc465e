"""Spoken answers on /v1/chat/completions: `thalweg serve` with a small Qwen3-Omni, the official client, and transformers."""

from __future__ import annotations

import asyncio
import base64
import contextlib
import io
import sys
import wave
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import openai
import pytest
from test_serve_process import Process

from thalweg.async_llm import AsyncLLM
from thalweg.config import EngineArgs
from thalweg.media.speakers.answers import SpokenAnswer
from thalweg.media.speakers.base import SpeechSettings
from thalweg.server.core import speech
from thalweg.server.errors import ApiError

sys.path.insert(0, str(Path(__file__).parents[2] / "models"))
import hearing
import omni_zoo
from test_omni_talker import answer_theirs, read_prompt
from test_spoken_answers import FRAMES, encode

ASKED = "what is it?"
SAID: dict[str, Any] = {"model": "m", "messages": [{"role": "user", "content": ASKED}], "temperature": 0, "max_tokens": 14}
BOTH = ["text", "audio"]


@pytest.fixture(scope="module")
def server(tmp_path_factory: Any) -> Iterator[tuple[Path, openai.OpenAI]]:
    path = omni_zoo.make_omni(tmp_path_factory.mktemp("spoken"), ending=0.0)
    words = ("--port", "0", "--device", "cpu", "--dtype", "float32", "--served-model-name", "m", "--max-model-len", "256")
    process = Process(str(path), *words, "--enable-talker")
    yield path, openai.OpenAI(base_url=process.url() + "/v1", api_key="none", max_retries=0, timeout=60)
    process.end()


def speak(form: str, **more: Any) -> dict[str, Any]:
    return {"modalities": BOTH, "audio": {"voice": "Chelsie", "format": form, "temperature": 0}, **more}


def samples_of(data: bytes) -> np.ndarray:
    return np.frombuffer(data, "<i2").astype(np.float32) / 32767


@pytest.mark.slow
def test_whole_answers_are_those_of_transformers(server: Any) -> None:
    path, client = server
    user, header = read_prompt(path, ASKED)
    _, codes, want = answer_theirs(omni_zoo.load_omni(path), user + header, FRAMES, 14, talker_repetition_penalty=1.05)
    plain = client.chat.completions.create(**SAID)
    answer = client.chat.completions.create(**SAID, **speak("wav"), logprobs=True)
    (choice,) = answer.choices
    assert choice.message.content == plain.choices[0].message.content == choice.message.audio.transcript
    assert choice.finish_reason == plain.choices[0].finish_reason
    assert len(choice.logprobs.content) == 14
    assert choice.message.audio.id
    assert choice.message.audio.expires_at > 0
    with wave.open(io.BytesIO(base64.b64decode(choice.message.audio.data))) as file:
        assert (file.getnchannels(), file.getsampwidth(), file.getframerate()) == (1, 2, 24_000)
        assert file.getnframes() == len(want)
        assert np.abs(samples_of(file.readframes(len(want))) - want).max() < 2e-4
    assert answer.usage.completion_tokens_details.audio_tokens == len(codes)
    assert answer.usage.completion_tokens == 14 + len(codes)
    history = [*SAID["messages"], choice.message.model_dump(), {"role": "user", "content": "and then?"}]
    unspoken = [SAID["messages"][0], {"role": "assistant", "content": choice.message.content}, history[-1]]
    later, same = (client.chat.completions.create(**{**SAID, "messages": each}) for each in (history, unspoken))
    assert later.choices[0].message.content == same.choices[0].message.content
    only = client.chat.completions.create(**SAID, **{**speak("flac"), "modalities": ["audio"]})
    assert only.choices[0].message.content is None
    assert only.choices[0].message.audio.transcript == choice.message.content
    assert base64.b64decode(only.choices[0].message.audio.data)[:4] == b"fLaC"


@pytest.mark.slow
def test_a_stream_has_the_same_text_and_samples(server: Any) -> None:
    _, client = server
    whole = client.chat.completions.create(**SAID, **speak("pcm16"))
    wanted, data = whole.choices[0], base64.b64decode(whole.choices[0].message.audio.data)
    for modalities in (BOTH, ["audio"]):
        said = {**speak("pcm16"), "modalities": modalities}
        chunks = list(client.chat.completions.create(**SAID, **said, stream=True, stream_options={"include_usage": True}))
        deltas = [chunk.choices[0].delta for chunk in chunks if chunk.choices]
        parts = [said for delta in deltas if (said := delta.model_dump(exclude_unset=True).get("audio"))]
        text = "".join(delta.content or "" for delta in deltas)
        assert text == (wanted.message.content if modalities == BOTH else "")
        assert "".join(part.get("transcript", "") for part in parts) == wanted.message.content
        assert b"".join(base64.b64decode(part.get("data", "")) for part in parts) == data
        assert sum("data" in part for part in parts) > 1
        assert len({part["id"] for part in parts}) == 1
        assert "expires_at" in parts[-1]
        ends = [chunk.choices[0].finish_reason for chunk in chunks if chunk.choices]
        assert [end for end in ends if end] == [wanted.finish_reason]
        assert ends[-1] == wanted.finish_reason
        assert chunks[-1].usage == whole.usage


@pytest.mark.slow
def test_answers_to_sounds_are_those_of_transformers(server: Any) -> None:
    path, client = server
    sound = np.round(hearing.sound(1.0, 3) * 2**15).astype("<i2").astype(np.float32) / 2**15
    part = {"type": "input_audio", "input_audio": {"data": encode(sound), "format": "wav"}}
    messages = [{"role": "user", "content": [part, {"type": "text", "text": "c"}]}]
    said = {**SAID, "messages": messages}
    answer = client.chat.completions.create(**said, **speak("pcm16"), extra_body={"return_token_ids": True})
    given = hearing.given("qwen3-omni", answer.prompt_token_ids, [sound], [])
    del given["input_ids"]
    model = omni_zoo.load_omni(path)
    tokens, _, want = answer_theirs(model, answer.prompt_token_ids, FRAMES, 14, talker_repetition_penalty=1.05, **given)
    assert answer.choices[0].token_ids == tokens
    data = base64.b64decode(answer.choices[0].message.audio.data)
    assert samples_of(data).shape == want.shape
    assert np.abs(samples_of(data) - want).max() < 2e-4
    chunks = client.chat.completions.create(**said, **speak("pcm16"), stream=True)
    parts = [chunk.choices[0].delta.model_dump(exclude_unset=True).get("audio") or {} for chunk in chunks]
    assert b"".join(base64.b64decode(part.get("data", "")) for part in parts) == data


@pytest.mark.slow
def test_answers_at_once_are_those_alone(server: Any) -> None:
    """With answers that are not spoken, and readers that leave."""
    _, client = server

    def ask(text: str) -> tuple[str, str]:
        answer = client.chat.completions.create(**{**SAID, "messages": [{"role": "user", "content": text}]}, **speak("pcm16"))
        return answer.choices[0].message.content, answer.choices[0].message.audio.data

    def leave(text: str) -> None:
        with client.chat.completions.create(**SAID, **speak("pcm16"), stream=True) as stream:
            for chunk in stream:
                if "audio" in chunk.choices[0].delta.model_dump(exclude_unset=True):
                    return

    texts = [ASKED, "hello", "c", "what?", "and then?"]
    alone = [ask(text) for text in texts]
    with ThreadPoolExecutor(12) as pool:
        left, found = [pool.submit(leave, text) for text in texts], [pool.submit(ask, text) for text in texts]
        plain = client.chat.completions.create(**SAID).choices[0].message.content
        assert [each.result() for each in found] == alone
        assert all(each.result() is None for each in left)
    assert plain == alone[0][0]
    assert len({data for _, data in alone}) > 1


@pytest.mark.slow
def test_requests_that_are_refused(server: Any) -> None:
    _, client = server
    call = {"type": "function", "function": {"name": "f", "parameters": {"type": "object", "properties": {}}}}
    sound = {"role": "user", "content": "a"}
    for said, field in (
        ({"modalities": BOTH, "audio": {"voice": "alloy", "format": "wav"}}, "audio.voice"),
        ({"modalities": BOTH, "audio": {"voice": "ethan", "format": "zip"}}, "audio.format"),
        ({**speak("wav"), "stream": True}, "audio.format"),
        (speak("wav", n=2), "n"),
        (speak("wav", tools=[call]), "tools"),
        ({"modalities": ["text", "video"]}, "modalities"),
        ({"audio": {"voice": "ethan", "format": "wav"}}, "audio"),
        ({"messages": [sound, {"role": "assistant", "audio": {"id": "audio_1"}}, sound]}, "messages[1]"),
        (speak("wav", messages=[{"role": "user", "content": "a" * 600}], max_tokens=1), None),
    ):
        with pytest.raises(openai.BadRequestError) as found:
            client.chat.completions.create(**{**SAID, **said})
        assert field is None or found.value.param == field, found.value
    nothing = client.chat.completions.create(**{**SAID, "max_tokens": 1}, **speak("wav"))
    assert len(base64.b64decode(nothing.choices[0].message.audio.data)) == 44, "an answer's last token is not spoken"
    with pytest.raises(openai.BadRequestError) as found:
        client.post("/completions", cast_to=object, body={"model": "m", "prompt": "a", "modalities": BOTH})
    assert found.value.param == "modalities"


@pytest.mark.slow
def test_a_reader_that_leaves_ends_the_speech(tmp_path: Path) -> None:
    """The talker's request ends with it, and the engine serves the next. So it does where the request is aborted."""
    path = omni_zoo.make_omni(tmp_path)

    async def run() -> None:
        args = EngineArgs(model=str(path), device="cpu", dtype="float32", enable_talker=True, max_num_seqs=2)
        engine = await AsyncLLM.start(args)
        try:
            talker: Any = engine.talker
            serving: Any = SimpleNamespace(
                under_way=lambda job: contextlib.nullcontext(f"{job}-1"), lifecycle=SimpleNamespace(cutting=False)
            )  # fmt: skip
            settings = SpokenAnswer(settings=SpeechSettings(temperature=0), form="pcm", written=True)
            user, header = read_prompt(path, ASKED)
            for _ in range(3):
                speaker = speech.AnswerSpeaker(serving, talker, talker.speaker, settings, "pcm")
                samples = speaker.samples("a", user + header, list(range(65, 90)))
                first = await anext(samples)
                assert len(first)
                assert talker._open_ids()
                await samples.aclose()
                assert not talker._open_ids()
            speaker = speech.AnswerSpeaker(serving, talker, talker.speaker, settings, "pcm")
            samples = speaker.samples("a", user + header, list(range(65, 90)))
            assert len(await anext(samples))
            await engine.abort("a-1")
            with pytest.raises(ApiError, match="aborted"):
                [part async for part in samples]
            assert not talker._open_ids()
            await engine.check_health()
        finally:
            await engine.shutdown()
        assert talker.state == "stopped"

    asyncio.run(run())
