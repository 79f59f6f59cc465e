"""Spoken answers of Qwen3-Omni: `LLM.chat` with modalities, against `generate` of transformers."""

from __future__ import annotations

import base64
import json
from typing import Any

import hearing
import numpy as np
import omni_zoo
import pytest
from PIL import Image
from test_omni_talker import ASKED, answer_theirs, read_prompt

from thalweg import LLM, SamplingParams
from thalweg.config import EngineArgs
from thalweg.engine.planning.memory import plan
from thalweg.errors import ConfigError, RequestError
from thalweg.media.audio_files import wav_header
from thalweg.media.speakers.base import SpeechSettings

BOTH = ["text", "audio"]
SPOKEN = {"voice": "Chelsie", "temperature": 0}
FRAMES = 490
"""What is left of the talker's context."""


def open_omni(path: Any, **more: Any) -> LLM:
    said = {"dtype": "float32", "use_tqdm_on_load": False, "max_num_seqs": 3, "enable_talker": True, **more}
    return LLM(str(path), device="cpu", **said)


def ask(llm: LLM, texts: list[str], words: int, **more: Any) -> list[Any]:
    said = [[{"role": "user", "content": text}] for text in texts]
    return llm.chat(said, SamplingParams(temperature=0, max_tokens=words), use_tqdm=False, **more)


@pytest.mark.slow
def test_answers_are_those_of_transformers(tmp_path: Any) -> None:
    """The same text, and the same samples. Text without speech is the same."""
    path = omni_zoo.make_omni(tmp_path, ending=-0.1)
    llm, model = open_omni(path, max_model_len=256), omni_zoo.load_omni(path)
    outputs, plain = ask(llm, ASKED, 14, modalities=BOTH, audio=SPOKEN), ask(llm, ASKED, 14)
    lengths = set()
    for text, output, bare in zip(ASKED, outputs, plain, strict=True):
        user, header = read_prompt(path, text)
        assert output.prompt_token_ids == user + header
        tokens, _, wave = answer_theirs(model, user + header, FRAMES, 14, talker_repetition_penalty=1.05)
        (choice,) = output.outputs
        assert list(choice.token_ids) == list(bare.outputs[0].token_ids) == tokens
        assert choice.text == bare.outputs[0].text
        assert bare.outputs[0].audio is None
        assert choice.audio.rate == 24_000
        assert choice.audio.samples.shape == wave.shape
        assert np.abs(choice.audio.samples - wave).max() < 1e-4
        lengths.add(len(wave))
    assert len(lengths) > 1


@pytest.mark.slow
def test_answers_to_sounds_are_those_of_transformers(tmp_path: Any) -> None:
    """Sounds and text of several turns, in chunks. The talker reads hidden states at their placeholders."""
    path = omni_zoo.make_omni(tmp_path, ending=-0.1)
    llm, model = open_omni(path, max_model_len=256, max_num_batched_tokens=24), omni_zoo.load_omni(path)
    sounds = [np.round(hearing.sound(*each) * 2**15).astype("<i2").astype(np.float32) / 2**15 for each in ((1.2, 1), (1.2, 2))]
    first, second = ({"type": "input_audio", "input_audio": {"data": encode(each), "format": "wav"}} for each in sounds)
    talk = [
        {"role": "user", "content": [first, {"type": "text", "text": "hello"}]},
        {"role": "assistant", "content": [{"type": "text", "text": "yes"}]},
        {"role": "user", "content": [second]},
    ]
    text = [{"role": "user", "content": ASKED[0]}]
    params = SamplingParams(temperature=0, max_tokens=14)
    for _ in range(2):  # the second time, the prefix cache has the prompt
        spoken, plain = llm.chat([talk, text], params, modalities=BOTH, audio=SPOKEN, use_tqdm=False)
        ids = list(spoken.prompt_token_ids)
        said = hearing.given("qwen3-omni", ids, sounds, [])
        del said["input_ids"]
        tokens, _, wave = answer_theirs(model, ids, FRAMES, 14, talker_repetition_penalty=1.05, **said)
        (choice,) = spoken.outputs
        assert list(choice.token_ids) == tokens
        assert choice.audio.samples.shape == wave.shape
        assert np.abs(choice.audio.samples - wave).max() < 1e-4
        assert plain.states is None
    spoken.states.values[:] = 0
    (other,) = llm._talker.speak_answers([spoken], SpeechSettings(voice="chelsie", temperature=0))
    size = min(len(other.samples), len(wave))
    assert np.abs(other.samples[:size] - wave[:size]).max() > 1e-3, "states change nothing"


@pytest.mark.slow
def test_answers_to_images_are_those_of_transformers(tmp_path: Any) -> None:
    """In the user's turns, with positions along several axes. transformers cannot speak of images and audio together."""
    path = omni_zoo.make_omni(tmp_path, ending=-0.1)
    llm, model = open_omni(path, max_model_len=256, max_num_batched_tokens=48), omni_zoo.load_omni(path)
    rng = np.random.default_rng(5)
    images = [Image.fromarray(rng.integers(0, 255, (*size, 3), dtype=np.uint8)) for size in ((48, 64), (64, 32))]
    first, second = ({"type": "image_pil", "image_pil": each} for each in images)
    talk = [
        {"role": "system", "content": [{"type": "text", "text": "be brief"}]},
        {"role": "user", "content": [{"type": "text", "text": "hello"}, first]},
        {"role": "assistant", "content": [{"type": "text", "text": "yes"}]},
        {"role": "user", "content": [second, {"type": "text", "text": "and?"}]},
    ]
    (output,) = llm.chat(talk, SamplingParams(temperature=0, max_tokens=14), modalities=BOTH, audio=SPOKEN, use_tqdm=False)
    ids = list(output.prompt_token_ids)
    said = hearing.given("qwen3-omni", ids, [], images)
    del said["input_ids"]
    tokens, _, wave = answer_theirs(model, ids, 40, 14, talker_repetition_penalty=1.05, **said)
    (choice,) = output.outputs
    assert list(choice.token_ids) == tokens
    assert len(wave) > 100
    assert np.abs(choice.audio.samples[: len(wave)] - wave).max() < 1e-4


def encode(samples: np.ndarray) -> str:
    data = wav_header(hearing.RATE, len(samples)) + (samples * 2**15).astype("<i2").tobytes()
    return base64.b64encode(data).decode()


def test_requests_that_are_refused(tmp_path: Any) -> None:
    path = omni_zoo.make_omni(tmp_path)
    llm = open_omni(path)
    for said, field in (
        ({"modalities": ["audio", "video"]}, "modalities"),
        ({"modalities": []}, "modalities"),
        ({"modalities": "audio"}, "modalities"),
        ({"audio": {"voice": "ethan"}}, "audio"),
        ({"modalities": BOTH, "audio": {"voice": "alloy"}}, "voice"),
        ({"modalities": BOTH, "audio": {"format": "wav"}}, "audio.format"),
        ({"modalities": BOTH, "audio": {"speed": 2}}, "audio.speed"),
        ({"modalities": BOTH, "audio": {"seed": "x"}}, "audio.seed"),
        ({"modalities": BOTH, "audio": {"temperature": -1}}, "audio.temperature"),
    ):
        with pytest.raises(RequestError) as found:
            ask(llm, ["a"], 2, **said)
        assert found.value.param == field
    with pytest.raises(RequestError, match="one choice"):
        llm.chat([{"role": "user", "content": "a"}], SamplingParams(n=2, max_tokens=2), modalities=BOTH, use_tqdm=False)
    (nothing,) = ask(llm, ["a"], 1, modalities=BOTH, audio=SPOKEN)
    assert nothing.outputs[0].audio.samples.size == 0, "an answer's last token is not spoken"
    llm.shutdown()
    silent = open_omni(path, enable_talker=False)
    with pytest.raises(RequestError, match="--enable-talker"):
        ask(silent, ["a"], 2, modalities=BOTH)


def test_the_memory_plan_counts_the_talker(tmp_path: Any) -> None:
    path = omni_zoo.make_omni(tmp_path)
    said = {"model": str(path), "device": "cpu", "dtype": "float32"}
    alone, both = plan(EngineArgs(**said)), plan(EngineArgs(**said, enable_talker=True))
    assert both.talker > 0
    assert both.total - alone.total == both.talker
    with pytest.raises(ConfigError, match="tensor_parallel_size"):
        LLM(str(path), device="cpu", enable_talker=True, tensor_parallel_size=2)
    config = json.loads((path / "config.json").read_text())
    del config["talker_config"]
    (path / "config.json").write_text(json.dumps(config))
    with pytest.raises(ConfigError, match="enable_talker"):
        LLM(str(path), device="cpu", enable_talker=True)
