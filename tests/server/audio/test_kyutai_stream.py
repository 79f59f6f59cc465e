"""Kyutai speech to text behind `thalweg serve`: files, and audio that comes in pieces; transformers decides."""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import openai
import pytest
from test_chat_transcripts import wav
from test_serve_process import Process
from test_timed_stream import talk, write_clip
from tokenizers import Tokenizer

from thalweg.media.resample import resample

sys.path.insert(0, str(Path(__file__).parents[2] / "models"))
import kyutai_zoo as zoo

RATE = 16_000


@pytest.mark.slow
def test_clips_and_streams_are_transcribed_as_transformers_does(tmp_path: Path) -> None:
    model = zoo.make_kyutai(tmp_path)
    tok = Tokenizer.from_file(str(tmp_path / "tokenizer.json"))
    process = Process(
        str(tmp_path), "--port", "0", "--device", "cpu", "--dtype", "float32", "--max-model-len", "256", "--served-model-name",
        "m", "--num-gpu-blocks-override", "64",
    )  # fmt: skip
    try:
        client = openai.OpenAI(base_url=process.url() + "/v1", api_key="none", max_retries=0, timeout=60)
        for seconds, seed in ((5.3, 1), (1.71, 2)):
            clip = write_clip(seconds, seed)
            wave = resample(clip.astype(np.float32) / 32768, RATE, zoo.RATE)
            ids = zoo.transcribe(model, wave)
            assert zoo.IDS["</s>"] in ids[:-10], "the tokenizer's end would end no transcript"
            want = tok.decode(ids, skip_special_tokens=True).strip()
            assert len(want) > 5
            said = {"model": "m", "file": ("a.wav", wav(clip))}
            assert client.audio.transcriptions.create(**said).text == want
            events = list(client.audio.transcriptions.create(**said, stream=True))
            assert events[-1].text == want
            for piece, early in ((3917, seconds > 2), (clip.size, False)):
                deltas, text = talk(process.url(), clip, piece, early)
                assert text == want == "".join(deltas).strip()
        with pytest.raises(openai.BadRequestError, match="gives no times"):
            client.audio.transcriptions.create(**said, response_format="verbose_json")
    finally:
        process.end()
