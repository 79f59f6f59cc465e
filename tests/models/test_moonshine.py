"""Moonshine against transformers: the encoder of clips of different lengths, and transcripts."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from moonshine_zoo import END, SIZES, START, greedy, load, make_moonshine
from rig import Rig
from whisper_zoo import sound

from thalweg import LLM, SamplingParams
from thalweg.checkpoint.config import read_config
from thalweg.errors import CheckpointError, RequestError, UnsupportedModelError
from thalweg.models.families.moonshine import moonshine
from thalweg.models.spec.waveform import count_sources

LENGTHS = (0.3, 1.1, 2.37, 0.1)


def make_prompt(wave: np.ndarray) -> dict[str, object]:
    return {"prompt_token_ids": [START], "multi_modal_data": {"audio": wave}}


@pytest.mark.parametrize("platform", [pytest.param("reference", marks=pytest.mark.slow), "cpu"])
def test_the_encoder(platform, tmp_path):
    path = make_moonshine(tmp_path)
    rig, waves = Rig(path, platform=platform), [sound(i, seconds) for i, seconds in enumerate(LENGTHS)]
    rows = np.zeros((len(waves), 1, 1 + 3 * 16_000), np.float32)
    for row, wave in zip(rows, waves, strict=True):
        row[0, 0], row[0, 1 : 1 + wave.size] = wave.size, wave
    got = rig.model._speech(rig.params["speech"], torch.from_numpy(rows))
    assert got.lengths == tuple(count_sources(wave.size) for wave in waves)
    model = load(path)
    for part, wave in zip(got.vectors.split(got.lengths), waves, strict=True):
        with torch.inference_mode():
            want = model.model.encoder(torch.from_numpy(wave)[None]).last_hidden_state[0]
        assert part.shape == want.shape
        assert (part - want).abs().max() < 1e-4


@pytest.mark.parametrize("platform", [pytest.param("reference", marks=pytest.mark.slow), "cpu"])
def test_transcripts_are_those_of_transformers(platform, tmp_path):
    """Several at once, more than there are slots for, and again with a cache."""
    path, waves = make_moonshine(tmp_path), [sound(i, LENGTHS[i % 4] + 0.2 * (i // 4)) for i in range(6)]
    llm = LLM(str(path), device=platform, dtype="float32", max_num_seqs=3, block_size=4, use_tqdm_on_load=False)
    params, model = SamplingParams(max_tokens=20, temperature=0), load(path)
    want = [greedy(model, wave, 20) for wave in waves]
    for _ in range(2):
        outputs = llm.generate([make_prompt(w) for w in waves], params, use_tqdm=False)
        assert [list(o.outputs[0].token_ids) for o in outputs] == want
    assert len({tuple(ids) for ids in want}) > 3, "sounds change nothing"


def test_clips_that_are_too_long_or_short(tmp_path):
    """The longest clip is what 64 tokens transcribe at 6.5 tokens a second. The shortest ends in silence."""
    path = make_moonshine(tmp_path)
    llm = LLM(str(path), device="cpu", dtype="float32", max_num_seqs=2, use_tqdm_on_load=False)
    params = SamplingParams(max_tokens=6, temperature=0, ignore_eos=True)
    with pytest.raises(RequestError, match=r"accepts 9\.84 at once"):
        llm.generate([make_prompt(sound(1, 10.0))], params, use_tqdm=False)
    short = sound(2, 0.01)
    (got,) = llm.generate([make_prompt(short)], params, use_tqdm=False)
    padded = np.concatenate([short, np.zeros(1600 - short.size, np.float32)])
    assert list(got.outputs[0].token_ids)[:2] == greedy(load(path), padded, 2)[:2]


def test_settings_that_are_not_supported(tmp_path):
    config = read_config(make_moonshine(tmp_path))
    assert moonshine(config).layers[0].mixer.rope.dim == 10
    for said, error, words in (
        ({"attention_bias": True}, UnsupportedModelError, "attention_bias"),
        ({"encoder_num_key_value_heads": 2}, UnsupportedModelError, "encoder_num_key_value_heads"),
        ({"encoder_num_attention_heads": 5}, CheckpointError, "encoder_num_attention_heads"),
        ({"decoder_hidden_act": "x"}, UnsupportedModelError, "decoder_hidden_act"),
    ):
        with pytest.raises(error, match=words):
            moonshine({**config, **said})
    assert SIZES["eos_token_id"] == END
