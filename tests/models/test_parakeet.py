"""Parakeet against transformers: spectra, and tokens with their frames, of clips that run together."""

from __future__ import annotations

import numpy as np
import pytest
import torch
import transformers
from parakeet_zoo import ENCODER, extractor_class, load, make_parakeet, read, transcribe
from whisper_zoo import sound

from thalweg import LLM, SamplingParams
from thalweg.checkpoint.config import read_config
from thalweg.errors import CheckpointError, RequestError, UnsupportedModelError
from thalweg.media.audio_processors import load_audio_processor
from thalweg.models.families.parakeet import parakeet_tdt

LENGTHS = (0.3, 1.1, 2.37, 4.0)


def make_prompt(wave: np.ndarray) -> dict[str, object]:
    return {"prompt": "", "multi_modal_data": {"audio": wave}}


def open_llm(path, platform="cpu", **more) -> LLM:
    return LLM(str(path), device=platform, dtype="float32", max_num_seqs=3, use_tqdm_on_load=False, **more)


@pytest.mark.parametrize("name", ["ctc", "streaming"])
def test_spectra(name, tmp_path):
    path = make_parakeet(name, tmp_path)
    ours, theirs = load_audio_processor(read_config(path), path), extractor_class(name).from_pretrained(path)
    for i, seconds in enumerate(LENGTHS):
        wave = sound(i, seconds)
        want = theirs(wave, sampling_rate=16_000, return_tensors="pt")
        got = ours.mel(wave)
        length = int(want.attention_mask.sum())
        assert got.shape == (16, length)
        assert np.abs(got.T - want.input_features[0, :length].numpy()).max() < 2e-3


@pytest.mark.parametrize("platform", [pytest.param("reference", marks=pytest.mark.slow), "cpu"])
@pytest.mark.parametrize(
    "name", ["ctc", "tdt", *(pytest.param(n, marks=pytest.mark.slow) for n in ("rnnt", "nemotron", "streaming"))]
)
def test_transcripts_are_those_of_transformers(name, platform, tmp_path):
    """Several clips at once, and again with kept results."""
    path, waves = make_parakeet(name, tmp_path), [sound(i, LENGTHS[i % 4] + 0.2 * (i // 4)) for i in range(6)]
    llm, model = open_llm(path, platform), load(name, path)
    want = [transcribe(name, model, path, wave) for wave in waves]
    for _ in range(2):
        outputs = llm.encode([make_prompt(w) for w in waves], use_tqdm=False)
        assert [read(o.outputs.data) for o in outputs] == want
    ids = [tuple(token for token, _, _ in each) for each in want]
    assert len(set(ids)) > 3, "sounds change nothing"
    assert len({token for each in ids for token in each}) > 2


def test_log_probabilities(tmp_path):
    """Of a token: the mean of its frames'."""
    path, wave = make_parakeet("ctc", tmp_path), sound(3, 2.0)
    (got,) = open_llm(path).encode([make_prompt(wave)], use_tqdm=False)
    inputs = transformers.ParakeetFeatureExtractor.from_pretrained(path)(wave, sampling_rate=16_000, return_tensors="pt")
    with torch.inference_mode():
        known = load("ctc", path)(**inputs).logits[0].log_softmax(-1).max(-1).values.numpy()
    rows = got.outputs.data[1 : 1 + 4 * int(got.outputs.data[0])].reshape(-1, 4)
    assert len(rows) > 3
    for _, value, first, end in rows:
        assert value == pytest.approx(known[int(first) : int(end)].mean(), abs=1e-4)


OTHERS = {
    "no biases": {"attention_bias": False, "convolution_bias": False, "scale_input": False, "hidden_act": "relu"},
    "other sizes": {"num_mel_bins": 32, "subsampling_factor": 4, "conv_kernel_size": 9, "num_attention_heads": 2},
}


@pytest.mark.slow
@pytest.mark.parametrize("case", OTHERS)
def test_other_encoders(case, tmp_path):
    path, wave = make_parakeet("ctc", tmp_path, OTHERS[case]), sound(3, 2.0)
    (got,) = open_llm(path).encode([make_prompt(wave)], use_tqdm=False)
    want = transcribe("ctc", load("ctc", path), path, wave)
    assert read(got.outputs.data) == want
    assert len(want) > 3


def test_what_is_refused(tmp_path):
    path = make_parakeet("tdt", tmp_path)
    llm = open_llm(path)
    with pytest.raises(RequestError, match=r"needs at least 0\.1"):
        llm.encode([make_prompt(sound(1, 0.05))], use_tqdm=False)
    with pytest.raises(RequestError, match="accepts 60 at once"):
        llm.encode([make_prompt(sound(1, 60.1))], use_tqdm=False)
    with pytest.raises(RequestError, match="does not generate"):
        llm.generate([make_prompt(sound(1, 1))], SamplingParams(), use_tqdm=False)
    with pytest.raises(RequestError, match="cannot embed"):
        llm.embed([make_prompt(sound(1, 1))], use_tqdm=False)
    config = read_config(path)
    for said, error, words in (
        ({"durations": [0]}, CheckpointError, "durations"),
        ({"blank_token_id": 99}, CheckpointError, "blank_token_id"),
        ({"encoder_config": None}, CheckpointError, "encoder_config"),
        ({"encoder_config": {**ENCODER, "subsampling_factor": 6}}, UnsupportedModelError, "subsampling_factor"),
        ({"encoder_config": {**ENCODER, "num_attention_heads": 5}}, CheckpointError, "num_attention_heads"),
        ({"encoder_config": {**ENCODER, "conv_kernel_size": 4}}, UnsupportedModelError, "odd"),
        ({"encoder_config": {**ENCODER, "num_mel_bins": 20}}, UnsupportedModelError, "num_mel_bins"),
    ):
        with pytest.raises(error, match=words):
            parakeet_tdt({**config, **said})
