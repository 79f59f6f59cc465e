"""/v1/audio/speech: `thalweg serve` with a small VITS, the official client; transformers decides."""

from __future__ import annotations

import io
import sys
import wave
from pathlib import Path

import av
import httpx
import numpy as np
import openai
import pytest
from test_serve_process import Process

from thalweg import LLM
from thalweg.errors import RequestError
from thalweg.media import audio_files
from thalweg.plugins import import_attribute
from thalweg.server.audio import speech
from thalweg.server.routes import ROOM, ROUTES

sys.path.insert(0, str(Path(__file__).parents[2] / "models"))
import speak_zoo
from test_vits import TEXT, speak_theirs

LONG = ". ".join(["One two three four five six seven eight"] * 12)


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    path = speak_zoo.make_vits("speakers", tmp_path_factory.mktemp("speech"))
    process = Process(str(path), "--port", "0", "--device", "cpu", "--dtype", "float32", "--served-model-name", "m")
    client = openai.OpenAI(base_url=process.url() + "/v1", api_key="none", max_retries=0, timeout=60)
    yield path, client
    process.end()


def samples_of(data: bytes) -> np.ndarray:
    return np.frombuffer(data, "<i2").astype(np.float32) / 32767


def decode(data: bytes) -> tuple[np.ndarray, int]:
    """By PyAV: (samples of one channel, rate)."""
    with av.open(io.BytesIO(data)) as file:
        frames = [frame.to_ndarray() for frame in file.decode(audio=0)]
        rate = file.streams.audio[0].rate
    made = np.concatenate([frame.reshape(1, -1) for frame in frames], 1)[0]
    return made.astype(np.float32) / (1 if made.dtype.kind == "f" else np.iinfo(made.dtype).max), rate


@pytest.mark.slow
def test_answers_are_those_of_transformers(server, monkeypatch):
    path, client = server
    said = {"model": "m", "voice": "1", "input": TEXT, "extra_body": {"seed": 5}}
    want = speak_theirs(path, TEXT, monkeypatch, voice=1, seed=5)
    data = client.audio.speech.create(**said, response_format="wav").content
    with wave.open(io.BytesIO(data)) as file:
        assert (file.getnchannels(), file.getsampwidth(), file.getframerate()) == (1, 2, 16_000)
        assert file.getnframes() == len(want)
        assert np.abs(samples_of(file.readframes(len(want))) - want).max() < 2e-4
    pcm = client.audio.speech.create(**said, response_format="pcm").content
    assert pcm == data[44:]
    fast = client.audio.speech.create(**said, response_format="pcm", speed=2.0).content
    assert np.abs(samples_of(fast) - speak_theirs(path, TEXT, monkeypatch, voice=1, speed=2.0, seed=5)).max() < 2e-4
    flac, rate = decode(client.audio.speech.create(**said, response_format="flac").content)
    assert rate == 16_000
    assert np.abs(flac - want).max() < 2e-4


@pytest.mark.slow
def test_sentences_arrive_one_by_one(server):
    _, client = server
    said = {"model": "m", "voice": {"id": "2"}, "input": LONG, "extra_body": {"seed": 1}}
    whole = client.audio.speech.create(**said, response_format="pcm").content
    with client.audio.speech.with_streaming_response.create(**said, response_format="pcm") as answer:
        assert answer.headers["content-type"] == "audio/pcm"
        assert "content-length" not in answer.headers
        assert b"".join(answer.iter_bytes()) == whole
    url, got = f"{client.base_url}audio/speech", b""
    body = {"model": "m", "voice": "2", "input": LONG, "seed": 1, "response_format": "wav", "stream_format": "sse"}
    import base64
    import json

    events = [
        json.loads(line[6:]) for line in httpx.post(url, json=body, timeout=60).text.splitlines() if line.startswith("data: {")
    ]
    assert {e["type"] for e in events[:-1]} == {"speech.audio.delta"}
    got = b"".join(base64.b64decode(e["audio"]) for e in events[:-1])
    assert got == audio_files.wav_header(16_000, None) + whole
    usage = events[-1]["usage"]
    assert events[-1]["type"] == "speech.audio.done"
    assert usage["output_tokens"] * 8 * 2 == len(whole)
    assert usage["total_tokens"] == usage["input_tokens"] + usage["output_tokens"]


@pytest.mark.slow
def test_what_is_refused(server):
    _, client = server
    said = {"model": "m", "voice": "1", "input": TEXT}
    for change, words in (
        ({"voice": "alloy"}, "0, 1, 2"), ({"speed": 9.0}, "speed"), ({"input": ""}, "input"), ({"input": "!?"}, "input"),
        ({"input": "a" * 4097}, "4096"), ({"instructions": "whisper"}, "instructions"),
        ({"response_format": "midi"}, "response_format"), ({"stream_format": "x"}, "stream_format"),
        ({"extra_body": {"ref_audio": "data:"}}, "ref_audio"), ({"extra_body": {"truncate_prompt_tokens": 4}}, "truncate"),
    ):  # fmt: skip
        with pytest.raises(openai.BadRequestError, match=words):
            client.audio.speech.create(**{**said, "response_format": "pcm", **change})
    base = str(client.base_url)
    for route, body in (("embeddings", {"input": "a"}), ("chat/completions", {"messages": []})):
        answer = httpx.post(base + route, json={"model": "m", **body})
        assert answer.status_code == 400
        assert "/v1/audio/speech" in answer.text
    assert httpx.get(base + "audio/voices").json() == {"voices": ["0", "1", "2"]}


@pytest.mark.parametrize("form", ["mp3", "opus", "aac", "flac", "wav", "pcm"])
def test_formats(form):
    """In uneven parts: PyAV reads what was written."""
    rate, wanted = 16_000, 0.5 * np.sin(np.arange(16_000, dtype=np.float32) / 16_000 * 2 * np.pi * 440)
    encoder = audio_files.open_encoder(form, rate)
    data = b"".join(encoder.write(part) for part in np.split(wanted, [10, 777, 9000])) + encoder.close()
    if form == "pcm":
        assert np.abs(samples_of(data) - wanted).max() < 1e-4
        return
    got, found = decode(data)
    assert found == (48_000 if form == "opus" else rate)
    assert len(got) / found == pytest.approx(1.0, abs=0.2)
    loud = np.abs(np.fft.rfft(got[: found // 2]))
    assert abs(np.argmax(loud) * 2 - 440) <= 4
    assert np.abs(got).max() == pytest.approx(0.5, abs=0.1)
    if form in ("flac", "wav"):
        assert np.abs(got[: len(wanted)] - wanted).max() < 1e-4


def test_a_format_without_its_library(monkeypatch):
    monkeypatch.setattr(audio_files, "find_spec", lambda name: None)
    speech._check_format("wav", 16_000)
    with pytest.raises(Exception, match=r"response_format: mp3 requires the package av"):
        speech._check_format("mp3", 16_000)


@pytest.mark.parametrize("form", ["mp3", "opus", "aac", "flac", "wav", "pcm"])
@pytest.mark.parametrize("rate", [1_000, 7_350, 16_000, 96_000, 768_000])
def test_a_rate_that_a_format_has_not_is_refused_before_anything_runs(form, rate):
    if audio_files.has_rate(form, rate):
        encoder = audio_files.open_encoder(form, rate)
        assert encoder.write(np.zeros(9000, np.float32)) + encoder.close()
        return
    with pytest.raises(speech.ApiError, match=r"response_format: .* use wav, pcm or flac"):
        speech._check_format(form, rate)
    with pytest.raises(av.error.FFmpegError):
        audio_files.open_encoder(form, rate).write(np.zeros(9000, np.float32))


@pytest.mark.parametrize("named", ["prompt", "prompt_token_ids"])
def test_errors_of_prompts_name_the_input(named):
    (row,) = (row for row in ROUTES if row.path == "/v1/audio/speech")
    assert import_attribute(f"{ROOM}{row.errors}") is speech.ERRORS
    for form in (speech.ERRORS, speech.BROKEN):
        found = form.translate(RequestError(f"{named}: 404 tokens leave no room", named))
        assert (found.param, found.message) == ("input", "input: 404 tokens leave no room")


@pytest.fixture(scope="module")
def generating(tmp_path_factory):
    path = speak_zoo.make_csm(tmp_path_factory.mktemp("csm"), max_position_embeddings=600)
    process = Process(str(path), "--port", "0", "--device", "cpu", "--dtype", "float32", "--served-model-name", "m")
    client = openai.OpenAI(base_url=process.url() + "/v1", api_key="none", max_retries=0, timeout=60)
    yield path, client
    process.end()


@pytest.mark.slow
def test_generated_frames(generating):
    """Sampled: parts of a stream are those of the whole, and of Python's."""
    path, client = generating
    text = "one. " + "a b c d e f g h " * 40
    said = {"model": "m", "voice": "3", "input": text, "extra_body": {"seed": 5, "temperature": 0.7}}
    data = client.audio.speech.create(**said, response_format="wav").content
    with client.audio.speech.with_streaming_response.create(**said, response_format="pcm") as answer:
        assert b"".join(answer.iter_bytes()) == data[44:]
    llm = LLM(str(path), device="cpu", dtype="float32", use_tqdm_on_load=False)
    (want,) = llm.speak(text, voice="3", seed=5, temperature=0.7, use_tqdm=False)
    got = samples_of(data[44:])
    assert len(got) == len(want.samples)
    assert np.abs(got - np.clip(want.samples, -1, 1)).max() < 2e-4
    for change, words in (({"speed": 1.5}, "one speed"), ({"voice": "99"}, "voice")):
        with pytest.raises(openai.BadRequestError, match=words):
            client.audio.speech.create(**{**said, "response_format": "pcm", **change})
    for route, body in (("completions", {"prompt": "a"}), ("embeddings", {"input": "a"})):
        answer = httpx.post(f"{client.base_url}{route}", json={"model": "m", **body})
        assert answer.status_code == 400
        assert "/v1/audio/speech" in answer.text
