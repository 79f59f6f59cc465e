"""Canary and Cohere Transcribe against transformers: transcripts of clips of different lengths, and prompts."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import pytest
from canary_zoo import VOCAB, greedy, load, make_canary
from whisper_zoo import sound

from thalweg import LLM, SamplingParams
from thalweg.checkpoint.config import read_config
from thalweg.errors import CheckpointError, RequestError, UnsupportedModelError
from thalweg.models import registry
from thalweg.server.audio.prompted import FORMS, PromptedRecognizer
from thalweg.server.audio.protocol import AudioRequest
from thalweg.server.errors import ApiError
from thalweg.text.tokenizer import load_tokenizer

NEW = 12
PROMPT = [VOCAB[t] for t in ("<|startofcontext|>", "<|startoftranscript|>", "<|emo:undefined|>", "<|en|>", "<|en|>")]
LENGTHS = (0.3, 1.1, 2.37, 0.7)


def make_prompt(wave: np.ndarray) -> dict[str, object]:
    return {"prompt_token_ids": PROMPT, "multi_modal_data": {"audio": wave}}


def open_llm(path, platform="cpu", **more) -> LLM:
    return LLM(str(path), device=platform, dtype="float32", max_num_seqs=3, block_size=4, use_tqdm_on_load=False, **more)


@pytest.mark.parametrize("platform", [pytest.param("reference", marks=pytest.mark.nightly), "cpu"])
@pytest.mark.parametrize("name", ["canary", pytest.param("cohere", marks=pytest.mark.slow)])
def test_transcripts_are_those_of_transformers(name, platform, tmp_path):
    """More clips at once than there are slots for, and again with a cache."""
    path, waves = make_canary(name, tmp_path), [sound(i, LENGTHS[i % 4] + 0.2 * (i // 4)) for i in range(5)]
    llm, model = open_llm(path, platform), load(name, path)
    want = [greedy(model, wave, PROMPT, NEW) for wave in waves]
    for _ in range(2):
        outputs = llm.generate(
            [make_prompt(w) for w in waves], SamplingParams(max_tokens=NEW, temperature=0, logprobs=0), use_tqdm=False
        )
        for output, (ids, known) in zip(outputs, want, strict=True):
            choice = output.outputs[0]
            assert list(choice.token_ids) == ids
            got = [p[i].logprob for i, p in zip(ids, choice.logprobs, strict=True)]
            assert got == pytest.approx(known, abs=1e-4)
    assert len({round(sum(known), 2) for _, known in want}) > 3, "sounds change nothing"


@pytest.mark.slow
@pytest.mark.parametrize(("name", "more"), [("canary", {"tie_word_embeddings": False}), ("cohere", {"attention_bias": False})])
def test_other_settings(name, more, tmp_path):
    path, wave = make_canary(name, tmp_path, **more), sound(3, 1.7)
    (got,) = open_llm(path).generate([make_prompt(wave)], SamplingParams(max_tokens=NEW, temperature=0), use_tqdm=False)
    assert list(got.outputs[0].token_ids) == greedy(load(name, path), wave, PROMPT, NEW)[0]


def test_prompts(tmp_path):
    """As the processor of transformers writes them for Cohere's model. Canary translates into English."""
    tokenizer = load_tokenizer(make_canary("cohere", tmp_path))

    def write(form: str, task: str = "transcribe", **fields: str) -> list[int]:
        recognizer = PromptedRecognizer.__new__(PromptedRecognizer)
        recognizer._form, recognizer.tokenizer = FORMS[form], tokenizer
        return recognizer.write_prompt(AudioRequest(model="m", **fields), task)

    from transformers import CohereAsrProcessor

    theirs = SimpleNamespace(tokenizer=SimpleNamespace(convert_tokens_to_ids=lambda tokens: [VOCAB[t] for t in tokens]))
    assert write("cohere", language="de") == CohereAsrProcessor.get_decoder_prompt_ids(theirs, "de")
    assert write("cohere") == CohereAsrProcessor.get_decoder_prompt_ids(theirs, "en")
    german, english = VOCAB["<|de|>"], VOCAB["<|en|>"]
    assert write("canary", language="german")[3:5] == [german, german]
    assert write("canary", "translate", language="de")[3:5] == [german, english]
    with pytest.raises(ApiError, match="language: unknown 'xx'"):
        write("canary", language="xx")
    with pytest.raises(ApiError, match=r"tokenizer has no <\|fr\|>"):
        write("canary", language="fr")


def test_languages_are_those_of_transformers():
    from transformers.models.canary.processing_canary import LANGUAGE_CODE_TO_NAME
    from transformers.models.cohere_asr.processing_cohere_asr import LANGUAGES

    assert FORMS["canary"].languages == set(LANGUAGE_CODE_TO_NAME)
    assert FORMS["cohere"].languages == set(LANGUAGES)


def test_what_is_refused(tmp_path):
    path = make_canary("canary", tmp_path)
    with pytest.raises(RequestError, match="accepts 40 at once"):
        open_llm(path).generate([make_prompt(sound(1, 41))], SamplingParams(max_tokens=2), use_tqdm=False)
    config = read_config(path)
    for said, error, words in (
        ({"num_attention_heads": 5}, CheckpointError, "num_attention_heads"),
        ({"num_key_value_heads": 2}, UnsupportedModelError, "num_key_value_heads"),
        ({"hidden_act": "x"}, UnsupportedModelError, "hidden_act"),
        ({"hidden_size": 64}, UnsupportedModelError, "decoder_config"),
    ):
        changed = {**config, **said}
        with pytest.raises(error, match=words):
            registry.family(changed)(changed)
