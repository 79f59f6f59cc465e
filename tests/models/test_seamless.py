"""SeamlessM4T's speech to text against transformers: spectra, transcripts, and prompts with a language."""

from __future__ import annotations

import numpy as np
import pytest
from seamless_zoo import START, VOCAB, features, greedy, load, make_seamless
from whisper_zoo import sound

from thalweg import LLM, SamplingParams
from thalweg.checkpoint.config import read_config
from thalweg.errors import CheckpointError, UnsupportedModelError
from thalweg.media.source_features import extract
from thalweg.models import registry
from thalweg.server.audio.prompted import FORMS, PromptedRecognizer
from thalweg.server.audio.protocol import AudioRequest
from thalweg.server.errors import ApiError
from thalweg.text.tokenizer import load_tokenizer

EVEN = tuple(n * 0.01 + 0.015 for n in (30, 110, 236, 70))
"""Seconds of clips with an even number of spectra."""
OTHERS = (
    ("v1", {}), ("v2", {"speech_encoder_chunk_size": 6, "speech_encoder_left_chunk_num": 1}),
    ("v1", {"position_embeddings_type": "rotary", "adaptor_kernel_size": 4, "adaptor_stride": 2, "num_adapter_layers": 2}),
)  # fmt: skip
CASES = [("v2", {}), *(pytest.param(each, marks=pytest.mark.slow) for each in OTHERS)]
PROMPT, NEW = [START, VOCAB["__deu__"]], 12


def test_spectra_are_those_of_transformers():
    for i, seconds in enumerate(EVEN):
        wave = sound(i, seconds)
        got, want = extract("seamless", wave, 160, 3000), features(wave).input_features[0].numpy().T
        assert int(got[0, 0]) == want.shape[1]
        assert np.abs(got[:, 1 : 1 + want.shape[1]] - want).max() < 2e-3


@pytest.mark.parametrize("platform", [pytest.param("reference", marks=pytest.mark.nightly), "cpu"])
@pytest.mark.parametrize("case", CASES)
def test_transcripts_are_those_of_transformers(case, platform, tmp_path):
    """More clips at once than there are slots for, and again with a cache."""
    name, more = case
    path, waves = make_seamless(name, tmp_path, **more), [sound(i, EVEN[i % 4] + 0.2 * (i // 4)) for i in range(5)]
    llm = LLM(str(path), device=platform, dtype="float32", max_num_seqs=3, block_size=4, use_tqdm_on_load=False)
    model, params = load(name, path), SamplingParams(max_tokens=NEW, temperature=0, logprobs=0)
    want = [greedy(model, wave, PROMPT, NEW) for wave in waves]
    prompts = [{"prompt_token_ids": PROMPT, "multi_modal_data": {"audio": w}} for w in waves]
    for _ in range(2):
        for output, (ids, known) in zip(llm.generate(prompts, params, use_tqdm=False), want, strict=True):
            choice = output.outputs[0]
            assert list(choice.token_ids) == ids
            got = [p[i].logprob for i, p in zip(ids, choice.logprobs, strict=True)]
            assert got == pytest.approx(known, abs=2e-4)
    assert len({round(sum(known), 2) for _, known in want}) > 3, "sounds change nothing"


def test_prompts(tmp_path):
    recognizer = PromptedRecognizer.__new__(PromptedRecognizer)
    recognizer._form, recognizer.tokenizer = FORMS["seamless"], load_tokenizer(make_seamless("v2", tmp_path))
    assert recognizer.write_prompt(AudioRequest(model="m", language="de"), "transcribe") == PROMPT
    assert recognizer.write_prompt(AudioRequest(model="m", language="de"), "translate") == [START, VOCAB["__eng__"]]
    with pytest.raises(ApiError, match=r"tokenizer has no __fra__"):
        recognizer.write_prompt(AudioRequest(model="m", language="fr"), "transcribe")


def test_what_is_refused(tmp_path):
    config = read_config(make_seamless("v2", tmp_path))
    for said, error, words in (
        ({"position_embeddings_type": "x"}, UnsupportedModelError, "position_embeddings_type"),
        ({"speech_encoder_attention_heads": 5}, CheckpointError, "attention heads"),
        ({"speech_encoder_chunk_size": 0}, CheckpointError, "speech_encoder_chunk_size"),
        ({"layer_norm_eps": 1e-6}, UnsupportedModelError, "layer_norm_eps"),
        ({"activation_function": "x"}, UnsupportedModelError, "activation_function"),
    ):
        changed = {**config, **said}
        with pytest.raises(error, match=words):
            registry.family(changed)(changed)
