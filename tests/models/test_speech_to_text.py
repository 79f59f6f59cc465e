"""Speech2Text against transformers: spectra, and transcripts of clips of different lengths."""

from __future__ import annotations

import json

import numpy as np
import pytest
from speech_to_text_zoo import START, VOCAB, features, greedy, load, make_speech_to_text, sound

from thalweg import LLM, SamplingParams
from thalweg.checkpoint.config import read_config
from thalweg.errors import CheckpointError, RequestError, UnsupportedModelError
from thalweg.media.source_features import extract
from thalweg.models.families.speech_to_text import speech_to_text
from thalweg.text.tokenizer import load_tokenizer

LENGTHS = (0.3, 1.1, 2.37, 0.7)
NEW = 12
OTHER = {"conv_kernel_sizes": [3, 5, 3], "num_conv_layers": 3, "activation_function": "gelu"}
PLAIN = {"scale_embedding": False, "tie_word_embeddings": True}


def make_prompt(wave: np.ndarray) -> dict[str, object]:
    return {"prompt_token_ids": [START], "multi_modal_data": {"audio": wave}}


def open_llm(path, platform="cpu", **more) -> LLM:
    return LLM(str(path), device=platform, dtype="float32", max_num_seqs=3, block_size=4, use_tqdm_on_load=False, **more)


def test_spectra_are_those_of_transformers():
    for i, seconds in enumerate((*LENGTHS, 0.1)):
        wave = sound(i, seconds)
        got, want = extract("speech2text", wave, 16, 3000), features(wave)[0].numpy().T
        assert int(got[0, 0]) == want.shape[1]
        assert np.abs(got[:, 1 : 1 + want.shape[1]] - want).max() < 2e-4
    silence = extract("speech2text", np.zeros(8000, np.float32), 16, 3000)
    assert np.isfinite(silence).all()


@pytest.mark.parametrize("platform", [pytest.param("reference", marks=pytest.mark.slow), "cpu"])
@pytest.mark.parametrize("more", [{}, pytest.param(OTHER, marks=pytest.mark.slow), pytest.param(PLAIN, marks=pytest.mark.slow)])
def test_transcripts_are_those_of_transformers(platform, more, tmp_path):
    """More clips at once than there are slots for, and again with a cache."""
    path, waves = make_speech_to_text(tmp_path, **more), [sound(i, LENGTHS[i % 4] + 0.2 * (i // 4)) for i in range(5)]
    llm, model = open_llm(path, platform), load(path)
    want = [greedy(model, wave, NEW) for wave in waves]
    params = SamplingParams(max_tokens=NEW, temperature=0, logprobs=0)
    for _ in range(2):
        outputs = llm.generate([make_prompt(w) for w in waves], params, use_tqdm=False)
        for output, (ids, known) in zip(outputs, want, strict=True):
            choice = output.outputs[0]
            assert list(choice.token_ids) == ids
            got = [p[i].logprob for i, p in zip(ids, choice.logprobs, strict=True)]
            assert got == pytest.approx(known, abs=1e-4)
    assert len({round(sum(known), 2) for _, known in want}) > 3, "sounds change nothing"


def test_a_transcript_begins_with_the_forced_token(tmp_path):
    """Models for several languages force the one of the text."""
    path = make_speech_to_text(tmp_path)
    (path / "generation_config.json").write_text(
        json.dumps({"decoder_start_token_id": START, "forced_bos_token_id": VOCAB["<lang:de>"]})
    )
    assert open_llm(path).llm_engine.config.model.speech.start == (START, VOCAB["<lang:de>"])


def test_texts_are_pieces(tmp_path):
    """As sentencepiece joins them."""
    path = make_speech_to_text(tmp_path)
    tokenizer = load_tokenizer(path)
    ids = [START, VOCAB["▁b"], VOCAB["cc"], VOCAB["▁d"], VOCAB["</s>"]]
    assert tokenizer.decode(ids) == "bcc d"
    (path / "tokenizer_config.json").write_text(
        json.dumps({"tokenizer_class": "Speech2TextTokenizer", "eos_token": "</s>", "do_upper_case": True})
    )
    assert load_tokenizer(path).decode(ids) == "BCC D"


def test_what_is_refused(tmp_path):
    path = make_speech_to_text(tmp_path)
    with pytest.raises(RequestError, match="accepts 6 at once"):
        open_llm(path).generate([make_prompt(sound(1, 6.5))], SamplingParams(max_tokens=2), use_tqdm=False)
    config = read_config(path)
    for said, error, words in (
        ({"pad_token_id": 0}, UnsupportedModelError, "pad_token_id"),
        ({"input_channels": 2}, UnsupportedModelError, "input_channels"),
        ({"conv_channels": 25}, CheckpointError, "conv_channels"),
        ({"conv_kernel_sizes": [4]}, CheckpointError, "conv_kernel_sizes"),
        ({"activation_function": "x"}, UnsupportedModelError, "activation_function"),
    ):
        with pytest.raises(error, match=words):
            speech_to_text({**config, **said})
