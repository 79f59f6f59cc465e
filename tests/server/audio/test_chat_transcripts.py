"""Transcripts of models that read audio in conversations: `thalweg serve`, the official client; transformers decides."""

from __future__ import annotations

import io
import sys
import wave
from pathlib import Path
from typing import Any

import numpy as np
import openai
import pytest
import transformers
from test_serve_process import Process
from tokenizers import Tokenizer

from thalweg.checkpoint.config import read_config
from thalweg.media.audio_processors import load_audio_processor
from thalweg.media.audio_processors.transcribers import QWEN3_LANGUAGES, TRANSCRIBERS
from thalweg.media.mel import RATE
from thalweg.models.registry import ARCHITECTURES
from thalweg.server.audio.recognizer import TextFilter

sys.path.insert(0, str(Path(__file__).parents[2] / "models"))
import hearing

NEW = 6
CLIP = np.round(hearing.sound(1.3, 3) * 32767).astype("<i2")


def wav(samples: np.ndarray) -> bytes:
    out = io.BytesIO()
    with wave.open(out, "wb") as file:
        file.setparams((1, 2, RATE, 0, "NONE", ""))
        file.writeframes(samples.tobytes())
    return out.getvalue()


def transcribe_with_transformers(model: Any, name: str, path: Path, text: str, tok: Tokenizer, sound: np.ndarray) -> str:
    """transformers' answer. text: the prompt, with one placeholder."""
    shown, processor = "<|AUDIO|>", load_audio_processor(read_config(path), path)
    assert processor is not None
    shown_all = shown * processor.count(processor.frames(sound.size))
    ids = tok.encode(text.replace(shown, shown_all), add_special_tokens=False).ids
    return tok.decode(hearing.greedy(model, name, ids, [sound], [], NEW), skip_special_tokens=True)


def texts(name: str, path: Path) -> dict[str, tuple[dict[str, Any], str]]:
    """Fields of requests, and the prompt that transformers or mistral-common writes for them."""
    if name == "voxtral":  # mistral-common's tokens; the template has no beginning of the text in this tokenizer
        begin = "[INST][BEGIN_AUDIO]<|AUDIO|>[/INST]"
        return {"plain": ({}, f"{begin}[TRANSCRIBE]"), "language": ({"language": "de-DE"}, f"{begin}lang:de[TRANSCRIBE]")}
    kind = {"qwen3-asr": "Qwen3ASRProcessor", "glm-asr": "GlmAsrProcessor"}[name]
    tokenizer = transformers.AutoTokenizer.from_pretrained(path)
    tokenizer.audio_token = "<|AUDIO|>"
    for side in ("bos", "eos"):
        setattr(tokenizer, f"audio_{side}_token", f"<|audio_{side}|>")
    processor = getattr(transformers, kind)(hearing.features(name), tokenizer, chat_template=hearing.TEMPLATE)
    sound = np.zeros(RATE, np.float32)

    def write(**fields: Any) -> str:
        (text,) = processor.apply_transcription_request([sound], tokenize=False, **fields)
        return str(text)

    if name == "glm-asr":
        return {"plain": ({}, write())}
    return {
        "plain": ({"prompt": "names"}, write(prompt="names")),
        "language": ({"language": "french"}, write(language="fr")),
    }


@pytest.mark.parametrize("name", ["qwen3-asr", *(pytest.param(n, marks=pytest.mark.nightly) for n in ("voxtral", "glm-asr"))])
@pytest.mark.slow
def test_transcripts_are_those_of_transformers(name: str, tmp_path: Path) -> None:
    model = hearing.make(name, tmp_path)
    tok = Tokenizer.from_file(str(tmp_path / "tokenizer.json"))
    process = Process(
        str(tmp_path), "--port", "0", "--device", "cpu", "--dtype", "float32", "--max-model-len", "256", "--served-model-name",
        "m", "--num-gpu-blocks-override", "64",
    )  # fmt: skip
    try:
        client = openai.OpenAI(base_url=process.url() + "/v1", api_key="none", max_retries=0, timeout=60)
        sound = CLIP.astype(np.float32) / 32768
        extra = {"max_completion_tokens": NEW, "ignore_eos": True}
        for fields, text in texts(name, tmp_path).values():
            want = transcribe_with_transformers(model, name, tmp_path, text, tok, sound).strip()
            said = {"model": "m", "file": ("a.wav", wav(CLIP)), "extra_body": extra, **fields}
            assert client.audio.transcriptions.create(**said).text == want
            events = list(client.audio.transcriptions.create(**said, stream=True))
            assert events[-1].text == want == "".join(e.delta for e in events[:-1]).rstrip()
        for words, fields in {
            "gives no times": {"response_format": "verbose_json"},
            "language": {"language": "xx"},
            **({} if name == "qwen3-asr" else {"reads no text before": {"prompt": "names"}}),
        }.items():
            with pytest.raises(openai.BadRequestError, match=words):
                client.audio.transcriptions.create(model="m", file=("a.wav", wav(CLIP)), **fields)
        with pytest.raises(openai.BadRequestError, match="translation is not supported"):
            client.audio.translations.create(model="m", file=("a.wav", wav(CLIP)))
        answer = client.chat.completions.create(model="m", messages=[{"role": "user", "content": "x"}], max_tokens=2)
        assert answer.usage.completion_tokens
    finally:
        process.end()


def test_the_mark_of_an_answer_is_found_in_pieces() -> None:
    text = "language French<asr_text>bon jour"
    for size in range(1, len(text) + 1):
        filter = TextFilter("<asr_text>")
        got = "".join(filter.push(text[at : at + size]) for at in range(0, len(text), size)) + filter.finish()
        assert got == "bon jour", size
    unmarked = TextFilter("<asr_text>")
    assert unmarked.push("bon ") + unmarked.push("jour") + unmarked.finish() == "bon jour"
    assert TextFilter().push("a") == "a"


def test_rows_are_of_families() -> None:
    from transformers.models.qwen3_asr.processing_qwen3_asr import LANGUAGE_CODE_TO_NAME

    assert set(TRANSCRIBERS) <= set(ARCHITECTURES)
    assert QWEN3_LANGUAGES == LANGUAGE_CODE_TO_NAME
