"""Transcripts whose tokens have times: `thalweg serve` with Parakeet, the official client; transformers decides."""

from __future__ import annotations

import base64
import sys
from pathlib import Path

import httpx
import numpy as np
import openai
import pytest
from test_chat_transcripts import wav
from test_serve_process import Process
from tokenizers import Tokenizer

from thalweg.media.audio_windows import windows
from thalweg.media.mel import RATE
from thalweg.server.audio.spelling import cut_segments, read_rows, spell_words

sys.path.insert(0, str(Path(__file__).parents[2] / "models"))
import parakeet_zoo
from whisper_zoo import sound

STEP = 0.08


def pcm(seconds: float, seed: int = 3) -> np.ndarray:
    return np.round(sound(seed, seconds) * 16_384).astype("<i2")


def heard(samples: np.ndarray) -> np.ndarray:
    return samples.astype(np.float32) / 32768


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    path = parakeet_zoo.make_parakeet("tdt", tmp_path_factory.mktemp("clips"))
    process = Process(str(path), "--port", "0", "--device", "cpu", "--dtype", "float32", "--served-model-name", "m")
    client = openai.OpenAI(base_url=process.url() + "/v1", api_key="none", max_retries=0, timeout=60)
    yield path, parakeet_zoo.load("tdt", path), client
    process.end()


@pytest.mark.slow
def test_answers_are_those_of_transformers(server):
    """A file of several windows: text, a stream, segments and words with their times."""
    path, model, client = server
    samples, tok = pcm(70.0), Tokenizer.from_file(str(path / "tokenizer.json"))
    cuts = windows(heard(samples), 60 * RATE, RATE)
    assert len(cuts) == 2
    found = [(w, parakeet_zoo.transcribe("tdt", model, path, heard(samples)[w.begin : w.end])) for w in cuts]
    texts = [tok.decode([token for token, _, _ in rows]) for _, rows in found]
    whole = " ".join(texts)
    assert all(texts)
    said = {"model": "m", "file": ("a.wav", wav(samples))}
    assert client.audio.transcriptions.create(**said).text == whole
    assert client.audio.transcriptions.create(**said, response_format="text") == whole + "\n"
    events = list(client.audio.transcriptions.create(**said, stream=True))
    assert [e.delta for e in events[:-1]] == [texts[0], " " + texts[1]]
    assert events[-1].text == whole
    timed = client.audio.transcriptions.create(
        **said, response_format="verbose_json", timestamp_granularities=["word", "segment"]
    )
    assert (timed.text, timed.duration) == (whole, 70.0)
    assert [w.word for w in timed.words] == whole.split()
    assert "".join(s.text for s in timed.segments).strip() == whole
    begins = [
        round(window.begin / RATE + first * STEP, 3)
        for window, rows in found
        for i, (token, first, _) in enumerate(rows)
        if i == 0 or tok.id_to_token(token).startswith("▁")
    ]
    assert [w.start for w in timed.words] == begins
    ids = [token for _, rows in found for token, _, _ in rows]
    assert [token for s in timed.segments for token in s.tokens] == ids
    assert all(s.avg_logprob < 0 and s.start <= s.end for s in timed.segments)
    srt = client.audio.transcriptions.create(**said, response_format="srt")
    assert srt.count("-->") == len(timed.segments)


@pytest.mark.slow
def test_live_audio(server):
    """Windows of ten seconds: each delta is the transcript of one."""
    path, model, client = server
    samples, tok = pcm(14.0, 5), Tokenizer.from_file(str(path / "tokenizer.json"))
    cuts = windows(heard(samples), 10 * RATE, RATE)
    rows = [parakeet_zoo.transcribe("tdt", model, path, heard(samples)[w.begin : w.end]) for w in cuts]
    texts = [tok.decode([token for token, _, _ in each]) for each in rows]
    deltas = []
    with client.realtime.connect(model="m") as connection:
        connection.send({"type": "session.update", "model": "m"})
        connection.input_audio_buffer.append(audio=base64.b64encode(samples.tobytes()).decode())
        connection.send({"type": "input_audio_buffer.commit", "final": True})
        for event in connection:
            deltas += [event.delta] if event.type == "transcription.delta" else []
            assert event.type != "error", event
            if event.type == "transcription.done":
                assert event.text == " ".join(texts)
                break
    assert deltas == [texts[0], *(f" {text}" for text in texts[1:])]


@pytest.mark.slow
def test_what_is_refused(server):
    """A clip shorter than the shortest is filled up with silence."""
    _, _, client = server
    said = {"model": "m", "file": ("a.wav", wav(pcm(0.05)))}
    assert client.audio.transcriptions.create(**said, temperature=0).text is not None
    for field, value in (
        ("language", "de"), ("prompt", "names"), ("temperature", 0.5), ("top_p", 0.5), ("seed", 3),
        ("max_completion_tokens", 5),
    ):  # fmt: skip
        with pytest.raises(openai.BadRequestError, match=field):
            client.audio.transcriptions.create(**said, extra_body={field: value})
    with pytest.raises(openai.BadRequestError, match="translation"):
        client.audio.translations.create(**said)
    base = str(client.base_url)
    for route, body in (("pooling", {"input": "a"}), ("embeddings", {"input": "a"}), ("chat/completions", {"messages": []})):
        url = f"{base.removesuffix('/v1/')}/pooling" if route == "pooling" else base + route
        answer = httpx.post(url, json={"model": "m", **body})
        assert answer.status_code == 400
        assert "/v1/audio/transcriptions" in answer.text


def rows_of(*tokens: tuple[int, float, int, int]) -> np.ndarray:
    return read_rows(np.array([len(tokens), *(x for row in tokens for x in row), 0, 0], np.float32))


PIECES = {0: "▁he", 1: "llo", 2: ".", 3: "▁you", 4: "▁", 5: "x"}


def decode(ids):
    """As sentencepiece: without the first space."""
    return "".join(PIECES[i] for i in ids).replace("▁", " ").removeprefix(" ")


def test_words_and_segments():
    """A sentence ends a segment, and so does a pause. A token that is a space begins a word."""
    rows = rows_of((0, -0.5, 1, 2), (1, -1.5, 3, 4), (2, -1, 4, 5), (3, -1, 6, 8), (4, -1, 9, 10), (5, -1, 40, 41))
    words = spell_words(rows, decode, 100.0, 12.5)
    assert [(w.text, w.start, w.end) for w in words] == [
        (" hello.", 100.08, 100.4), (" you", 100.48, 100.64), (" x", 103.2, 103.28),
    ]  # fmt: skip
    segments = list(cut_segments(words, 100.0))
    assert [s.text for s in segments] == [" hello.", " you", " x"]
    assert (segments[0].tokens, segments[0].logprob) == ([0, 1, 2], -1.0)
    assert list(cut_segments([], 0.0)) == []
