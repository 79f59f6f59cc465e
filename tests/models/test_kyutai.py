"""Kyutai speech to text against transformers: samples, codes, tokens, whatever runs together."""

from __future__ import annotations

import json

import kyutai_zoo as zoo
import numpy as np
import pytest
from hearing import RATE, sound

from thalweg import LLM, SamplingParams
from thalweg.checkpoint.config import read_config
from thalweg.errors import CheckpointError, RequestError, UnsupportedModelError
from thalweg.media.audio_processors import load_audio_processor
from thalweg.media.resample import resample
from thalweg.models import registry

GREEDY = SamplingParams(temperature=0, max_tokens=None, ignore_eos=True)


def make_wave(seconds: float, seed: int) -> np.ndarray:
    """At the codec's rate."""
    return resample(sound(seconds, seed), RATE, zoo.RATE) * 3


def make_prompt(wave: np.ndarray, rate: int = zoo.RATE) -> dict[str, object]:
    return {"prompt": "", "multi_modal_data": {"audio": (wave, rate)}}


def open_llm(path, **more) -> LLM:
    said = {
        "device": "cpu", "dtype": "float32", "max_model_len": 256, "max_num_seqs": 3, "block_size": 16,
        "max_num_batched_tokens": 24, "use_tqdm_on_load": False,
    }  # fmt: skip
    return LLM(str(path), **(said | more))


@pytest.mark.parametrize(
    "platform", [pytest.param("cpu", marks=pytest.mark.slow), pytest.param("reference", marks=pytest.mark.nightly)]
)
def test_tokens_are_those_of_transformers(platform, tmp_path, monkeypatch):
    """Clips are longer than windows of the codec and of the decoder, and than a piece of the convolutions, and run together.
    Few blocks: sequences wait, or are preempted and computed again."""
    monkeypatch.setattr("thalweg.models.vision.mimi_encoder.PIECE", 3000)
    model = zoo.make_kyutai(tmp_path)
    waves = [make_wave(seconds, seed) for seed, seconds in enumerate((4.1, 1.3, 0.31, 3.9, 2.0))]
    want = [zoo.transcribe(model, wave) for wave in waves]
    assert max(len(set(each)) for each in want) > 8, "sounds change nothing"
    llm = open_llm(tmp_path, device=platform, max_model_len=112, num_gpu_blocks_override=7)
    try:
        outputs = llm.generate([make_prompt(w) for w in waves], GREEDY, use_tqdm=False)
        assert [list(o.outputs[0].token_ids) for o in outputs] == want
        assert {o.outputs[0].finish_reason for o in outputs} == {"length"}
        (one,) = llm.generate([make_prompt(waves[0])], SamplingParams(temperature=0, max_tokens=3), use_tqdm=False)
        assert list(one.outputs[0].token_ids) == want[0][:3]
        other = sound(1.7, 9)
        (resampled,) = llm.generate([make_prompt(other, RATE)], GREEDY, use_tqdm=False)
        assert list(resampled.outputs[0].token_ids) == zoo.transcribe(model, resample(other, RATE, zoo.RATE))
        with pytest.raises(RequestError, match="1801"):
            llm.generate([make_prompt(np.zeros(1801 * zoo.RATE, np.float32))], GREEDY, use_tqdm=False)
    finally:
        llm.shutdown()


@pytest.mark.slow
def test_a_first_token_of_the_vocabulary(tmp_path):
    """And the windows of transformers, which reads the first one twice: a frame of silence here."""
    model = zoo.make_kyutai(tmp_path, bos_token_id=zoo.IDS["<s>"])
    wave = make_wave(4.1, 0)
    silence = np.zeros(zoo.STEP, np.float32)
    later = zoo.transcribe(model, np.concatenate((silence, wave)))[:-1]
    assert zoo.transcribe(model, wave, window=1) == later, "transformers encodes its first window twice"
    begin = wave[: 3 * zoo.RATE]
    llm = open_llm(tmp_path, block_size=8)
    try:
        for clip in (begin, wave):
            (output,) = llm.generate([make_prompt(clip)], GREEDY, use_tqdm=False)
            assert list(output.outputs[0].token_ids) == zoo.transcribe(model, clip)
    finally:
        llm.shutdown()


@pytest.mark.parametrize("samples", [1, 191, 192, 4801])
def test_samples_are_those_of_transformers(samples, tmp_path):
    write_checkpoint(tmp_path)
    ours, wave = load_audio_processor(read_config(tmp_path), tmp_path), make_wave(3, 3)[:samples]
    theirs = zoo.extractor()(wave, sampling_rate=zoo.RATE)["input_values"][0][0]
    count = theirs.size // zoo.STEP
    assert (ours.rate, ours.step, ours.count(ours.frames(samples))) == (zoo.RATE, zoo.STEP, 1 + count)
    whole = ours.mel(wave)
    assert whole.shape == (1, ours.frames(samples))
    np.testing.assert_array_equal(whole[0, zoo.STEP :], theirs[: count * zoo.STEP])
    live = ours.live(wave)
    assert live.shape[1] % zoo.STEP == 0
    np.testing.assert_array_equal(live, whole[:, : live.shape[1]])


def write_checkpoint(path, features=None, **more) -> None:
    said = {
        "architectures": ["KyutaiSpeechToTextForConditionalGeneration"], "model_type": "kyutai_speech_to_text",
        **zoo.TEXT, "codec_config": zoo.CODEC,
    }  # fmt: skip
    (path / "config.json").write_text(json.dumps(said | more))
    (path / "preprocessor_config.json").write_text(json.dumps(json.loads(zoo.extractor().to_json_string()) | (features or {})))


def test_what_is_refused(tmp_path):
    for change, error, words in (
        ({"ffn_dim": 95}, CheckpointError, "ffn_dim"),
        ({"num_codebooks": 3}, CheckpointError, "num_codebooks"),
        ({"codebook_vocab_size": 30}, CheckpointError, "codebook_vocab_size"),
        ({"bos_token_id": 1 << 20}, CheckpointError, "bos_token_id"),
        ({"audio_pad_token_id": 3}, UnsupportedModelError, "audio_pad_token_id"),
        ({"tie_word_embeddings": True}, UnsupportedModelError, "tie_word_embeddings"),
        ({"codec_config": None}, CheckpointError, "codec_config"),
        ({"codec_config": {**zoo.CODEC, "pad_mode": "replicate"}}, UnsupportedModelError, "pad_mode"),
        ({"language_model_only": True}, UnsupportedModelError, "language-model-only"),
    ):
        write_checkpoint(tmp_path, **change)
        config = read_config(tmp_path)
        with pytest.raises(error, match=words):
            registry.family(config)(config)
    for features in ({"sampling_rate": 16_000}, {"feature_size": 2}, {"chunk_length_s": 1.0}):
        write_checkpoint(tmp_path, features)
        with pytest.raises(UnsupportedModelError, match=next(iter(features))):
            load_audio_processor(read_config(tmp_path), tmp_path)
