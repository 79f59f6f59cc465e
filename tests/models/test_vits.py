"""VITS against transformers: samples, characters, durations and noise."""

from __future__ import annotations

import json

import numpy as np
import pytest
import torch
import transformers
from speak_zoo import CASES, VOCAB, load_vits, make_vits

from thalweg import LLM
from thalweg.checkpoint.config import read_config
from thalweg.checkpoint.spelling import canonical_config
from thalweg.errors import CheckpointError, RequestError, UnsupportedModelError
from thalweg.hal.noise import gaussians
from thalweg.media.speakers import load_speaker
from thalweg.media.speakers.base import PIECE, split_sentences
from thalweg.models import registry

DAY = ("mms", "predicted")
TEXT = "Hello there, it's a fine-looking day"


def open_llm(path, platform="cpu", **more) -> LLM:
    return LLM(str(path), device=platform, dtype="float32", use_tqdm_on_load=False, **more)


def speak_theirs(path, text: str, monkeypatch, *, voice: int | None = None, speed: float | None = None, seed: int = 0):
    """transformers' samples, with the noise of this seed."""
    model = load_vits(path)
    tokenizer = transformers.VitsTokenizer.from_pretrained(path)
    words = np.array([seed], np.uint64).view(np.int32)[None]
    streams = iter((0, 1) if model.config.use_stochastic_duration_prediction else (1,))

    def draw(shape):
        return torch.from_numpy(gaussians(words, next(streams), int(np.prod(shape))).reshape(shape))

    monkeypatch.setattr(torch, "randn", lambda *shape: draw(shape))
    monkeypatch.setattr(torch, "randn_like", lambda x: draw(tuple(x.shape)))
    with torch.inference_mode():
        ids = tokenizer(text, return_tensors="pt").input_ids
        rate = None if speed is None else speed * model.config.speaking_rate
        made = model(ids, speaker_id=voice, speaking_rate=rate).waveform[0].numpy()
    monkeypatch.undo()
    return made


@pytest.mark.parametrize("platform", [pytest.param("reference", marks=pytest.mark.slow), "cpu"])
@pytest.mark.parametrize("name", [n if n in DAY else pytest.param(n, marks=pytest.mark.slow) for n in CASES])
def test_samples_are_those_of_transformers(name, platform, tmp_path, monkeypatch):
    path = make_vits(name, tmp_path)
    llm = open_llm(path, platform)
    for number, (text, speed, seed) in enumerate(((TEXT, 1.0, 7), ("ab", 2.0, 2**63 + 5), ("a much slower one", 0.5, 0))):
        voice = number if name == "speakers" else None
        (got,) = llm.speak(text, voice="" if voice is None else str(voice), speed=speed, seed=seed, use_tqdm=False)
        want = speak_theirs(path, text, monkeypatch, voice=voice, speed=speed, seed=seed)
        assert got.samples.shape == want.shape
        assert np.abs(got.samples - want).max() < 1e-4
        assert want.std() > 0.01, "silence"
        assert got.rate == load_vits(path).config.sampling_rate


def test_sentences_together_and_their_seeds(tmp_path, monkeypatch):
    path = make_vits("mms", tmp_path)
    long = " ".join(["one two three four five six seven"] * 20)
    texts = ["One. Two?", long]
    first, second = open_llm(path).speak(texts, seed=3, use_tqdm=False)
    assert np.abs(first.samples - speak_theirs(path, "one two", monkeypatch, seed=3)).max() < 1e-4
    pieces = split_sentences(long)
    assert len(pieces) == 2
    wanted = [speak_theirs(path, piece, monkeypatch, seed=3 + i) for i, piece in enumerate(pieces)]
    assert np.abs(second.samples - np.concatenate(wanted)).max() < 1e-4


def test_a_seed_means_the_same_speech(tmp_path):
    llm = open_llm(make_vits("mms", tmp_path))
    again = [llm.speak(TEXT, seed=seed, use_tqdm=False)[0].samples for seed in (1, 2, 1)]
    assert np.array_equal(again[0], again[2])
    assert again[0].shape != again[1].shape or not np.array_equal(again[0], again[1])


@pytest.mark.slow
def test_older_names_of_weight_norms(tmp_path):
    old, new = make_vits("mms", tmp_path, old=True), make_vits("mms", tmp_path / "new")
    a, b = (open_llm(path).speak(TEXT, use_tqdm=False)[0].samples for path in (old, new))
    assert np.array_equal(a, b)


@pytest.mark.parametrize("said", [{}, {"add_blank": False}, {"normalize": False}, {"language": "ron"}])
def test_characters_are_those_of_transformers(said, tmp_path):
    path = make_vits("mms", tmp_path, tokenizer=said)
    theirs, ours = transformers.VitsTokenizer.from_pretrained(path), load_speaker(read_config(path), path)
    texts = ["plain words", "it's a test-case", "looks like a lake"]
    if said.get("normalize", True):
        texts += ["Hello, World!  Twice", " (Ends) ", "<unk> Ța"]
    for text in texts:
        assert ours.units(text) == theirs(text).input_ids, text


def test_sentences():
    assert split_sentences("One. Two!\nThree") == ["One. Two! Three"]
    assert split_sentences(" \n ") == []
    long = split_sentences(" ".join(["word"] * 300) + ". End.")
    assert len(long) > 2
    assert all(len(piece) <= PIECE for piece in long)
    assert " ".join(long).split() == [*["word"] * 299, "word.", "End."]
    assert split_sentences("x" * 1000) == ["x" * 1000]


def test_what_is_refused(tmp_path):
    path = make_vits("speakers", tmp_path)
    llm = open_llm(path)
    for texts, said, words in (
        ("hello", {"voice": "alloy"}, "this model has 0, 1, 2"), ("hello", {"speed": 5.0}, "speed"), ("?!", {}, "no character"),
        ("a" * 5000, {}, "split it"),
    ):  # fmt: skip
        with pytest.raises(RequestError, match=words):
            llm.speak(texts, **said, use_tqdm=False)
    with pytest.raises(RequestError, match="speak"):
        llm.encode("hello", use_tqdm=False)
    with pytest.raises(RequestError, match="generate"):
        llm.generate("hello", use_tqdm=False)
    config = canonical_config(read_config(path))
    for change, error, words in (
        ({"num_attention_heads": 3}, CheckpointError, "num_attention_heads"),
        ({"flow_size": 13}, UnsupportedModelError, "flow_size"), ({"upsample_rates": [4]}, CheckpointError, "upsample_rates"),
        ({"upsample_kernel_sizes": [9, 4]}, UnsupportedModelError, "upsample_kernel_sizes"),
        ({"speaker_embedding_size": 0}, CheckpointError, "speaker_embedding_size"),
        ({"depth_separable_channels": 4}, UnsupportedModelError, "depth_separable_channels"),
        ({"upsample_initial_channel": 18}, CheckpointError, "upsample_initial_channel"),
    ):  # fmt: skip
        with pytest.raises(error, match=words):
            registry.family({**config, **change})({**config, **change})
    assert config["vocab_size"] == len(VOCAB)
    for said, words in (({"phonemize": True}, "phonemize"),):
        other = make_vits("mms", tmp_path / "other", tokenizer=said)
        with pytest.raises(UnsupportedModelError, match=words):
            open_llm(other)
    romanised = make_vits("mms", tmp_path / "roman", tokenizer={"is_uroman": True})
    with pytest.raises(RequestError, match="uroman"):
        load_speaker(read_config(romanised), romanised).units("héllo")


def test_speech_beyond_the_limit(tmp_path):
    """Durations of infinitely many frames are an error of the request."""
    path = make_vits("predicted", tmp_path)
    llm = open_llm(path)
    assert llm.speak("abc", use_tqdm=False)[0].samples.size
    from safetensors.torch import load_file, save_file

    file = path / "model.safetensors"
    tensors = load_file(file)
    tensors["duration_predictor.proj.bias"] += 100
    save_file(tensors, file, {"format": "pt"})
    with pytest.raises(RequestError, match="longer than this model's limit"):
        open_llm(path).speak("abc", use_tqdm=False)


def test_published_settings():
    """An absent key means what it means to transformers."""
    whole = json.loads(json.dumps(transformers.VitsConfig().to_dict())) | {"architectures": ["VitsModel"]}
    full, short = canonical_config(whole), canonical_config({k: whole[k] for k in ("architectures", "model_type")})
    assert registry.family(short)(short) == registry.family(full)(full)
