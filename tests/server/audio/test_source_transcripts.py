"""Transcripts of models with an encoder of sound: `thalweg serve`, the official client; transformers decides."""

from __future__ import annotations

import io
import wave
from pathlib import Path
from typing import Any

import numpy as np
import openai
import pytest
import seamless_zoo
import speech_to_text_zoo
from test_serve_process import Process
from tokenizers import Tokenizer
from whisper_zoo import sound

from thalweg.media.mel import RATE
from thalweg.text.tokenizer import load_tokenizer

pytestmark = pytest.mark.slow  # it starts processes
SECONDS, NEW = 1.595, 10  # an even number of spectra
CLIP = np.round(sound(3, SECONDS) * 32768).clip(-32768, 32767).astype("<i2")
HEARD = (CLIP / 32768).astype(np.float32)


def wav() -> bytes:
    out = io.BytesIO()
    with wave.open(out, "wb") as file:
        file.setparams((1, 2, RATE, 0, "NONE", ""))
        file.writeframes(CLIP.tobytes())
    return out.getvalue()


def ask(path: Path, requests: list[tuple[str, dict[str, Any]]], refused: dict[str, dict[str, Any]]) -> list[str]:
    """The texts of (route, fields), and refusals by their words."""
    process = Process(str(path), "--device", "cpu", "--dtype", "float32", "--port", "0", "--served-model-name", "m")
    try:
        client = openai.OpenAI(base_url=process.url() + "/v1", api_key="none", max_retries=0, timeout=60)
        said = {"model": "m", "file": ("a.wav", wav()), "extra_body": {"max_completion_tokens": NEW}}
        texts = [getattr(client.audio, route).create(**said, **fields).text for route, fields in requests]
        for words, fields in refused.items():
            with pytest.raises(openai.BadRequestError, match=words):
                client.audio.transcriptions.create(**said, **fields)
        return texts
    finally:
        process.end()


def test_seamless(tmp_path: Path) -> None:
    path = seamless_zoo.make_seamless("v2", tmp_path)
    model, tok = seamless_zoo.load("v2", path), Tokenizer.from_file(str(path / "tokenizer.json"))
    texts = ask(
        path,
        [("transcriptions", {"language": "de"}), ("translations", {}), ("transcriptions", {})],
        {"unknown 'xx'": {"language": "xx"}, "gives no times": {"response_format": "srt"}},
    )
    want = []
    for name in ("__deu__", "__eng__", "__eng__"):
        ids, _ = seamless_zoo.greedy(model, HEARD, [seamless_zoo.START, seamless_zoo.VOCAB[name]], NEW)
        want.append(tok.decode(ids).strip())
    assert texts == want
    assert want[0] != want[1], "languages change nothing"


def test_speech_to_text(tmp_path: Path) -> None:
    path = speech_to_text_zoo.make_speech_to_text(tmp_path)
    model, tok = speech_to_text_zoo.load(path), load_tokenizer(path)
    texts = ask(path, [("transcriptions", {})], {"one language": {"language": "en"}})
    ids, _ = speech_to_text_zoo.greedy(model, HEARD, NEW)
    assert texts == [tok.decode(ids).strip()]
    assert texts[0]
