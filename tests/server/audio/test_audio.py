"""The audio routes through the official client, and by hand: fields, forms of answers, streams, windows, what is refused."""

from __future__ import annotations

import io
import wave
from typing import Any

import numpy as np
import openai
import pytest
from fake_engine import FakeEngine
from fake_recognizer import FakeRecognizer
from whisper_zoo import BEFORE, DE, EN, NO_SPEECH, NO_TIMES, SECONDS, START, TIMES, TRANSCRIBE, TRANSLATE

TRANSCRIPTIONS = "/v1/audio/transcriptions"


def wav(seconds: float, loud: bool = True) -> bytes:
    out = io.BytesIO()
    with wave.open(out, "wb") as file:
        file.setnchannels(1)
        file.setsampwidth(2)
        file.setframerate(16_000)
        samples = np.random.default_rng(1).normal(size=int(16_000 * seconds)) * 3000 * loud
        file.writeframes(samples.astype("<i2").tobytes())
    return out.getvalue()


@pytest.fixture(scope="module")
def server():
    from conftest import Running  # that of tests/server

    from thalweg.server.settings import ServerSettings

    running = Running(FakeRecognizer(delay=0.001), ServerSettings())
    yield running
    running.stop()


def ask(running: Any, data: bytes, **fields: Any) -> Any:
    return running.client().audio.transcriptions.create(model="fake", file=("x.wav", data), **fields)


@pytest.mark.slow
def test_forms_of_answers(server):
    data = wav(0.5)
    assert ask(server, data, language="en").text == "a bc"
    assert ask(server, data, language="en").usage.seconds == 1
    assert ask(server, data, language="en", response_format="text") == "a bc\n"
    said = ask(server, data, language="en", response_format="verbose_json", timestamp_granularities=["segment"])
    assert (said.text, said.language, said.duration, said.words) == ("a bc", "en", 0.5, None)
    assert [(s.id, s.start, s.end, s.text) for s in said.segments] == [(0, 0.0, 0.2, " a"), (1, 0.4, 0.5, " bc")]
    assert [s.no_speech_prob for s in said.segments] == [pytest.approx(np.exp(-1.5))] * 2
    assert all(s.avg_logprob < 0 < s.compression_ratio for s in said.segments)
    srt = ask(server, data, language="en", response_format="srt")
    assert srt == "1\n00:00:00,000 --> 00:00:00,200\na\n\n2\n00:00:00,400 --> 00:00:00,500\nbc\n\n"
    vtt = ask(server, data, language="en", response_format="vtt")
    assert vtt == "WEBVTT\n\n00:00:00.000 --> 00:00:00.200\na\n\n00:00:00.400 --> 00:00:00.500\nbc\n\n"


def test_what_the_model_is_asked(server):
    asked: list[Any] = server.engine.prompts
    asked.clear()
    server.engine.scored.clear()
    ask(server, wav(0.2), language="german", prompt="<|en|> hi", temperature=0.5)
    (only,) = asked
    ids = only["prompt_token_ids"]
    assert ids[-4:] == [START, DE, TRANSCRIBE, NO_TIMES]
    assert ids[0] == BEFORE
    assert EN not in ids, "text of a client became a special token"
    asked.clear()
    server.client().audio.translations.create(model="fake", file=("x.wav", wav(0.2)), response_format="verbose_json")
    assert [a["prompt_token_ids"] for a in asked] == [[START], [START, EN, TRANSLATE]]
    assert [a["prompt_token_ids"] for a in server.engine.scored] == [[START, NO_SPEECH]]
    asked.clear()
    said = ask(server, wav(0.2, loud=False), response_format="verbose_json")
    assert said.language == "de", "the language of the first window was not taken"
    assert asked[1]["prompt_token_ids"][:2] == [START, DE]


def test_long_sounds_are_heard_in_windows_at_once(server):
    server.engine.prompts.clear()
    server.engine.most_running = 0
    said = ask(server, wav(2.6 * SECONDS), language="en", response_format="verbose_json")
    assert said.text == "a bc a bc a bc"
    assert server.engine.most_running == len(server.engine.prompts) == 3
    starts = [s.start for s in said.segments]
    assert starts == sorted(starts)
    assert starts[2] > 0.5 * SECONDS
    assert [s.id for s in said.segments] == list(range(6))


def test_words_have_times(server):
    """The fake's token i attends to five frames, from 0.1 i seconds on. A word begins with the token before it."""
    server.engine.aligned.clear()
    said = ask(server, wav(1.6 * SECONDS), language="en", response_format="verbose_json", timestamp_granularities=["word"])
    assert [w.word for w in said.words] == ["a", "bc", "a", "bc"]
    assert said.segments is None
    assert len(server.engine.aligned) == 2
    assert all(rows[0] == rows[3] - 10 == TIMES and rows[-1] < TIMES for rows in server.engine.aligned), server.engine.aligned
    begin = said.words[2].start
    assert [(w.start, w.end) for w in said.words[:2]] == [(0.0, 0.2), (0.4, 0.7)]
    assert 0.5 * SECONDS < begin < SECONDS
    both = ask(server, wav(0.5), language="en", response_format="verbose_json", timestamp_granularities=["word", "segment"])
    assert (len(both.segments), len(both.words)) == (2, 2)


def test_words_without_heads_are_refused(start):
    with pytest.raises(openai.BadRequestError, match="names no alignment_heads"):
        ask(start(FakeRecognizer(heads=0)), wav(0.2), response_format="verbose_json", timestamp_granularities=["word"])


def test_what_a_window_stops_before_is_heard_again(server):
    server.engine.stops = 2
    server.engine.prompts.clear()
    said = ask(server, wav(0.9), language="en", response_format="verbose_json")
    assert said.text == "a a a bc"
    assert [(s.start, s.end) for s in said.segments] == [(0.0, 0.3), (0.3, 0.6), (0.6, 0.8), (0.9, 0.9)]
    heard = [p["multi_modal_data"]["audio"].values for p in server.engine.prompts]
    assert len(heard) == 3
    assert not np.array_equal(heard[0], heard[1])


def test_streams(server):
    events = list(ask(server, wav(2.6 * SECONDS), language="en", stream=True))
    deltas = [e.delta for e in events if e.type == "transcript.text.delta"]
    assert len(deltas) > 5
    assert "".join(deltas) == events[-1].text == "a bc a bc a bc"
    assert events[-1].type == "transcript.text.done"
    assert events[-1].usage.seconds == 3


def test_the_description(server):
    said = server.get("/openapi.json").json()["paths"][TRANSCRIPTIONS]["post"]
    fields, file = said["requestBody"]["content"]["multipart/form-data"]["schema"]["allOf"]
    assert "language" in fields["properties"]
    assert file["required"] == ["file"]
    assert "413" in said["responses"]


def test_what_is_refused(server):
    data = wav(0.2)
    wrong: list[tuple[str, dict[str, Any]]] = [
        ("language: unknown 'xx'; supported: de, en", {"language": "xx"}),
        ("cannot be streamed", {"response_format": "srt", "stream": True}),
        ("needs response_format verbose_json", {"timestamp_granularities": ["segment"]}),
        ("hotwords is not supported", {"extra_body": {"hotwords": "x"}}),
        ("use_beam_search is not supported", {"extra_body": {"use_beam_search": "true"}}),
        ("response_format", {"response_format": "diarized_json"}),
        ("temperature", {"temperature": 5e9}),
        ("file: it is empty", {"file": ("x.wav", b"")}),
    ]
    for words, fields in wrong:
        with pytest.raises(openai.BadRequestError, match=words):
            server.client().audio.transcriptions.create(
                **{"model": "fake", "file": ("x.wav", data), "language": "en", **fields}
            )
    with pytest.raises(openai.NotFoundError):
        server.client().audio.transcriptions.create(model="other", file=("x.wav", data))
    assert server.post(TRANSCRIPTIONS, {"model": "fake"}).status_code == 415
    missing = server.http.post(TRANSCRIPTIONS, files={"model": (None, "fake")})
    assert (missing.status_code, missing.json()["error"]["param"]) == (400, "file")
    with pytest.raises(openai.BadRequestError, match=TRANSCRIPTIONS):
        server.client().chat.completions.create(model="fake", messages=[{"role": "user", "content": "x"}])


def test_limits_and_other_models(start, monkeypatch):
    monkeypatch.setenv("VLLM_MAX_AUDIO_CLIP_FILESIZE_MB", "0.5")
    monkeypatch.setenv("THALWEG_MAX_AUDIO_DECODE_DURATION_S", "2")
    small = start(FakeRecognizer(multilingual=False))
    assert ask(small, wav(0.2)).text == "a bc"
    assert small.engine.prompts[-1]["prompt_token_ids"] == [START, NO_TIMES]
    for words, fields in (("English-only", {"language": "de"}), ("lasts 3 seconds", {"file": ("x.wav", wav(3.0))})):
        with pytest.raises(openai.BadRequestError, match=words):
            small.client().audio.transcriptions.create(**{"model": "fake", "file": ("x.wav", wav(0.2)), **fields})
    with pytest.raises(openai.BadRequestError, match="translation is not supported"):
        small.client().audio.translations.create(model="fake", file=("x.wav", wav(0.2)))
    for seconds in (18, 40):  # beyond the file's limit, and beyond the body's
        with pytest.raises(openai.APIStatusError) as e:
            ask(small, wav(seconds))
        assert e.value.status_code == 413
    with pytest.raises(openai.BadRequestError, match="needs a speech recognition model"):
        ask(start(FakeEngine()), wav(0.2))
