"""Voxtral Realtime behind `thalweg serve`: whole clips, and audio that comes in pieces; transformers decides."""

from __future__ import annotations

import base64
import json
import sys
from pathlib import Path
from typing import Any

import numpy as np
import openai
import pytest
from test_chat_transcripts import wav
from test_serve_process import Process
from tokenizers import Tokenizer

pytest.importorskip("websockets")
from websockets.sync.client import connect

sys.path.insert(0, str(Path(__file__).parents[2] / "models"))
import voxtral_realtime_zoo as zoo
from hearing import sound

STEP = 1280
"""Samples of a token."""


def write_clip(seconds: float, seed: int) -> np.ndarray:
    return np.round(sound(seconds, seed) * 32767).astype("<i2")


def read_text(model: Any, tok: Tokenizer, clip: np.ndarray) -> str:
    ids = zoo.transcribe(model, clip.astype(np.float32) / 32768)
    return tok.decode(ids, skip_special_tokens=True)


def talk(url: str, clip: np.ndarray, piece: int, early: bool) -> tuple[list[str], str]:
    """(deltas, the whole text). early: the second half is sent after the first delta."""
    with connect(url.replace("http", "ws") + "/v1/realtime", open_timeout=60) as socket:

        def read() -> dict[str, Any]:
            found: dict[str, Any] = json.loads(socket.recv(timeout=60))
            assert found["type"] != "error", found
            return found

        read()
        socket.send(json.dumps({"type": "session.update", "model": "m"}))
        socket.send(json.dumps({"type": "input_audio_buffer.commit"}))
        deltas = []
        for at in range(0, clip.size, piece):
            if early and not deltas and at > clip.size // 2:
                deltas.append(read()["delta"])
            data = base64.b64encode(clip[at : at + piece].tobytes()).decode()
            socket.send(json.dumps({"type": "input_audio_buffer.append", "audio": data}))
        socket.send(json.dumps({"type": "input_audio_buffer.commit", "final": True}))
        while (event := read())["type"] == "transcription.delta":
            deltas.append(event["delta"])
        assert event["type"] == "transcription.done"
        assert event["usage"]["completion_tokens"] > 0
        return deltas, event["text"]


@pytest.mark.slow
def test_clips_and_streams_are_transcribed_as_transformers_does(tmp_path: Path) -> None:
    model = zoo.make_voxtral_realtime(tmp_path)
    tok = Tokenizer.from_file(str(tmp_path / "tokenizer.json"))
    process = Process(
        str(tmp_path), "--port", "0", "--device", "cpu", "--dtype", "float32", "--max-model-len", "256", "--served-model-name",
        "m", "--num-gpu-blocks-override", "64",
    )  # fmt: skip
    try:
        client = openai.OpenAI(base_url=process.url() + "/v1", api_key="none", max_retries=0, timeout=60)
        for seconds, seed in ((5.3, 1), (1.71, 2)):
            clip = write_clip(seconds, seed)
            want = read_text(model, tok, clip).strip()
            assert len(want) > 5
            said = {"model": "m", "file": ("a.wav", wav(clip))}
            assert client.audio.transcriptions.create(**said).text == want
            events = list(client.audio.transcriptions.create(**said, stream=True))
            assert events[-1].text == want
            for piece, early in ((STEP * 3 + 77, seconds > 2), (clip.size, False)):
                deltas, text = talk(process.url(), clip, piece, early)
                assert text == want == "".join(deltas).strip()
        for words, fields in {
            "gives no times": {"response_format": "verbose_json"}, "language": {"language": "de"},
            "reads no text before": {"prompt": "names"},
        }.items():  # fmt: skip
            with pytest.raises(openai.BadRequestError, match=words):
                client.audio.transcriptions.create(model="m", file=("a.wav", wav(clip)), **fields)
        with pytest.raises(openai.BadRequestError, match="translation is not supported"):
            client.audio.translations.create(model="m", file=("a.wav", wav(clip)))
    finally:
        process.end()
