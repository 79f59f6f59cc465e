"""Voxtral Realtime against transformers and mistral-common: spectra, prompts, tokens, whatever runs together."""

from __future__ import annotations

import json

import numpy as np
import pytest
import voxtral_realtime_zoo as zoo
from hearing import sound

from thalweg import LLM, SamplingParams
from thalweg.checkpoint.config import read_config
from thalweg.errors import CheckpointError, RequestError, UnsupportedModelError
from thalweg.media.audio_processors import load_audio_processor
from thalweg.models import registry

GREEDY = SamplingParams(temperature=0, max_tokens=None, ignore_eos=True)


def make_prompt(wave: np.ndarray) -> dict[str, object]:
    return {"prompt": "", "multi_modal_data": {"audio": wave}}


def open_llm(path, **more) -> LLM:
    said = {
        "device": "cpu", "dtype": "float32", "max_model_len": 256, "max_num_seqs": 3, "block_size": 16,
        "max_num_batched_tokens": 24, "use_tqdm_on_load": False,
    }  # fmt: skip
    return LLM(str(path), **(said | more))


@pytest.mark.parametrize(
    "platform", [pytest.param("cpu", marks=pytest.mark.slow), pytest.param("reference", marks=pytest.mark.nightly)]
)
def test_tokens_are_those_of_transformers(platform, tmp_path):
    """Each token of an answer reads audio. Clips are longer than windows of the encoder and the decoder, prompts longer than a
    step, and clips run together. Few blocks: some sequences are preempted, and computed again."""
    model = zoo.make_voxtral_realtime(tmp_path)
    waves = [sound(seconds, seed) for seed, seconds in enumerate((4.1, 1.3, 0.31, 3.9, 2.0))]
    want = [zoo.transcribe(model, wave, eos=False) for wave in waves]
    assert max(len(set(each)) for each in want) > 4, "sounds change nothing"
    llm = open_llm(tmp_path, device=platform, max_model_len=112, num_gpu_blocks_override=7)
    try:
        for _ in range(5):  # where encodings end one after the other, sequences may never meet
            outputs = llm.generate([make_prompt(w) for w in waves], GREEDY, use_tqdm=False)
            assert [list(o.outputs[0].token_ids) for o in outputs] == want
            assert {o.outputs[0].finish_reason for o in outputs} == {"length"}
            if llm.stats().preemptions:
                break
        assert llm.stats().preemptions > 0
        (again,) = llm.generate([make_prompt(waves[0])], GREEDY, use_tqdm=False)
        assert list(again.outputs[0].token_ids) == want[0]
        (one,) = llm.generate([make_prompt(waves[0])], SamplingParams(temperature=0, max_tokens=3), use_tqdm=False)
        assert list(one.outputs[0].token_ids) == want[0][:3]
    finally:
        llm.shutdown()


@pytest.mark.slow
def test_clips_with_equal_beginnings_share_cached_blocks(tmp_path):
    """Keys and values of a token depend on no later audio. Clips with other beginnings share the silence before them."""
    model = zoo.make_voxtral_realtime(tmp_path)
    wave = sound(4.1, 0)
    begin, other = wave[: 3 * 16_000], np.concatenate((sound(0.1, 5), wave[1600:]))
    llm = open_llm(tmp_path, block_size=8)
    try:
        for clip, cached in ((begin, 0), (wave, 32), (other, 24)):
            (output,) = llm.generate([make_prompt(clip)], GREEDY, use_tqdm=False)
            assert list(output.outputs[0].token_ids) == zoo.transcribe(model, clip, eos=False)
            assert output.num_cached_tokens == cached
    finally:
        llm.shutdown()


@pytest.mark.nightly
def test_drafts_have_audio_too(tmp_path):
    """Verified drafts read the audio of their positions, and sampled choices differ by their seeds only."""
    model = zoo.make_voxtral_realtime(tmp_path)
    waves = [sound(seconds, seed) for seed, seconds in enumerate((4.1, 1.3, 3.9))]
    want = [zoo.transcribe(model, wave, eos=False) for wave in waves]
    drafts = {"method": "ngram", "num_speculative_tokens": 3, "prompt_lookup_min": 1, "prompt_lookup_max": 3}
    llm = open_llm(tmp_path, speculative_config=drafts)
    try:
        outputs = llm.generate([make_prompt(w) for w in waves], GREEDY, use_tqdm=False)
        assert [list(o.outputs[0].token_ids) for o in outputs] == want
        assert llm.stats().accepted_tokens > 0
        params = SamplingParams(temperature=1.0, n=3, seed=1, max_tokens=None, ignore_eos=True)
        (several,) = llm.generate([make_prompt(waves[1])], params, use_tqdm=False)
        assert {len(o.token_ids) for o in several.outputs} == {len(want[1])}
    finally:
        llm.shutdown()


@pytest.mark.parametrize("samples", [1, 1279, 1280, 20_801])
def test_spectra_and_prompts(samples, tmp_path):
    zoo.make_voxtral_realtime(tmp_path)
    ours, wave = load_audio_processor(read_config(tmp_path), tmp_path), sound(2, 3)[:samples]
    theirs = zoo.read_features(wave)[0].numpy()
    assert ours.frames(samples) == theirs.shape[1]
    np.testing.assert_allclose(ours.mel(wave), theirs, atol=2e-5)
    assert list(ours.start) == zoo.prompt()
    live = ours.live(wave)
    assert live.shape[1] % 8 == 0
    np.testing.assert_allclose(live, theirs[:, : live.shape[1]], atol=2e-5)


def test_prompts_and_silence_are_those_of_mistral_common(tmp_path):
    audio = pytest.importorskip("mistral_common.tokens.tokenizers.audio")
    config = {
        "sampling_rate": 16_000, "frame_rate": 12.5, "transcription_delay_ms": 480, "streaming_look_ahead_ms": 2.5,
        "streaming_look_back_ms": 52.5, "streaming_n_left_pad_tokens": 20, "transcription_format": "streaming",
    }  # fmt: skip
    spectra = audio.AudioSpectrogramConfig(num_mel_bins=20, hop_length=160, window_size=400)
    encoder = audio.AudioEncoder(
        audio.AudioConfig(encoding_config=spectra, chunk_length_s=None, **config),
        audio.SpecialAudioIDs(audio=24, begin_audio=25, streaming_pad=32, text_to_audio=None, audio_to_text=None),
    )
    wave = sound(1.37, 1)
    made = encoder.encode_audio(audio.Audio(wave, 16_000, "wav"))
    write_checkpoint(tmp_path, config)
    ours = load_audio_processor(read_config(tmp_path), tmp_path)
    assert [1, *made.tokens] == list(ours.start)
    assert made.audio.audio_array.size == 160 * ours.frames(wave.size)
    np.testing.assert_array_equal(made.audio.audio_array[20 * 1280 :][: wave.size], wave)


def write_checkpoint(path, audio, **more) -> None:
    said = {
        "architectures": ["VoxtralRealtimeForConditionalGeneration"], "model_type": "voxtral_realtime",
        "audio_config": zoo.AUDIO, "text_config": {**zoo.TEXT, "bos_token_id": 1, "model_type": "voxtral_realtime_text"},
    }  # fmt: skip
    (path / "config.json").write_text(json.dumps(said | more))
    specials = [{"rank": 32, "token_str": "[STREAMING_PAD]", "is_control": True}]
    (path / "tekken.json").write_text(json.dumps({"special_tokens": specials, "audio": audio}))


def test_what_is_refused(tmp_path):
    write_checkpoint(tmp_path, {"transcription_delay_ms": 960})
    with pytest.raises(UnsupportedModelError, match="transcription_delay_ms"):
        load_audio_processor(read_config(tmp_path), tmp_path)
    write_checkpoint(tmp_path, {"transcription_delay_ms": "x"})
    with pytest.raises(CheckpointError, match="transcription_delay_ms"):
        load_audio_processor(read_config(tmp_path), tmp_path)
    write_checkpoint(tmp_path, {})
    config = {**read_config(tmp_path), "language_model_only": True}
    with pytest.raises(UnsupportedModelError, match="language-model-only"):
        registry.family(config)(config)
    write_checkpoint(tmp_path, {}, audio_length_per_tok=4)
    config = read_config(tmp_path)
    with pytest.raises(CheckpointError, match="audio_length_per_tok"):
        registry.family(config)(config)


def test_requests_that_are_refused(tmp_path):
    zoo.make_voxtral_realtime(tmp_path)
    llm = open_llm(tmp_path)
    try:
        with pytest.raises(RequestError, match="send them apart"):
            llm.generate([{**make_prompt(sound(1, 1)), "prompt": "hello"}], GREEDY, use_tqdm=False)
        with pytest.raises(RequestError, match="this model reads one in a prompt"):
            llm.generate([{"prompt": "", "multi_modal_data": {"audio": [sound(1, 1)] * 2}}], GREEDY, use_tqdm=False)
    finally:
        llm.shutdown()
