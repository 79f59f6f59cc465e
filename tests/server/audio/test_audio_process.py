"""`thalweg serve` of a model that hears: a process, a real engine, the official client; transformers decides."""

from __future__ import annotations

import io
import os
import signal
import wave
from pathlib import Path

import moonshine_zoo
import numpy as np
import openai
import pytest
import torch
from moonshine_zoo import make_moonshine
from test_serve_process import Process
from tokenizers import Tokenizer
from whisper_zoo import (
    BINS,
    DE,
    EN,
    NO_SPEECH,
    NO_TIMES,
    SECONDS,
    SOURCES,
    START,
    TRANSCRIBE,
    greedy,
    load,
    make_whisper,
    sound,
)

from thalweg.media.audio_windows import windows
from thalweg.media.mel import RATE, log_mel
from thalweg.server.audio.recognizer import join_words

pytestmark = pytest.mark.slow  # it starts processes


def wav(samples: np.ndarray) -> bytes:
    out = io.BytesIO()
    with wave.open(out, "wb") as file:
        file.setnchannels(1)
        file.setsampwidth(2)
        file.setframerate(RATE)
        file.writeframes(np.round(samples * 32768).clip(-32768, 32767).astype("<i2").tobytes())
    return out.getvalue()


def test_moonshine(tmp_path: Path) -> None:
    """Windows of different lengths, none of them padded."""
    path, said = make_moonshine(tmp_path, max_position_embeddings=16), sound(3, 5.5)
    data = wav(said)
    with wave.open(io.BytesIO(data)) as file:
        heard = (np.frombuffer(file.readframes(len(said)), "<i2") / 32768).astype(np.float32)
    cuts = windows(heard, 246 * 160, RATE)
    model, tok = moonshine_zoo.load(path), Tokenizer.from_file(str(path / "tokenizer.json"))
    tokens = [moonshine_zoo.greedy(model, heard[w.begin : w.end], 10) for w in cuts]
    assert len(cuts) == 3
    assert len(set(map(tuple, tokens))) > 1
    texts = [tok.decode(ids) for ids in tokens]
    process = Process(str(path), "--device", "cpu", "--dtype", "float32", "--port", "0", "--served-model-name", "m")
    try:
        client = openai.OpenAI(base_url=process.url() + "/v1", api_key="none", max_retries=0, timeout=60)
        fields = {"model": "m", "file": ("a.wav", data), "extra_body": {"max_completion_tokens": 10}}
        want = ""
        for text in texts:
            want += join_words(want, text) + text
        assert client.audio.transcriptions.create(**fields).text == want.strip()
        events = list(client.audio.transcriptions.create(**fields, stream=True))
        assert events[-1].text == want.strip()
        for words, more in {"one language": {"language": "en"}, "gives no times": {"response_format": "srt"}}.items():
            with pytest.raises(openai.BadRequestError, match=words):
                client.audio.transcriptions.create(**fields, **more)
        del fields["extra_body"]
        assert client.audio.transcriptions.create(**fields).text
    finally:
        process.end()


def test_a_long_sound(tmp_path: Path) -> None:
    """Its windows, its language and its text are those of transformers, also where the engine is killed on the way."""
    path, said = make_whisper(tmp_path, alignment_heads=[[0, 1], [1, 0]]), sound(3, 3.3 * SECONDS)
    data = wav(said)
    with wave.open(io.BytesIO(data)) as file:  # as it was rounded
        heard = (np.frombuffer(file.readframes(len(said)), "<i2") / 32768).astype(np.float32)
    cuts = windows(heard, int(SECONDS * RATE), RATE)
    mels = [log_mel(heard[w.begin : w.end], BINS, 2 * SOURCES) for w in cuts]
    model, tok = load(path), Tokenizer.from_file(str(path / "tokenizer.json"))

    def only(ids: object, logits: object) -> object:
        logits[:, [i for i in range(logits.shape[1]) if i not in (EN, DE)]] = -np.inf  # type: ignore[index, attr-defined]
        return logits

    (language,) = greedy(model, mels[0], [START], 1, only)
    texts = [tok.decode(greedy(model, mel, [START, language, TRANSCRIBE, NO_TIMES], 20)) for mel in mels]
    with torch.inference_mode():
        first = [
            model(input_features=torch.from_numpy(m)[None], decoder_input_ids=torch.tensor([[START]])).logits for m in mels
        ]
    quiet = [float(logits[0, 0].softmax(0)[NO_SPEECH]) for logits in first]
    words = ["--device", "cpu", "--dtype", "float32", "--port", "0", "--threads", "1", "--served-model-name", "m"]
    process = Process(str(path), *words)
    try:
        client = openai.OpenAI(base_url=process.url() + "/v1", api_key="none", max_retries=0, timeout=60)

        def ask(**more: object) -> str:
            made = client.audio.transcriptions.create(
                model="m", file=("a.wav", data), extra_body={"max_completion_tokens": 20}, **more
            )
            return made.text  # type: ignore[no-any-return, union-attr]

        assert ask() == "".join(texts).strip()
        pid = process.process.pid
        children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
        (engine,) = (int(c) for c in children if "thalweg.engine.main" in Path(f"/proc/{c}/cmdline").read_text())
        os.kill(engine, signal.SIGKILL)
        assert ask(language="de" if language == DE else "en") == "".join(texts).strip()
        both = {"timestamp_granularities": ["word", "segment"]}
        timed = client.audio.transcriptions.create(model="m", file=("a.wav", data), response_format="verbose_json", **both)
        assert all(0 <= a.start <= a.end <= 3.3 * SECONDS + 0.01 for a in timed.segments or ())
        begins = {round(w.begin / RATE * 100): i for i, w in enumerate(cuts)}
        firsts = [s for s in timed.segments or () if s.seek in begins]
        assert len({s.seek for s in firsts}) == len(cuts)
        for segment in firsts:  # the rest of a window is scored separately
            assert segment.no_speech_prob == pytest.approx(quiet[begins[segment.seek]], abs=1e-4)
        assert timed.words
        assert all(0 <= w.start <= w.end <= 3.3 * SECONDS + 0.01 for w in timed.words)
        assert "".join(w.word for w in timed.words) == "".join("".join(s.text for s in timed.segments or ()).split())
        assert timed.language == ("de" if language == DE else "en")
        events = list(client.audio.transcriptions.create(model="m", file=("a.wav", data), stream=True, language=timed.language))
        assert events[-1].type == "transcript.text.done"
        assert "".join(e.delta for e in events[:-1]).rstrip() == events[-1].text  # type: ignore[union-attr]
    finally:
        process.process.kill()
        print("".join(process.log))
