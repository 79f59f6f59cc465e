"""Moonshine Streaming against transformers: the encoder's windows, and transcripts."""

from __future__ import annotations

import pytest
from moonshine_zoo import START, greedy_streaming, load_streaming, make_streaming
from whisper_zoo import sound

from thalweg import LLM, SamplingParams
from thalweg.checkpoint.config import read_config
from thalweg.errors import CheckpointError, UnsupportedModelError
from thalweg.models.families.moonshine_streaming import moonshine_streaming

LENGTHS = (0.3, 1.1, 1.373, 0.1)
NEW = 12


@pytest.mark.parametrize("platform", [pytest.param("reference", marks=pytest.mark.slow), "cpu"])
@pytest.mark.parametrize(
    "more", [{}, pytest.param({"hidden_size": 32, "head_dim": 10, "tie_word_embeddings": True}, marks=pytest.mark.slow)]
)
def test_transcripts_are_those_of_transformers(platform, more, tmp_path):
    """More clips at once than there are slots for, some with an incomplete last frame, and again with a cache."""
    path, waves = make_streaming(tmp_path, **more), [sound(i, LENGTHS[i % 4] + 0.21 * (i // 4)) for i in range(6)]
    llm = LLM(str(path), device=platform, dtype="float32", max_num_seqs=3, block_size=4, use_tqdm_on_load=False)
    model, params = load_streaming(path), SamplingParams(max_tokens=NEW, temperature=0, logprobs=0)
    want = [greedy_streaming(model, wave, NEW) for wave in waves]
    prompts = [{"prompt_token_ids": [START], "multi_modal_data": {"audio": w}} for w in waves]
    for _ in range(2):
        for output, (ids, known) in zip(llm.generate(prompts, params, use_tqdm=False), want, strict=True):
            choice = output.outputs[0]
            assert list(choice.token_ids) == ids
            got = [p[i].logprob for i, p in zip(ids, choice.logprobs, strict=True)]
            assert got == pytest.approx(known, abs=1e-4)
    assert len({tuple(ids) for ids, _ in want}) > 3, "sounds change nothing"


def test_settings_that_are_not_supported(tmp_path):
    config = read_config(make_streaming(tmp_path))
    heard = config["encoder_config"]
    assert moonshine_streaming(config).speech.sources == 256
    for said, error, words in (
        ({"attention_bias": True}, UnsupportedModelError, "attention_bias"),
        ({"num_key_value_heads": 2}, UnsupportedModelError, "num_key_value_heads"),
        ({"encoder_config": None}, CheckpointError, "encoder_config"),
        ({"encoder_config": {**heard, "sliding_windows": [[6, 4]]}}, CheckpointError, "sliding_windows"),
        ({"encoder_config": {**heard, "sample_rate": 8000}}, UnsupportedModelError, "sample_rate"),
        ({"encoder_config": {**heard, "frame_ms": 0}}, CheckpointError, "frame_ms"),
        ({"encoder_config": {**heard, "num_key_value_heads": 1}}, UnsupportedModelError, "num_key_value_heads"),
    ):
        with pytest.raises(error, match=words):
            moonshine_streaming({**config, **said})
