"""Transcripts of models whose prompt names the language: `thalweg serve` with Canary; transformers decides."""

from __future__ import annotations

import openai
import pytest
from test_chat_transcripts import wav
from test_clip_transcripts import heard, pcm
from test_serve_process import Process
from tokenizers import Tokenizer

import canary_zoo  # isort: skip
from canary_zoo import VOCAB

NEW = 20
TOKENS = (
    "<|startofcontext|>", "<|startoftranscript|>", "<|emo:undefined|>", "<|de|>", "<|{}|>", "<|pnc|>", "<|noitn|>",
    "<|notimestamp|>", "<|nodiarize|>",
)  # fmt: skip


@pytest.mark.slow
def test_transcripts_and_translations_are_those_of_transformers(tmp_path):
    path, samples = canary_zoo.make_canary("canary", tmp_path, tie_word_embeddings=False), pcm(2.0)
    model, tok = canary_zoo.load("canary", path), Tokenizer.from_file(str(path / "tokenizer.json"))

    def want(target: str) -> str:
        ids = [VOCAB[token.format(target)] for token in TOKENS]
        return tok.decode(canary_zoo.greedy(model, heard(samples), ids, NEW)[0]).strip()

    process = Process(str(path), "--port", "0", "--device", "cpu", "--dtype", "float32", "--served-model-name", "m")
    try:
        client = openai.OpenAI(base_url=process.url() + "/v1", api_key="none", max_retries=0, timeout=60)
        said = {"model": "m", "file": ("a.wav", wav(samples)), "extra_body": {"max_completion_tokens": NEW, "language": "de"}}
        assert client.audio.transcriptions.create(**said).text == want("de") != ""
        assert client.audio.translations.create(**said).text == want("en") != want("de")
        events = list(client.audio.transcriptions.create(**said, stream=True))
        assert events[-1].text == want("de")
        for fields, words in (
            ({"response_format": "verbose_json"}, "gives no times"), ({"prompt": "x"}, "reads no text before"),
            ({"language": "xx"}, "language: unknown"),
        ):  # fmt: skip
            with pytest.raises(openai.BadRequestError, match=words):
                client.audio.transcriptions.create(model="m", file=("a.wav", wav(samples)), **fields)
    finally:
        process.end()
