"""Windows that are decoded again at higher temperatures, and windows in order, each after the text before it: through
`thalweg serve`, and transformers decides."""

from __future__ import annotations

import io
import wave
from pathlib import Path
from typing import Any

import numpy as np
import openai
import pytest
import torch
import transformers
from test_audio_process import wav
from test_serve_process import Process
from whisper_zoo import BEFORE, BINS, DE, EN, END, NO_TIMES, SECONDS, TIMES, TRANSCRIBE, TRANSLATE, load, make_whisper, sound

from thalweg.media.mel import spectrum
from thalweg.outputs import CompletionOutput, RequestOutput
from thalweg.server.audio.fallback import DecodedWindow, FallbackRules, read_rules
from thalweg.server.audio.protocol import AudioRequest
from thalweg.server.errors import ApiError

SAID = {
    "no_timestamps_token_id": NO_TIMES, "lang_to_id": {"<|en|>": EN, "<|de|>": DE}, "max_initial_timestamp_index": 50,
    "task_to_id": {"transcribe": TRANSCRIBE, "translate": TRANSLATE}, "prev_sot_token_id": BEFORE, "max_length": 64,
    "return_timestamps": True, "pad_token_id": END,
}  # fmt: skip


def hear(data: bytes) -> np.ndarray:
    with wave.open(io.BytesIO(data)) as file:
        return (np.frombuffer(file.readframes(1 << 30), "<i2") / 32768).astype(np.float32)


def generate(path: Path, heard: np.ndarray, **said: Any) -> list[tuple[float, float, list[int]]]:
    """Segments of transformers' long-form transcript."""
    model = load(path)
    model.generation_config = transformers.GenerationConfig.from_pretrained(path)
    mel = torch.from_numpy(spectrum(heard, BINS))[None]
    made = model.generate(
        mel, attention_mask=torch.ones(1, mel.shape[2], dtype=torch.long), return_segments=True, return_timestamps=True,
        language="de", task="transcribe", **said,
    )  # fmt: skip
    return spell([(float(s["start"]), float(s["end"]), s["tokens"].tolist()) for s in made["segments"][0]])


def spell(segments: list[tuple[float, float, list[int]]]) -> list[tuple[float, float, list[int]]]:
    """Those with text, and the times of those between two timestamps: others end with the window here."""
    found = []
    for start, end, ids in segments:
        timed = ids[0] >= TIMES and ids[-1] >= TIMES
        if text := [i for i in ids if i < END]:
            found.append((round(start, 2) if timed else 0, round(end, 2) if timed else 0, text))
    return found


@pytest.mark.slow
def test_windows_in_order_are_those_of_transformers(tmp_path: Path) -> None:
    path, data = make_whisper(tmp_path, **SAID), wav(sound(3, 3.3 * SECONDS))
    heard = hear(data)
    process = Process(
        str(path), "--device", "cpu", "--dtype", "float32", "--port", "0", "--threads", "1", "--served-model-name", "m"
    )
    try:
        client = openai.OpenAI(base_url=process.url() + "/v1", api_key="none", max_retries=0, timeout=60)

        def ask(form: str = "verbose_json", **more: Any) -> Any:
            fields = {"model": "m", "file": ("a.wav", data), "language": "de", "response_format": form}
            return client.audio.transcriptions.create(**fields, extra_body=more)

        def compare(made: Any, want: list[tuple[float, float, list[int]]]) -> None:
            assert spell([(s.start, s.end, s.tokens) for s in made.segments]) == want

        plain = generate(path, heard, condition_on_prev_tokens=False)
        want = generate(path, heard, condition_on_prev_tokens=True)
        assert plain != want, "text before a window changes nothing"
        made = ask(condition_on_previous_text=True)
        compare(made, want)
        assert ask("json", condition_on_previous_text=True).text == made.text
        # Sampling from the best token is greedy: only the rules decide which temperature is the last.
        rules = {"compression_ratio_threshold": 100.0, "temperature_increment_on_fallback": 1.0, "top_k": 1}
        rules |= {"no_speech_threshold": 1}
        hot = {"temperature": (0.0, 1.0), "top_k": 1, "do_sample": True}
        again = ask(condition_on_previous_text=True, logprob_threshold=0.0, **rules)
        compare(again, generate(path, heard, condition_on_prev_tokens=True, logprob_threshold=0.0, **hot))
        compare(again, plain)  # no text of a high temperature precedes a window
        assert {s.temperature for s in again.segments} == {1.0}
        once = ask()
        means = sorted({s.avg_logprob for s in once.segments})
        middle = (means[0] + means[-1]) / 2
        again = ask(logprob_threshold=middle, **rules)
        assert [(s.tokens, s.temperature) for s in again.segments] == [
            (s.tokens, float(s.avg_logprob < middle)) for s in once.segments
        ]
        assert len({s.temperature for s in again.segments}) == 2
        silent = ask(no_speech_threshold=0, logprob_threshold=0)
        assert (silent.text, silent.segments) == ("", [])
        assert ask("json", no_speech_threshold=0, logprob_threshold=0).text == ""
        for words, fields in {
            "best_of: requires a temperature": {"best_of": 2},
            "may be decoded again": {"stream": True, "logprob_threshold": -1},
            "no_speech_threshold": {"no_speech_threshold": 2},
        }.items():
            with pytest.raises(openai.BadRequestError, match=words):
                ask("json", **fields)
        assert ask(temperature=0.7, best_of=3, seed=1).segments[0].temperature == 0.7
    finally:
        process.end()


def make_decoded(mean: float, text: str = "a", no_speech: float | None = None) -> DecodedWindow:
    choice = CompletionOutput(0, text, [65], None, "stop")
    return DecodedWindow(RequestOutput("x", None, [1], None, [choice], True), text, mean, 0.0, no_speech)


def test_rules() -> None:
    """As openai/whisper decides: repetitive text and improbable text fail, and silence is no failure."""
    rules = read_rules(AudioRequest(temperature_increment_on_fallback=0.2))
    assert rules == FallbackRules((0.0, 0.2, 0.4, 0.6, 0.8, 1.0), 2.4, -1.0, 0.6)
    assert read_rules(AudioRequest(logprob_threshold=-2, temperature=0.5)).temperatures == (0.5, 0.7, 0.9)
    assert read_rules(AudioRequest(logprob_threshold=-2, temperature_increment_on_fallback=0)).temperatures == (0.0,)
    assert read_rules(AudioRequest(temperature=0.3)) == FallbackRules((0.3,))
    assert not rules.fails(make_decoded(-0.9))
    assert rules.fails(make_decoded(-1.1))
    assert rules.fails(make_decoded(-0.5, "again and " * 40))
    assert rules.fails(make_decoded(-1.1, no_speech=0.5))
    assert not rules.fails(make_decoded(-1.1, no_speech=0.7))
    assert rules.is_silent(make_decoded(-1.1, no_speech=0.7))
    assert not rules.is_silent(make_decoded(-0.9, no_speech=0.7))
    assert not FallbackRules((0.0,)).fails(make_decoded(-100, "a" * 1000))
    with pytest.raises(ApiError, match="best_of"):
        read_rules(AudioRequest(best_of=2))
    with pytest.raises(ApiError, match="best_of"):
        read_rules(AudioRequest(best_of=2, temperature_increment_on_fallback=0))
    assert read_rules(AudioRequest(best_of=2, logprob_threshold=-1)).best_of == 2
